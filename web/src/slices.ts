/** Cuts through a scan, loaded on demand and converted to images. */

import type { Pair, ScanInfo } from "./api";
import { getSlice } from "./api";
import { type Cut, gridOf, wholeCut } from "./planes";

const KEPT = 128;
const AHEAD = 3; // and the same number behind

export class Slices {
  readonly scan: ScanInfo;
  private readonly values = new Map<string, Float32Array>();
  private readonly pictures = new Map<string, HTMLCanvasElement>();
  private readonly asked = new Set<string>();
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

  /** Return a cut as an image, or null while it is loading. */
  picture(cut: Cut, window: Pair): HTMLCanvasElement | null {
    const values = this.get(cut);
    if (!values) return null;
    const key = `${keyOf(cut)} ${window.join(" ")}`;
    let picture = this.pictures.get(key);
    if (!picture) {
      const { height, width } = wholeCut(this.scan, cut.plane);
      picture = toImage(values, width, height, window, this.channels);
      this.pictures.set(key, picture);
      if (this.pictures.size > this.kept) forgetOldest(this.pictures);
    }
    return picture;
  }

  /** Return the value of each channel, or null if the cut is not loaded. */
  valuesAt(cut: Cut, row: number, column: number): number[] | null {
    const values = this.values.get(keyOf(cut));
    if (!values) return null;
    const first = (row * wholeCut(this.scan, cut.plane).width + column) * this.channels;
    return [...values.subarray(first, first + this.channels)];
  }

  private get channels(): number {
    return this.scan.has_colours ? 3 : 1;
  }

  /** Load a cut, then its neighbours. */
  private get(cut: Cut): Float32Array | null {
    const found = this.values.get(keyOf(cut));
    if (!found) void this.fetch(cut);
    return found ?? null;
  }

  private async fetch(cut: Cut, ahead = AHEAD): Promise<void> {
    const { plane, at } = cut;
    const key = keyOf(cut);
    if (at < 0 || at >= gridOf(this.scan)[plane.axes[0]]! || this.values.has(key) || this.asked.has(key)) return;
    this.asked.add(key);
    try {
      this.values.set(key, await getSlice(this.scan.id, this.scan.planes.indexOf(plane), at));
      if (this.values.size > this.kept) forgetOldest(this.values);
      this.asked.delete(key);
      if (ahead === AHEAD) this.onArrival();
      for (let step = 1; ahead === AHEAD && step <= AHEAD; step++) {
        await Promise.all([this.fetch({ plane, at: at + step }, 0), this.fetch({ plane, at: at - step }, 0)]);
      }
    } catch (error) {
      this.onError(error); // the cut stays requested, so that a failure is reported once
    }
  }
}

function keyOf({ plane, at }: Cut): string {
  return `${plane.axes[0]} ${at}`;
}

/** Convert values (height, width, channels) to an image: grey, or red, green and blue. */
function toImage(values: Float32Array, width: number, height: number, [low, high]: Pair, channels: number): HTMLCanvasElement {
  const picture = document.createElement("canvas");
  picture.width = width;
  picture.height = height;
  const context = picture.getContext("2d")!;
  const image = context.createImageData(width, height);
  const scale = 255 / Math.max(high - low, 1e-6);
  for (let n = 0; n < width * height; n++) {
    for (let colour = 0; colour < 3; colour++) {
      image.data[4 * n + colour] = (values[n * channels + (colour % channels)]! - low) * scale;
    }
    image.data[4 * n + 3] = 255;
  }
  context.putImageData(image, 0, 0);
  return picture;
}

function forgetOldest<K, V>(map: Map<K, V>): void {
  const [oldest] = map.keys();
  map.delete(oldest!);
}
