/** Paints a part of a cut through the scan and its overlays into a rectangle of a canvas. */

import type { App } from "./app";
import type { Box, PlaneInfo, ScanInfo } from "./api";
import { ANNOTATOR, type Ramp, classColour, rampColour, rampTable } from "./colours";
import { outline } from "./contours";
import { type Cut, type Patch, spacingOf, wholeCut } from "./planes";
import type { Result } from "./result";

/** A rectangle of the canvas, the position in the cut at its corner, and screen pixels per image pixel. */
export interface Frame {
  x: number;
  y: number;
  width: number;
  height: number;
  left: number;
  top: number;
  scaleX: number;
  scaleY: number;
}

export type Overlay =
  | { kind: "none" }
  | { kind: "outlines" }
  | { kind: "sample"; sample: number; filled: boolean }
  | { kind: "annotator"; annotator: number }
  | { kind: "map"; patch: Patch | null; ramp: Ramp };

/** The margin around the segmentations. */
type Distance = "close" | "around";

const TABLES = { mean: rampTable("mean"), gamma: rampTable("gamma") };

export class Painter {
  private readonly app: App;
  private paths = new Map<string, Path2D>();
  private maps = new WeakMap<ArrayBufferLike, Map<number, HTMLCanvasElement>>();
  private pathsOf: Result | null = null;
  private focusOf: Result | null = null;
  private focusAt = "";
  private focusBoxes: Record<Distance, Box> | null = null;

  constructor(app: App) {
    this.app = app;
  }

  /** Paint a cut and its overlay. */
  paint(context: CanvasRenderingContext2D, frame: Frame, cut: Cut, overlay: Overlay, annotators: boolean): void {
    context.save();
    context.beginPath();
    context.rect(frame.x, frame.y, frame.width, frame.height);
    context.clip();
    const picture = this.app.slices?.picture(cut, this.app.state.window);
    if (picture) {
      context.imageSmoothingQuality = "high";
      place(context, frame, picture, { row: 0, column: 0, height: picture.height, width: picture.width });
    }
    this.paintOverlay(context, frame, cut, overlay);
    if (annotators) {
      const number = this.app.annotations?.annotators.length ?? 0;
      for (let n = 0; n < number; n++) this.paintAnnotator(context, frame, cut, n, 1.5);
    }
    context.restore();
  }

  /** Return a square of the slice around all segmentations. */
  focus(distance: Distance = "around"): Box {
    const { result } = this.app;
    const scan = this.app.scan!;
    const now = `${scan.id} ${result?.version ?? "-"}`;
    if (!this.focusBoxes || this.focusOf !== result || this.focusAt !== now) {
      [this.focusOf, this.focusAt] = [result, now];
      const drawn = drawnBox(this.app);
      this.focusBoxes = { close: squareAround(drawn, scan, 1.6), around: squareAround(drawn, scan, 3) };
    }
    return this.focusBoxes[distance];
  }

  /** Return the frame that shows a box of a cut as large as possible in a rectangle. */
  fit(box: Box, x: number, y: number, width: number, height: number, plane: PlaneInfo = this.app.scan!.planes[0]!): Frame {
    const [down, right] = spacingOf(this.app.scan!, plane);
    const scale = Math.min(width / (box.width * right), height / (box.height * down));
    const [scaleX, scaleY] = [scale * right, scale * down];
    const [spareX, spareY] = [width / scaleX - box.width, height / scaleY - box.height];
    return { x, y, width, height, left: box.column - spareX / 2, top: box.row - spareY / 2, scaleX, scaleY };
  }

  private paintOverlay(context: CanvasRenderingContext2D, frame: Frame, cut: Cut, overlay: Overlay): void {
    const { result } = this.app;
    if (overlay.kind === "map" && overlay.patch) {
      place(context, frame, this.mapPicture(overlay.patch, overlay.ramp), overlay.patch.box);
    } else if (overlay.kind === "annotator") {
      this.paintAnnotator(context, frame, cut, overlay.annotator, 2, 0.25);
    } else if (overlay.kind === "sample") {
      this.paintSample(context, frame, cut, overlay.sample, { width: 2, alpha: 1, fill: overlay.filled ? 0.25 : 0 });
    } else if (overlay.kind === "outlines" && result) {
      const number = result.request.num_samples;
      const alpha = Math.max(0.3, 0.85 - number / 120);
      for (let sample = 0; sample < number; sample++) {
        this.paintSample(context, frame, cut, sample, { width: 1.2, alpha, fill: 0 });
      }
    }
  }

  private paintSample(
    context: CanvasRenderingContext2D,
    frame: Frame,
    cut: Cut,
    sample: number,
    style: { width: number; alpha: number; fill: number },
  ): void {
    const { result, model } = this.app;
    const patch = result?.labelsAt(sample, cut);
    if (!result || !patch) return;
    for (let label = 1; label < model.classes.length; label++) {
      const path = this.path(`${sample} ${cut.plane.name} ${cut.at} ${label}`, patch, label);
      stroke(context, frame, path, classColour(label, style.alpha), style.width, style.fill ? classColour(label, style.fill) : null);
    }
  }

  private paintAnnotator(context: CanvasRenderingContext2D, frame: Frame, cut: Cut, annotator: number, width: number, fill = 0): void {
    const { model, scan } = this.app;
    const patch = this.app.annotationAt(annotator, cut);
    if (!patch || !scan) return;
    for (let label = 1; label < model.classes.length; label++) {
      const path = this.path(`${scan.id} annotator ${annotator} ${cut.plane.name} ${cut.at} ${label}`, patch, label);
      stroke(context, frame, path, ANNOTATOR, width, fill ? `rgb(255 176 66 / ${fill})` : null);
    }
  }

