/** The result of a click so far. S samples, K classes, L levels, N parts of the noise; masks cover a box of a slice. */

import type { Box, CaseScores, StreamedMessage, Numbers, PredictionRequest } from "./api";
import { unpack } from "./api";

/** Values (h, w) in a box of a slice. */
export interface Patch {
  box: Box;
  values: Uint8Array;
}

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
  first: number;
  number: number;
  box: Box;
  /** (S, slices, h, w). */
  labels: Uint8Array;
  /** (K-1, slices, h, w). */
  means: Uint8Array;
}

export class Result {
  readonly request: PredictionRequest;
  /** Changes with every message. */
  version = 0;
  /** Samples of the clicked slice, (h, w) each. */
  samples: Uint8Array[] = [];
  sampleBox: Box | null = null;
  summary: Summary | null = null;
  numbers: Numbers | null = null;
  lesion: Lesion | null = null;
  scores: CaseScores | null = null;
  /** Set when the result is complete. */
  id: string | null = null;

  private drawn: number[] = [];
  private drawnAt = -1;

  constructor(request: PredictionRequest) {
    this.request = request;
  }

  get slice(): number {
    return this.request.point[0];
  }

  /** The slices with a result. */
  get slices(): number[] {
    if (!this.lesion) return [this.slice];
    return Array.from({ length: this.lesion.number }, (_, place) => this.lesion!.first + place);
  }

  /** The slices in which a sample is not empty; the clicked slice if there is none. */
  drawnSlices(): number[] {
    if (this.drawnAt !== this.version) {
      const isDrawn = (slice: number): boolean => this.samples.some((_, sample) => this.labelsAt(sample, slice)?.values.some(Boolean));
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
      const gamma = await unpack(message.gamma);
      const shares = message.level_shares === null ? null : await unpack(message.level_shares);
      this.summary = {
        box: message.box,
        means: await unpack(message.mean_probs),
        gamma,
        gammaMax: message.gamma_max,
        shares,
        contributions: shares && shares.map((share, n) => (share * gamma[n % gamma.length]!) / 255),
        outputs: message.level_outputs === null ? null : await unpack(message.level_outputs),
      };
    } else if (message.type === "numbers") {
      this.numbers = message;
    } else if (message.type === "volume") {
      this.lesion = {
        first: message.first_slice,
        number: message.num_slices,
        box: message.box,
        labels: await unpack(message.labels),
        means: await unpack(message.mean_probs),
      };
    } else if (message.type === "scores") {
      this.scores = message;
    } else if (message.type === "done") {
      this.id = message.id;
    }
    this.version += 1;
  }

  labelsAt(sample: number, slice: number): Patch | null {
    if (slice === this.slice && this.sampleBox) {
      const values = this.samples[sample];
      return values ? { box: this.sampleBox, values } : null;
    }
    const place = this.placeOf(slice);
    if (place === null || !this.lesion) return null;
    const { box, labels, number } = this.lesion;
    const values = part(labels, sample * number + place, box.height * box.width);
    return values.length ? { box, values } : null;
  }

  /** Return the mean probability of a class; 1 is the first foreground class. */
  meanAt(slice: number, label: number): Patch | null {
    const place = this.placeOf(slice);
    if (slice !== this.slice && place !== null && this.lesion) {
      const { box, means, number } = this.lesion;
      return { box, values: part(means, (label - 1) * number + place, box.height * box.width) };
    }
    if (slice !== this.slice || !this.summary) return null;
    const { box, means } = this.summary;
    return { box, values: part(means, label - 1, box.height * box.width) };
  }

  gammaAt(slice: number): Patch | null {
    return slice === this.slice && this.summary ? { box: this.summary.box, values: this.summary.gamma } : null;
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

  private placeOf(slice: number): number | null {
    const place = slice - (this.lesion?.first ?? 0);
    return this.lesion && place >= 0 && place < this.lesion.number ? place : null;
  }
}

/** Return the value at a pixel of the slice, or null outside the box. */
export function valueAt(patch: Patch | null, row: number, column: number): number | null {
  if (!patch) return null;
  const [down, right] = [row - patch.box.row, column - patch.box.column];
  if (down < 0 || right < 0 || down >= patch.box.height || right >= patch.box.width) return null;
  return patch.values[down * patch.box.width + right] ?? null;
}

function part(values: Uint8Array, number: number, size: number): Uint8Array {
  return values.subarray(number * size, (number + 1) * size);
}
