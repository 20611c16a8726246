/** Slices of a scan, loaded on demand and converted to grey images. */

import type { Pair, ScanInfo } from "./api";
import { getSlice } from "./api";

const KEPT = 128;
const AHEAD = 3; // and the same number behind

export class Slices {
  readonly scan: ScanInfo;
  private readonly values = new Map<number, Float32Array>();
  private readonly pictures = new Map<string, HTMLCanvasElement>();
  private readonly asked = new Set<number>();
  private kept = KEPT;
  private readonly onArrival: () => void;
  private readonly onError: (error: unknown) => void;

  constructor(scan: ScanInfo, onArrival: () => void, onError: (error: unknown) => void) {
    this.scan = scan;
    this.onArrival = onArrival;
    this.onError = onError;
  }

  /** Set the minimum cache size: the slices shown at once and their neighbours, which would otherwise be loaded again. */
  reserve(number: number): void {
    this.kept = Math.max(this.kept, Math.min(number * (1 + 2 * AHEAD), this.scan.num_slices));
  }

  /** Return a slice as a grey image, or null while it is loading. */
  picture(number: number, window: Pair): HTMLCanvasElement | null {
    const values = this.get(number);
    if (!values) return null;
    const key = `${number} ${window.join(" ")}`;
    let picture = this.pictures.get(key);
    if (!picture) {
      picture = grey(values, this.scan.width, this.scan.height, window);
      this.pictures.set(key, picture);
      if (this.pictures.size > this.kept) forgetOldest(this.pictures);
    }
    return picture;
  }

  valueAt(number: number, row: number, column: number): number | null {
    return this.values.get(number)?.[row * this.scan.width + column] ?? null;
  }

  /** Load a slice, then its neighbours. */
  private get(number: number): Float32Array | null {
    const found = this.values.get(number);
    if (!found) void this.fetch(number);
    return found ?? null;
  }

  private async fetch(number: number, ahead = AHEAD): Promise<void> {
    if (number < 0 || number >= this.scan.num_slices || this.values.has(number) || this.asked.has(number)) return;
    this.asked.add(number);
    try {
      this.values.set(number, await getSlice(this.scan.id, number));
      if (this.values.size > this.kept) forgetOldest(this.values);
      this.asked.delete(number);
      if (ahead === AHEAD) this.onArrival();
      for (let step = 1; ahead === AHEAD && step <= AHEAD; step++) {
        await Promise.all([this.fetch(number + step, 0), this.fetch(number - step, 0)]);
      }
    } catch (error) {
      this.onError(error); // the slice stays requested, so that a failure is reported once
    }
  }
}

function grey(values: Float32Array, width: number, height: number, [low, high]: Pair): HTMLCanvasElement {
  const picture = document.createElement("canvas");
  picture.width = width;
  picture.height = height;
  const context = picture.getContext("2d")!;
  const image = context.createImageData(width, height);
  const scale = 255 / Math.max(high - low, 1e-6);
  for (let n = 0; n < values.length; n++) {
    const shade = (values[n]! - low) * scale;
    image.data[4 * n] = shade;
    image.data[4 * n + 1] = shade;
    image.data[4 * n + 2] = shade;
    image.data[4 * n + 3] = 255;
  }
  context.putImageData(image, 0, 0);
  return picture;
}

function forgetOldest<K, V>(map: Map<K, V>): void {
  const [oldest] = map.keys();
  map.delete(oldest!);
}
