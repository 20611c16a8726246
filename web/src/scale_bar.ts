/** The scale bar of a picture: a round length in mm. */

import { type Frame, panel, write } from "./picture";

const STEPS = [1, 2, 5];

/** Return the longest of 1, 2, 5, 10, 20, 50 ... mm (or tenths of mm) that is not longer than `mm`. */
export function roundLength(mm: number): number {
  const power = 10 ** Math.floor(Math.log10(mm));
  return power * Math.max(...STEPS.filter((step) => step * power <= mm * (1 + 1e-9)));
}

/**
 * Paint the scale bar at the bottom right of a frame, at most a third as wide as the frame.
 *
 * @param mmPerPixel distance between columns of the slice in mm
 * @param spare free space at the right edge in screen pixels
 */
export function paintScaleBar(context: CanvasRenderingContext2D, frame: Frame, mmPerPixel: number, spare = 0): void {
  const onScreen = frame.scaleX / mmPerPixel; // screen pixels per mm
  const mm = roundLength(Math.min(frame.width / 3, 160) / onScreen);
  const width = mm * onScreen;
  const text = `${Number(mm.toPrecision(1))} mm`;
  const isSmall = frame.width < 200;
  const room = Math.max(width, 8 * text.length) + (isSmall ? 4 : 20);
  const [right, bottom] = [frame.x + frame.width - spare - (isSmall ? 2 : 8), frame.y + frame.height - (isSmall ? 0 : 8)];
  const middle = right - room / 2;
  if (!isSmall) panel(context, right - room, bottom - 30, room, 30);
  write(context, text, middle, bottom - 14, "center");
  context.fillStyle = "rgb(235 238 242)";
  context.fillRect(middle - width / 2, bottom - 9, width, 2);
  for (const end of [middle - width / 2, middle + width / 2]) context.fillRect(end - 0.5, bottom - 12, 1, 8);
}
