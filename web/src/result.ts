/** The result of a click so far. S samples, K classes, L levels, N parts of the noise; masks cover a box of a slice. */

import type { Box, CaseScores, Numbers, Point, PredictionRequest, ScanInfo, StreamedMessage } from "./api";
import { unpack } from "./api";
import { type Block, type Cut, type Patch, cutBlock } from "./planes";

interface Summary {
  box: Box;
  /** (K-1, h, w). */
  means: Uint8Array;
  /** (h, w), 255 for `gammaMax`. */
  gamma: Uint8Array;
  gammaMax: number;
  /** (N, h, w). */
  shares: Uint8Array | null;
  /** (N, h, w), shares of gamma, on its scale. */
  contributions: Uint8Array | null;
  /** (L, h, w), fine to coarse. */
  outputs: Uint8Array | null;
}

interface Lesion {
  start: Point;
  /** Slices, h and w. */
  size: Point;
  /** (S, slices, h, w). */
  labels: Uint8Array;
  /** (K-1, slices, h, w). */
  means: Uint8Array;
  /** (slices, h, w), 255 for `gammaMax`. */
  gamma: Uint8Array;
  gammaMax: number;
}

export class Result {
  readonly request: PredictionRequest;
  readonly scan: ScanInfo;
  /** Changes with every message. */
  version = 0;
  /** Samples of the clicked slice, (h, w) each. */
  samples: Uint8Array[] = [];
  sampleBox: Box | null = null;
  summary: Summary | null = null;
  numbers: Numbers | null = null;
  /** Share of each part of the noise in the uncertainty of the clicked slice. */
  levelTotals: Record<string, number> | null = null;
  lesion: Lesion | null = null;
  scores: CaseScores | null = null;
  /** Set when the result is complete. */
  id: string | null = null;

  private drawn: number[] = [];
  private drawnAt = -1;
  private readonly cuts = new Map<string, Patch | null>();

  constructor(request: PredictionRequest, scan: ScanInfo) {
    this.request = request;
    this.scan = scan;
  }

  get slice(): number {
    return this.request.point[0];
  }

  /** The slices with a result. */
  get slices(): number[] {
    if (!this.lesion) return [this.slice];
    const { start, size } = this.lesion;
    return Array.from({ length: size[0] }, (_, place) => start[0] + place);
  }

  /** The slices in which a sample is not empty; the clicked slice if there is none. */
  drawnSlices(): number[] {
    if (this.drawnAt !== this.version) {
      const isDrawn = (slice: number): boolean => this.samples.some((_, sample) => this.labelsAt(sample, this.cutAt(slice))?.values.some(Boolean));
      const drawn = this.slices.filter(isDrawn);
      [this.drawn, this.drawnAt] = [drawn.length ? drawn : [this.slice], this.version];
    }
    return this.drawn;
  }

  /** Process a message of the server. */
  async add(message: StreamedMessage): Promise<void> {
    if (message.type === "samples") {
      const all = await unpack(message.labels);
      const size = message.box.height * message.box.width;
      this.sampleBox = message.box;
      for (let n = 0; n < message.number; n++) this.samples[message.first + n] = part(all, n, size);
    } else if (message.type === "slice") {
      const [means, gamma] = [await unpack(message.mean_probs), await unpack(message.gamma)];
      this.summary = { box: message.box, means, gamma, gammaMax: message.gamma_max, shares: null, contributions: null, outputs: null };
    } else if (message.type === "levels") {
      const summary = this.summary!;
      const { gamma } = summary;
      const shares = message.shares === null ? null : await unpack(message.shares);
      const contributions = shares && shares.map((share, n) => (share * gamma[n % gamma.length]!) / 255);
      const outputs = message.outputs === null ? null : await unpack(message.outputs);
      this.summary = { ...summary, shares, contributions, outputs };
      this.levelTotals = message.totals;
    } else if (message.type === "numbers") {
      this.numbers = message;
    } else if (message.type === "volume") {
      this.lesion = {
        start: [message.first_slice, message.box.row, message.box.column],
        size: [message.num_slices, message.box.height, message.box.width],
        labels: await unpack(message.labels),
        means: await unpack(message.mean_probs),
        gamma: await unpack(message.gamma),
        gammaMax: message.gamma_max,
      };
    } else if (message.type === "scores") {
      this.scores = message;
    } else if (message.type === "done") {
      this.id = message.id;
    }
    this.version += 1;
  }

  /** A slice in the plane of the model. */
  cutAt(slice: number): Cut {
    return { plane: this.scan.planes[0]!, at: slice };
  }

  /** The largest value of the gamma map. */
  get gammaMax(): number {
    return (this.lesion ?? this.summary)?.gammaMax ?? 0;
  }

  labelsAt(sample: number, cut: Cut): Patch | null {
    if (this.isClicked(cut) && this.sampleBox) {
      const values = this.samples[sample];
      return values ? { box: this.sampleBox, values } : null;
    }
    return this.lesionAt("labels", sample, cut);
  }

  /** Return the mean probability of a class; 1 is the first foreground class. */
  meanAt(cut: Cut, label: number): Patch | null {
    if (this.isClicked(cut) && this.summary) return this.summaryPatch(this.summary.means, label - 1);
    return this.lesionAt("means", label - 1, cut);
  }

  /** Return the gamma map, 255 for `gammaMax`. */
  gammaAt(cut: Cut): Patch | null {
    if (this.lesion) return this.lesionAt("gamma", 0, cut);
    return this.isClicked(cut) && this.summary ? this.summaryPatch(this.summary.gamma, 0) : null;
  }

  /** Return the probability of any foreground after a level of the first sample; null for other parts of the noise, which have no image. */
  outputOf(level: number): Patch | null {
    return this.summary?.outputs ? this.summaryPatch(this.summary.outputs, level) : null;
  }

  /** Return the share of a part of the noise in the uncertainty. */
  shareOf(cause: number): Patch | null {
    return this.summary?.shares ? this.summaryPatch(this.summary.shares, cause) : null;
  }

  /** Return what a part of the noise contributes to gamma, on the scale of gamma. */
  contributionOf(cause: number): Patch | null {
    return this.summary?.contributions ? this.summaryPatch(this.summary.contributions, cause) : null;
  }

  private summaryPatch(all: Uint8Array, number: number): Patch | null {
    const { box } = this.summary!;
    const values = part(all, number, box.height * box.width);
    return values.length ? { box, values } : null;
  }

  private isClicked({ plane, at }: Cut): boolean {
    return plane === this.scan.planes[0] && at === this.slice;
  }

  /** Return a cut through one of the arrays of the lesion. */
  private lesionAt(what: "labels" | "means" | "gamma", number: number, cut: Cut): Patch | null {
    if (!this.lesion) return null;
    const { start, size } = this.lesion;
    const key = [what, number, cut.plane.axes[0], cut.at].join(" ");
    if (!this.cuts.has(key)) {
      const block: Block = { start, size, values: part(this.lesion[what], number, size[0] * size[1] * size[2]) };
      this.cuts.set(key, block.values.length ? cutBlock(this.scan, block, cut) : null);
    }
    return this.cuts.get(key)!;
  }
}

function part(values: Uint8Array, number: number, size: number): Uint8Array {
  return values.subarray(number * size, (number + 1) * size);
}
