/** The description of the pixel under the cursor. */

import type { App } from "./app";
import { causeName } from "./levels";
import { valueAt } from "./planes";

/** Describe the pixel under the cursor. */
export function readout(app: App): string {
  const { hover, result, scan } = app;
  if (!hover || !scan) return "";
  const { cut, row, column } = hover;
  const [slice, ...place] = hover.point;
  const words = [`${app.showsPlanes ? `slice ${slice + 1}, ` : ""}row ${place[0]}, column ${place[1]}`];
  const value = app.slices?.valuesAt(cut, row, column);
  if (value) words.push(`value ${value.map((channel) => Number(channel.toPrecision(4))).join(", ")}`);
  if (result) {
    app.model.classes.slice(1).forEach((name, n) => {
      const mean = valueAt(result.meanAt(cut, n + 1), row, column);
      if (mean !== null) words.push(`${name} ${Math.round(mean / 2.55)} %`);
    });
    const gamma = valueAt(result.gammaAt(cut), row, column);
    if (gamma !== null) words.push(`γ ${((gamma / 255) * result.gammaMax).toFixed(2)}`);
    const cause = mainCause(app);
    if (cause) words.push(`${Math.round(100 * cause.share)} % due to ${causeName(app.model, cause.number, false)}`);
  }
  return words.join("  ·  ");
}

/** Return the share of each part of the noise in the uncertainty under the cursor, if any. */
export function sharesUnderCursor(app: App): number[] | null {
  const { hover, result, model } = app;
  if (!hover || !result?.summary?.shares || hover.point[0] !== result.slice) return null;
  const [, row, column] = hover.point;
  if (!valueAt(result.gammaAt(result.cutAt(result.slice)), row, column)) return null;
  const shares = model.noise_names.map((_, cause) => (valueAt(result.shareOf(cause), row, column) ?? 0) / 255);
  return shares.some(Boolean) ? shares : null;
}

function mainCause(app: App): { number: number; share: number } | null {
  const shares = sharesUnderCursor(app);
  if (!shares) return null;
  const share = Math.max(...shares);
  return { number: shares.indexOf(share), share };
}
