/** The views that show several images next to each other: samples, slices and levels. */

import type { App } from "./app";
import type { Pair } from "./api";
import { ANNOTATOR, type Ramp, classColour } from "./colours";
import { coarseToFine } from "./levels";
import { type Frame, type Overlay, type Painter, paintLegend, write } from "./picture";
import type { Patch } from "./planes";
import { paintScaleBar } from "./scale_bar";

/** One image of several. */
interface Tile {
  title: string;
  /** The title for a tile that is too small for the full title. */
  short: string;
  slice: number;
  overlay: Overlay;
  annotators?: boolean;
  chosen?: boolean;
  onClick?: () => void;
  colour?: string;
}

export interface PlacedTile {
  frame: Frame;
  tile: Tile;
}

const GAP = 8;
const CAPTION = 20;

/** Paint images next to each other, and return their places. */
export function paintMontage(context: CanvasRenderingContext2D, painter: Painter, app: App, [fullWidth, fullHeight]: Pair): PlacedTile[] {
  const tiles = montageOf(app);
  const isLevels = app.state.view === "levels";
  const box = painter.focus("close");
  const [, down, right] = app.scan!.spacing_mm;
  const bottom = isLevels ? 84 : 0;
  const room = fullWidth - (app.scan!.num_slices > 1 ? 28 : 0); // next to the slice slider
  const { columns, width, height } = arrange(tiles.length, room, fullHeight - bottom, (box.width * right) / (box.height * down), isLevels ? tiles.length / 2 : 0);
  const rows = Math.ceil(tiles.length / columns);
  const left = (room - columns * (width + GAP) + GAP) / 2;
  const top = (fullHeight - bottom - rows * (height + CAPTION + GAP) + GAP) / 2;
  const placed = tiles.map((tile, n): PlacedTile => {
    const x = left + (n % columns) * (width + GAP);
    const y = top + Math.floor(n / columns) * (height + CAPTION + GAP);
    const frame = painter.fit(box, x, y + CAPTION, width, height);
    painter.paint(context, frame, app.cutAt(tile.slice), tile.overlay, tile.annotators ?? false);
    const colour = tile.chosen ? classColour(1) : (tile.colour ?? "rgb(170 178 188)");
    context.save();
    context.beginPath();
    context.rect(x, y, width, CAPTION);
    context.clip();
    write(context, width < 84 ? tile.short : tile.title, x + 1, y + 14, "left", colour);
    context.restore();
    if (tile.chosen) {
      context.strokeStyle = classColour(1);
      context.lineWidth = 2;
      context.strokeRect(x, y + CAPTION, width, height);
    }
    return { frame, tile };
  });
  const { has_spacing: isKnown, spacing_mm: spacing } = app.scan!;
  if (isKnown && width > 84) paintScaleBar(context, placed[0]!.frame, spacing[2]);
  if (isLevels) {
    const y = top + rows * (height + CAPTION + GAP) + 44;
    const most = app.result?.summary?.gammaMax.toFixed(2) ?? "";
    paintLegend(context, left, y, "mean", "First sample after each level", "0", "1");
    paintLegend(context, left + 220, y, "gamma", "γ caused by each level", "0", `${most} nats`);
  }
  return placed;
}

/** Return the images of the current view. */
function montageOf(app: App): Tile[] {
  const { view, slice, annotators } = app.state;
  const result = app.result!;
  if (view === "levels") return levelTiles(app);
  if (view === "slices") {
    const drawn = result.drawnSlices();
    app.slices!.reserve(drawn.length);
    return drawn.map((number) => ({
      title: `Slice ${number + 1}`,
      short: String(number + 1),
      slice: number,
      overlay: { kind: "outlines" },
      annotators,
      chosen: number === slice,
      onClick: () => app.setSlice(number),
    }));
  }
  const shown = app.annotations && annotators ? app.annotations.annotators : [];
  const theirs = shown.map((name, n): Tile => {
    return { title: readable(name), short: name.replace(/^annotator /, "A"), slice, overlay: { kind: "annotator", annotator: n }, colour: ANNOTATOR };
  });
  const ours = result.samples.map((_, sample): Tile => {
    return {
      title: `Sample ${sample + 1}`,
      short: String(sample + 1),
      slice,
      overlay: { kind: "sample", sample, filled: true },
      chosen: sample === app.state.sample,
      onClick: () => (sample === app.state.sample ? app.store.set({ view: "sample" }) : app.setSample(sample)),
    };
  });
  return [...theirs, ...ours];
}

/** The first sample after each level, coarse to fine, and below it the uncertainty caused by each part of the noise. */
function levelTiles({ result, model }: App): Tile[] {
  const tile = (title: string, cause: number, patch: Patch | null, ramp: Ramp): Tile => {
    return { title, short: model.noise_names[cause]!.replace("level ", ""), slice: result!.slice, overlay: { kind: "map", patch, ramp } };
  };
  const titleOf = (cause: number): string => (cause < model.num_levels ? `After ${model.noise_names[cause]}` : "Image");
  return [
    ...coarseToFine(model).map((cause) => tile(titleOf(cause), cause, result!.outputOf(cause), "mean")),
    ...coarseToFine(model).map((cause) => tile(`Due to ${model.noise_names[cause]}`, cause, result!.contributionOf(cause), "gamma")),
  ];
}

/** Return the number of columns for which tiles of an aspect ratio are largest, and their size. */
function arrange(number: number, width: number, height: number, aspect: number, fixed: number): { columns: number; width: number; height: number } {
  let best = { columns: 1, width: 0, height: 0 };
  for (let columns = fixed || 1; columns <= (fixed || Math.max(number, 1)); columns++) {
    const rows = Math.ceil(number / columns);
    const tall = (height - 2 * GAP - rows * (CAPTION + GAP)) / rows;
    const wide = Math.min((width - 2 * GAP - (columns - 1) * GAP) / columns, tall * aspect, 360);
    if (wide > best.width) best = { columns, width: wide, height: wide / aspect };
  }
  return best;
}

function readable(name: string): string {
  return name.charAt(0).toUpperCase() + name.slice(1);
}
