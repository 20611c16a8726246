/** The description of the pixel under the cursor. */

import type { App } from "./app";
import { causeName } from "./levels";
import { valueAt } from "./result";

/** Describe the pixel under the cursor. */
export function readout(app: App): string {
  const { hover, result, scan, state } = app;
  if (!hover || !scan) return "";
  const { row, column } = hover;
  const words = [`row ${row}, column ${column}`];
  const value = app.slices?.valueAt(state.slice, row, column);
  if (value !== null && value !== undefined) words.push(`value ${Number(value.toPrecision(4))}`);
  if (result) {
    app.model.classes.slice(1).forEach((name, n) => {
      const mean = valueAt(result.meanAt(state.slice, n + 1), row, column);
      if (mean !== null) words.push(`${name} ${Math.round(mean / 2.55)} %`);
    });
    const gamma = valueAt(result.gammaAt(state.slice), row, column);
    if (gamma !== null) words.push(`γ ${((gamma / 255) * result.summary!.gammaMax).toFixed(2)}`);
    const cause = mainCause(app);
    if (cause) words.push(`${Math.round(100 * cause.share)} % due to ${causeName(app.model, cause.number, false)}`);
  }
  return words.join("  ·  ");
}

/** Return the share of each part of the noise in the uncertainty under the cursor, if any. */
export function sharesUnderCursor(app: App): number[] | null {
  const { hover, result, state, model } = app;
  if (!hover || !result?.summary?.shares || state.slice !== result.slice) return null;
  if (!valueAt(result.gammaAt(result.slice), hover.row, hover.column)) return null;
  const shares = model.noise_names.map((_, cause) => (valueAt(result.shareOf(cause), hover.row, hover.column) ?? 0) / 255);
  return shares.some(Boolean) ? shares : null;
}

function mainCause(app: App): { number: number; share: number } | null {
  const shares = sharesUnderCursor(app);
  if (!shares) return null;
  const share = Math.max(...shares);
  return { number: shares.indexOf(share), share };
}
