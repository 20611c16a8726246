/** The panes of three planes: their places, crosshairs and titles. */

import { type Frame, write } from "./picture";
import type { Cut } from "./planes";

const GAP = 4;
const MAIN = 0.6; // share of the longer side

/** A plane and its place on the canvas. */
export interface Pane {
  cut: Cut;
  frame: Frame;
}

/** Return the rectangles of three panes: a large one, and two small ones beside it, or below it if that is larger. */
export function arrangePanes(width: number, height: number): { x: number; y: number; width: number; height: number }[] {
  if (width >= height) {
    const [large, half] = [Math.round(width * MAIN), (height - GAP) / 2];
    const small = { x: large + GAP, width: width - large - GAP, height: half };
    return [{ x: 0, y: 0, width: large, height }, { ...small, y: 0 }, { ...small, y: half + GAP }];
  }
  const [large, half] = [Math.round(height * MAIN), (width - GAP) / 2];
  const small = { y: large + GAP, width: half, height: height - large - GAP };
  return [{ x: 0, y: 0, width, height: large }, { ...small, x: 0 }, { ...small, x: half + GAP }];
}

/** Paint lines through the cursor, open at its pixel. */
export function paintCross(context: CanvasRenderingContext2D, frame: Frame, [row, column]: [number, number]): void {
  const x = frame.x + (column + 0.5 - frame.left) * frame.scaleX;
  const y = frame.y + (row + 0.5 - frame.top) * frame.scaleY;
  const [openX, openY] = [Math.max(frame.scaleX, 8), Math.max(frame.scaleY, 8)];
  context.save();
  context.beginPath();
  context.rect(frame.x, frame.y, frame.width, frame.height);
  context.clip();
  context.strokeStyle = "rgb(120 235 160 / 0.55)";
  context.lineWidth = 1;
  context.beginPath();
  context.moveTo(frame.x, y);
  context.lineTo(x - openX, y);
  context.moveTo(x + openX, y);
  context.lineTo(frame.x + frame.width, y);
  context.moveTo(x, frame.y);
  context.lineTo(x, y - openY);
  context.moveTo(x, y + openY);
  context.lineTo(x, frame.y + frame.height);
  context.stroke();
  context.restore();
}

/** Write the plane and the number of the cut. */
export function paintTitle(context: CanvasRenderingContext2D, frame: Frame, { plane, at }: Cut): void {
  const name = plane.name.charAt(0).toUpperCase() + plane.name.slice(1);
  write(context, `${name} ${at + 1}`, frame.x + 10, frame.y + 18);
}
