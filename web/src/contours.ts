/** Outlines of masks. */

import type { Patch } from "./planes";

/**
 * Return the outline of a label as closed lines in pixels of the slice: x to the right, y down, pixel centres at .5.
 *
 * Marching squares on the mask, halfway between pixels inside and outside; pixels that touch
 * only at a corner are separated.
 */
export function outline({ box, values }: Patch, label: number): Path2D {
  const { width, height } = box;
  const inside = (row: number, column: number): number =>
    row >= 0 && column >= 0 && row < height && column < width && values[row * width + column] === label ? 1 : 0;
  const stride = 2 * width + 4;
  const key = (row: number, column: number): number => (row + 2) * stride + (column + 2); // in half pixels
  const next = new Map<number, number>();
  for (let row = -1; row < height; row++) {
    for (let column = -1; column < width; column++) {
      const corners =
        inside(row, column) | (inside(row, column + 1) << 1) | (inside(row + 1, column + 1) << 2) | (inside(row + 1, column) << 3);
      if (corners === 0 || corners === 15) continue;
      const sides = [
        key(2 * row, 2 * column + 1), // top
        key(2 * row + 1, 2 * column + 2), // right
        key(2 * row + 2, 2 * column + 1), // bottom
        key(2 * row + 1, 2 * column), // left
      ];
      for (const [from, to] of SEGMENTS[corners]!) next.set(sides[from]!, sides[to]!);
    }
  }
  const path = new Path2D();
  while (next.size) {
    let [place] = next.keys();
    const line: [number, number][] = [];
    for (let after = next.get(place!); after !== undefined; after = next.get(place!)) {
      next.delete(place!);
      line.push([(place! % stride) / 2 - 0.5 + box.column, Math.floor(place! / stride) / 2 - 0.5 + box.row]);
      place = after;
    }
    addRounded(path, line);
  }
  return path;
}

/** Add a closed line with rounded corners, through the midpoint of every segment. */
function addRounded(path: Path2D, line: [number, number][]): void {
  const last = line[line.length - 1]!;
  path.moveTo((last[0] + line[0]![0]) / 2, (last[1] + line[0]![1]) / 2);
  line.forEach(([x, y], n) => {
    const [nextX, nextY] = line[(n + 1) % line.length]!;
    path.quadraticCurveTo(x, y, (x + nextX) / 2, (y + nextY) / 2);
  });
  path.closePath();
}

/** Segments by the corners inside the mask (1 top left, 2 top right, 4 bottom right, 8 bottom left), with the inside on the right. */
const SEGMENTS: [number, number][][] = (() => {
  const [top, right, bottom, left] = [0, 1, 2, 3];
  return [
    [],
    [[top, left]],
    [[right, top]],
    [[right, left]],
    [[bottom, right]],
    [[top, left], [bottom, right]],
    [[bottom, top]],
    [[bottom, left]],
    [[left, bottom]],
    [[top, bottom]],
    [[right, top], [left, bottom]],
    [[right, bottom]],
    [[left, right]],
    [[top, right]],
    [[left, top]],
    [],
  ] as [number, number][][];
})();
