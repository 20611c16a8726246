/** The messages between page and server. Written by generate_types.py: do not edit. */

/** Where an array lies in a slice. */
export interface Box {
  row: number;
  column: number;
  height: number;
  width: number;
}

/** How the samples compare with the annotators of a case. */
export interface CaseScores {
  type: "scores";
  ged: number | null;
  ged_floor: number | null;
  s_ncc: number | null;
  dice: number | null;
}

/** What the samples say about one class. */
export interface ClassNumbers {
  /** Share of the samples that contain the class. */
  present: number;
  /** Over all samples; one without the class counts as zero. */
  volume_ml: Spread;
  /** Over all samples; one without the class counts as zero. */
  diameter_mm: Spread;
  /** Over the samples that contain the class; null if there are none. */
  volume_ml_if_present: Spread | null;
  /** Over the samples that contain the class; null if there are none. */
  diameter_mm_if_present: Spread | null;
}

/** Everything was sent; `id` names the prediction for exports. */
export interface Done {
  type: "done";
  id: string;
}

/** Why nothing more comes. */
export interface Failed {
  type: "error";
  message: string;
}

/** The samples through all slices of the lesion; of a model of whole slices through all of a small scan. In a large
 *  scan, such a model looks at the clicked slice alone. */
export interface LesionSlices {
  type: "volume";
  first_slice: number;
  num_slices: number;
  box: Box;
  /** uint8 (S, slices, h, w). */
  labels: string;
  /** uint8 (K-1, slices, h, w). */
  mean_probs: string;
}

/** What is done to one part of the noise: to a latent level, or to the choice of an ensemble's member. */
export interface LevelControl {
  /** Another number redraws this part and no other. */
  seed: number;
  /** All samples share the noise of the first one. */
  hold: boolean;
  /** Factor on the noise of a level; 1 for a member. */
  temperature: number;
}

/** The model that draws. */
export interface ModelInfo {
  name: string;
  /** The background first. */
  classes: string[];
  /** Latent levels L; 0 for a model without a hierarchy. */
  num_levels: number;
  /** The N parts of the noise, which can be held and redrawn one by one: the levels, fine to coarse, which have a
   *  temperature as well, and then, for an ensemble, the member; none without a hierarchy. */
  noise_names: string[];
  /** What one has to click on; null for a model that takes a slice as a whole. */
  centred_on: string | null;
  size: [number, number];
  /** Values that the model takes as its darkest and brightest; null where images are z-scored. */
  window: [number, number] | null;
}

/** What the samples say about the whole lesion, or the whole scan. */
export interface Numbers {
  type: "numbers";
  classes: Record<string, ClassNumbers>;
  mean_gamma: number;
  agreement: number;
  /** Share of the samples that are cut off by the crop, by the reach or by the end of the scan: too small. */
  truncated: number;
  /** The share of each of `ModelInfo.noise_names` in the uncertainty of the clicked slice. */
  level_shares: Record<string, number> | null;
  /** Why the image around the point does not look like a training image; null if it does, or if the model does not
   *  state what its training images look like. */
  doubt: string | null;
}

/** The annotators' masks of a case. */
export interface PackedAnnotations {
  annotators: string[];
  /** uint8 (A, height, width), of the only slice of a case; null for a scan. */
  labels: string | null;
}

/** Where to look and how to sample. */
export interface PredictionRequest {
  scan: string;
  /** Slice, row, column. */
  point: [number, number, number];
  num_samples: number;
  seed: number;
  /** One for each of `ModelInfo.noise_names`; empty: all as they are. */
  levels: LevelControl[];
}

/** How many others are served first. */
export interface Queued {
  type: "queued";
  ahead: number;
}

/** Some samples of the clicked slice. */
export interface Samples {
  type: "samples";
  first: number;
  number: number;
  box: Box;
  /** uint8 (number, h, w), class indices. */
  labels: string;
}

/** A scan, or a case of a prepared dataset, as slices in the model's plane. */
export interface ScanInfo {
  id: string;
  name: string;
  num_slices: number;
  height: number;
  width: number;
  /** From slice to slice, row to row and column to column. */
  spacing_mm: [number, number, number];
  has_spacing: boolean;
  plane: string;
  value_range: [number, number];
  /** To begin with. */
  window: [number, number];
  /** Whose masks are known; none for a scan. */
  annotators: string[];
  /** Slice, row and column to look at first: the middle, or the lesion of the example. */
  start: [number, number, number];
  /** What the user should know of the scan, one line each. */
  warnings: string[];
}

/** What the page needs to begin. */
export interface SessionInfo {
  version: string;
  model: ModelInfo;
  /** The first scan, if there is one. */
  scans: ScanInfo[];
  /** All of them: the name of each id. */
  scan_names: Record<string, string>;
  max_samples: number;
  max_upload_bytes: number;
  max_scans: number;
}

/** All samples of the clicked slice together. */
export interface SliceSummary {
  type: "slice";
  box: Box;
  /** uint8 (K-1, h, w), 255 for a probability of 1. */
  mean_probs: string;
  /** uint8 (h, w), 255 for `gamma_max`. */
  gamma: string;
  gamma_max: number;
  /** uint8 (N, h, w), the share of each of `ModelInfo.noise_names` in the uncertainty of a pixel, 255 for all. */
  level_shares: string | null;
  /** uint8 (L, h, w), the probability of any foreground after each level of the first sample, fine to coarse. */
  level_outputs: string | null;
}

/** A quantity over the samples. */
export interface Spread {
  median: number;
  low: number;
  high: number;
  samples: number[];
}

/** One line of the answer to a prediction request. */
export type StreamedMessage = Queued | Samples | SliceSummary | Numbers | LesionSlices | CaseScores | Done | Failed;

export type ExportWhat = "sample" | "mean" | "labels" | "gamma" | "numbers";

export type ExportKind = "nifti" | "seg" | "json";
