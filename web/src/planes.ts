/** Cuts through a scan in three planes, and the same cuts through arrays on a part of its grid. */

import type { Box, PlaneInfo, Point, ScanInfo } from "./api";

/** A picture of the scan: voxel number `at` along the axis across the plane. */
export interface Cut {
  plane: PlaneInfo;
  at: number;
}

/** Values (h, w) in a box of a cut. */
export interface Patch {
  box: Box;
  values: Uint8Array;
}

/** Values on a part of the grid of the scan, in the order of slices, rows and columns. */
export interface Block {
  start: Point;
  size: Point;
  values: Uint8Array;
}

/** Number of voxels along slices, rows and columns. */
export function gridOf({ num_slices: slices, height, width }: ScanInfo): Point {
  return [slices, height, width];
}

/** The box of a whole cut. */
export function wholeCut(scan: ScanInfo, { axes: [, down, right] }: PlaneInfo): Box {
  const grid = gridOf(scan);
  return { row: 0, column: 0, height: grid[down]!, width: grid[right]! };
}

/** Return the distances in mm between rows and columns of a plane. */
export function spacingOf(scan: ScanInfo, { axes: [, down, right] }: PlaneInfo): [number, number] {
  return [scan.spacing_mm[down]!, scan.spacing_mm[right]!];
}

/** Return the row and column of a voxel in the cuts of a plane. */
export function toPlane(scan: ScanInfo, { axes, flipped }: PlaneInfo, point: readonly number[]): [number, number] {
  const grid = gridOf(scan);
  const place = (n: 0 | 1): number => {
    const axis = axes[n + 1]!;
    return flipped[n] ? grid[axis]! - 1 - point[axis]! : point[axis]!;
  };
  return [place(0), place(1)];
}

/** Return the voxel at a row and column of a cut. */
export function fromPlane(scan: ScanInfo, { plane, at }: Cut, row: number, column: number): Point {
  const grid = gridOf(scan);
  const point: Point = [at, at, at];
  [row, column].forEach((place, n) => {
    const axis = plane.axes[n + 1]!;
    point[axis] = plane.flipped[n] ? grid[axis]! - 1 - place : place;
  });
  return point;
}

/** Return the cut through a block, or null if it is beside it. */
export function cutBlock(scan: ScanInfo, { start, size, values }: Block, { plane, at }: Cut): Patch | null {
  const [across, down, right] = plane.axes as [number, number, number];
  const place = at - start[across]!;
  if (place < 0 || place >= size[across]!) return null;
  const [height, width] = [size[down]!, size[right]!];
  const grid = gridOf(scan);
  const first = (axis: number, isFlipped: boolean): number => (isFlipped ? grid[axis]! - start[axis]! - size[axis]! : start[axis]!);
  const box = { row: first(down, plane.flipped[0]), column: first(right, plane.flipped[1]), height, width };
  if (across === 0 && down === 1) return { box, values: values.subarray(place * height * width, (place + 1) * height * width) };
  const strides = [size[1]! * size[2]!, size[2]!, 1];
  const picture = new Uint8Array(height * width);
  for (let row = 0; row < height; row++) {
    const [y, x0] = [plane.flipped[0] ? height - 1 - row : row, place * strides[across]!];
    for (let column = 0; column < width; column++) {
      const x = plane.flipped[1] ? width - 1 - column : column;
      picture[row * width + column] = values[x0 + y * strides[down]! + x * strides[right]!]!;
    }
  }
  return { box, values: picture };
}

/** Return the value at a row and column of a cut, or null outside the box. */
export function valueAt(patch: Patch | null, row: number, column: number): number | null {
  if (!patch) return null;
  const [down, right] = [row - patch.box.row, column - patch.box.column];
  if (down < 0 || right < 0 || down >= patch.box.height || right >= patch.box.width) return null;
  return patch.values[down * patch.box.width + right] ?? null;
}