  private path(key: string, patch: Patch, label: number): Path2D {
    if (this.pathsOf !== this.app.result) {
      this.pathsOf = this.app.result;
      this.paths.clear();
    }
    let path = this.paths.get(key);
    if (!path) {
      path = outline(patch, label);
      this.paths.set(key, path);
    }
    return path;
  }

  private mapPicture(patch: Patch, ramp: Ramp): HTMLCanvasElement {
    const { buffer, byteOffset } = patch.values;
    const known = this.maps.get(buffer) ?? new Map<number, HTMLCanvasElement>();
    this.maps.set(buffer, known);
    let picture = known.get(byteOffset);
    if (!picture) {
      picture = document.createElement("canvas");
      picture.width = patch.box.width;
      picture.height = patch.box.height;
      const context = picture.getContext("2d")!;
      const image = context.createImageData(picture.width, picture.height);
      const table = TABLES[ramp];
      patch.values.forEach((value, n) => image.data.set(table.subarray(4 * value, 4 * value + 4), 4 * n));
      context.putImageData(image, 0, 0);
      known.set(byteOffset, picture);
    }
    return picture;
  }
}

/** Paint the colour scale of a map. */
export function paintLegend(
  context: CanvasRenderingContext2D,
  x: number,
  y: number,
  ramp: Ramp,
  title: string,
  low: string,
  high: string,
): void {
  const [width, height] = [180, 8];
  context.save();
  panel(context, x - 12, y - 26, width + 24, 60);
  const gradient = context.createLinearGradient(x, 0, x + width, 0);
  for (let n = 0; n <= 8; n++) gradient.addColorStop(n / 8, `rgb(${rampColour(ramp, n / 8).join(" ")})`);
  context.fillStyle = gradient;
  context.fillRect(x, y, width, height);
  write(context, title, x, y - 9);
  write(context, low, x, y + height + 15);
  write(context, high, x + width, y + height + 15, "right");
  context.restore();
}

/** Paint a dark background for text. */
export function panel(context: CanvasRenderingContext2D, x: number, y: number, width: number, height: number): void {
  context.fillStyle = "rgb(10 12 15 / 0.72)";
  context.beginPath();
  context.roundRect(x, y, width, height, 6);
  context.fill();
}

export function write(
  context: CanvasRenderingContext2D,
  text: string,
  x: number,
  y: number,
  align: CanvasTextAlign = "left",
  colour = "rgb(235 238 242)",
): void {
  context.font = '12px system-ui, -apple-system, "Segoe UI", sans-serif';
  context.textAlign = align;
  context.fillStyle = colour;
  context.fillText(text, x, y);
}

function place(context: CanvasRenderingContext2D, frame: Frame, picture: HTMLCanvasElement, box: Box): void {
  const x = frame.x + (box.column - frame.left) * frame.scaleX;
  const y = frame.y + (box.row - frame.top) * frame.scaleY;
  context.drawImage(picture, x, y, box.width * frame.scaleX, box.height * frame.scaleY);
}

function stroke(
  context: CanvasRenderingContext2D,
  frame: Frame,
  path: Path2D,
  colour: string,
  width: number,
  fill: string | null,
): void {
  const onScreen = new Path2D();
  const { scaleX, scaleY } = frame;
  const matrix = new DOMMatrix([scaleX, 0, 0, scaleY, frame.x - frame.left * scaleX, frame.y - frame.top * scaleY]);
  onScreen.addPath(path, matrix);
  if (fill) {
    context.fillStyle = fill;
    context.fill(onScreen, "evenodd");
  }
  context.strokeStyle = colour;
  context.lineWidth = width;
  context.lineJoin = "round";
  context.stroke(onScreen);
}

/** Return the box around all samples and annotations; if they are empty, the box of the prediction. */
function drawnBox(app: App): Box {
  const { scan, result, annotations } = app;
  const whole = wholeCut(scan!, scan!.planes[0]!);
  let [top, left, bottom, right] = [Infinity, Infinity, -Infinity, -Infinity];
  const include = ({ box, values }: Patch): void => {
    values.forEach((value, n) => {
      if (!value) return;
      const [row, column] = [box.row + Math.floor(n / box.width), box.column + (n % box.width)];
      [top, bottom] = [Math.min(top, row), Math.max(bottom, row + 1)];
      [left, right] = [Math.min(left, column), Math.max(right, column + 1)];
    });
  };
  for (const slice of result?.slices ?? []) {
    for (let sample = 0; sample < result!.samples.length; sample++) {
      const patch = result!.labelsAt(sample, app.cutAt(slice));
      if (patch) include(patch);
    }
  }
  annotations?.annotators.forEach((_, n) => {
    for (let slice = 0; slice < scan!.num_slices; slice++) include(app.annotationAt(n, app.cutAt(slice))!);
  });
  if (top === Infinity) return result?.sampleBox ?? whole;
  return { row: top, column: left, height: bottom - top, width: right - left };
}

/** Return a square (in mm) around a box: `factor` times as long, and inside the slice. */
function squareAround(box: Box, scan: ScanInfo, factor: number): Box {
  const [, down, right] = scan.spacing_mm;
  const side = factor * Math.max(box.height * down, box.width * right, 10 * Math.min(down, right));
  const [height, width] = [Math.min(scan.height, side / down), Math.min(scan.width, side / right)];
  const start = (middle: number, length: number, end: number) => Math.min(Math.max(middle - length / 2, 0), end - length);
  return {
    row: start(box.row + box.height / 2, height, scan.height),
    column: start(box.column + box.width / 2, width, scan.width),
    height,
    width,
  };
}
