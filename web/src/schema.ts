/** The messages between page and server. Written by generate_types.py: do not edit. */

/** Position of an array in a slice. */
export interface Box {
  row: number;
  column: number;
  height: number;
  width: number;
}

/** Scores of the samples against the annotations of a case. */
export interface CaseScores {
  type: "scores";
  ged: number | null;
  ged_floor: number | null;
  s_ncc: number | null;
  dice: number | null;
}

/** Measurements of one class. */
export interface ClassNumbers {
  /** Share of the samples that contain the class. */
  present: number;
  /** Volume or area over all samples; one without the class counts as zero. */
  size: Spread;
  /** Over all samples; one without the class counts as zero. */
  diameter: Spread;
  /** Over the samples that contain the class; null if there are none. */
  size_if_present: Spread | null;
  /** Over the samples that contain the class; null if there are none. */
  diameter_if_present: Spread | null;
}

/** End of the answer; `id` identifies the prediction for exports. */
export interface Done {
  type: "done";
  id: string;
}

/** Error that ends the answer. */
export interface Failed {
  type: "error";
  message: string;
}

/** The samples in all slices of the lesion or, for a whole-slice model, in all slices of a small scan. In a large
 *  scan, such a model predicts only the clicked slice. */
export interface LesionSlices {
  type: "volume";
  first_slice: number;
  num_slices: number;
  box: Box;
  /** uint8 (S, slices, h, w). */
  labels: string;
  /** uint8 (K-1, slices, h, w). */
  mean_probs: string;
  /** uint8 (slices, h, w) gamma map; 255 is `gamma_max`. */
  gamma: string;
  gamma_max: number;
}

/** Settings of one part of the noise: a latent level, the presence, or the member of an ensemble. */
export interface LevelControl {
  /** Seed of this part; another number redraws only this part. */
  seed: number;
  /** Use the noise of the first sample for all samples. */
  hold: boolean;
  /** Factor on the noise of a level; 1 for other parts. */
  temperature: number;
}

/** The levels in the clicked slice, in the box of `SliceSummary`; not sent for a model without levels. */
export interface LevelSummary {
  type: "levels";
  /** uint8 (N, h, w) share of each of `ModelInfo.noise_names` in the uncertainty of a pixel; 255 is 100 %. null if
   *  there is only one. */
  shares: string | null;
  /** Share of each of `ModelInfo.noise_names` in the uncertainty of the slice. */
  totals: Record<string, number> | null;
  /** uint8 (L, h, w) foreground probability after each level of the first sample, fine to coarse. */
  outputs: string | null;
}

/** A scan in the list of the page. */
export interface ListedScan {
  id: string;
  name: string;
  /** Split of a case of a prepared dataset; null for other scans. */
  split: string | null;
}

/** The model of the viewer. */
export interface ModelInfo {
  name: string;
  /** 2 for a model of slices, 3 for a model of volumes. */
  dims: number;
  /** Class names, background first. */
  classes: string[];
  /** Latent levels L; 0 for a model without a hierarchy. */
  num_levels: number;
  /** Names of the N parts of the noise that can be held and redrawn separately: the levels, fine to coarse, which
   *  also have a temperature, then `presence` and `member` (of an ensemble), if any; empty without a hierarchy. */
  noise_names: string[];
  /** Object to click on; null for a whole-slice model. */
  centred_on: string | null;
  size: [number, number];
  /** Darkest and brightest value of the intensity window; null if images are z-scored. */
  window: [number, number] | null;
}

/** Measurements of the whole lesion or scan. */
export interface Numbers {
  type: "numbers";
  classes: Record<string, ClassNumbers>;
  /** Pixels of an area or voxels of a volume if the pixel size is unknown. */
  size_unit: "ml" | "px" | "voxels";
  length_unit: "mm" | "px";
  mean_gamma: number;
  agreement: number;
  /** Share of the samples that are cut off by the crop, the reach or the end of the scan and may be too small. */
  truncated: number;
  /** Why the image around the point does not look like a training image; null if it does, or if the model does not
   *  state what its training images look like. */
  unusual: string | null;
}

/** The annotations of a case. */
export interface PackedAnnotations {
  annotators: string[];
  /** uint8 (A, slices, height, width) of a case; null for a scan. */
  labels: string | null;
}

/** A plane through a scan, in radiological display convention. */
export interface PlaneInfo {
  name: string;
  /** Axes of the scan (0 slices, 1 rows, 2 columns) across the plane, down and to the right. */
  axes: [number, number, number];
  /** Whether the axis down and the axis to the right are shown in reverse. */
  flipped: [boolean, boolean];
}

/** Point and sampling settings of a prediction. */
export interface PredictionRequest {
  scan: string;
  /** Slice, row and column of the point. */
  point: [number, number, number];
  num_samples: number;
  seed: number;
  /** Settings for each of `ModelInfo.noise_names`; empty for no changes. */
  levels: LevelControl[];
}

/** Position in the queue. */
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
  /** uint8 (number, h, w) class indices. */
  labels: string;
}

/** A scan, or a case of a prepared dataset, as slices in the plane of the model. */
export interface ScanInfo {
  id: string;
  name: string;
  num_slices: number;
  height: number;
  width: number;
  /** Distances in mm between slices, rows and columns. */
  spacing_mm: [number, number, number];
  has_spacing: boolean;
  /** Whether the scan is a DICOM series, to which a DICOM SEG can refer. */
  is_dicom: boolean;
  /** Split of a case of a prepared dataset; null for other scans. */
  split: string | null;
  /** Start of the names of exported files. */
  file_stem: string;
  /** Whether the three channels are red, green and blue. Otherwise, the first channel is shown. */
  has_colours: boolean;
  plane: string;
  /** The plane of the model and the two others. */
  planes: [PlaneInfo, PlaneInfo, PlaneInfo];
  value_range: [number, number];
  /** Initial intensity window. */
  window: [number, number];
  /** Names of the annotators; empty for a scan. */
  annotators: string[];
  /** Slice, row and column to show first: the centre, or the lesion of the example. */
  start: [number, number, number];
  /** Warnings about the scan, one line each. */
  warnings: string[];
}

/** Initial data of the page. */
export interface SessionInfo {
  version: string;
  model: ModelInfo;
  /** The first scan that can be read. */
  scans: ScanInfo[];
  /** All scans. The cases of a dataset start with the test split. */
  listed: ListedScan[];
  max_samples: number;
  max_upload_bytes: number;
  max_scans: number;
}

/** Summary of all samples of the clicked slice. */
export interface SliceSummary {
  type: "slice";
  box: Box;
  /** uint8 (K-1, h, w) mean probabilities; 255 is a probability of 1. */
  mean_probs: string;
  /** uint8 (h, w) gamma map; 255 is `gamma_max`. */
  gamma: string;
  gamma_max: number;
}

/** Distribution of a quantity over the samples. */
export interface Spread {
  median: number;
  low: number;
  high: number;
  samples: number[];
}

/** One line of the answer to a prediction request. */
export type StreamedMessage = Queued | Samples | SliceSummary | Numbers | LesionSlices | CaseScores | LevelSummary | Done | Failed;

export type ExportWhat = "sample" | "samples" | "mean" | "labels" | "gamma" | "numbers";

export type ExportKind = "nifti" | "seg" | "json";
