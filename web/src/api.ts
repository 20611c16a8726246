/** What the page and the server say to each other: the types of schema.py, and one function a route. */

export type Pair = [number, number];
/** Slice, row, column. */
export type Point = [number, number, number];

export interface ModelInfo {
  name: string;
  classes: string[];
  /** Latent levels; 0 for a model without a hierarchy. */
  num_levels: number;
  /** The parts of the noise: the levels, fine to coarse, and then, for an ensemble, the member. */
  noise_names: string[];
  centred_on: string | null;
  size: Pair;
  window: Pair | null;
}

export interface ScanInfo {
  id: string;
  name: string;
  num_slices: number;
  height: number;
  width: number;
  spacing_mm: [number, number, number];
  has_spacing: boolean;
  plane: string;
  value_range: Pair;
  window: Pair;
  annotators: string[];
  /** Where to look first. */
  start: Point;
  /** What one should know of the scan. */
  warnings: string[];
}

export interface SessionInfo {
  version: string;
  model: ModelInfo;
  scans: ScanInfo[];
  scan_names: Record<string, string>;
  max_samples: number;
  max_upload_bytes: number;
  max_scans: number;
}

export interface LevelControl {
  seed: number;
  hold: boolean;
  temperature: number;
}

export interface PredictionRequest {
  scan: string;
  point: Point;
  num_samples: number;
  seed: number;
  /** One for each of `noise_names`; empty: all as they are. */
  levels: LevelControl[];
}

export interface Box {
  row: number;
  column: number;
  height: number;
  width: number;
}

export interface Spread {
  median: number;
  low: number;
  high: number;
  samples: number[];
}

export interface ClassNumbers {
  present: number;
  volume_ml: Spread;
  diameter_mm: Spread;
}

export interface Numbers {
  type: "numbers";
  classes: Record<string, ClassNumbers>;
  mean_gamma: number;
  agreement: number;
  /** Share of samples whose lesion is cut off. */
  truncated: number;
  /** By the names of `noise_names`. */
  level_shares: Record<string, number> | null;
}

export interface CaseScores {
  type: "scores";
  ged: number | null;
  ged_floor: number | null;
  s_ncc: number | null;
  dice: number | null;
}

export type Message =
  | { type: "queued"; ahead: number }
  | { type: "samples"; first: number; number: number; box: Box; labels: string }
  | {
      type: "slice";
      box: Box;
      mean_probs: string;
      gamma: string;
      gamma_max: number;
      level_shares: string | null;
      level_outputs: string | null;
    }
  | Numbers
  | { type: "volume"; first_slice: number; num_slices: number; box: Box; labels: string; mean_probs: string }
  | CaseScores
  | { type: "done"; id: string }
  | { type: "error"; message: string };

export interface Annotations {
  annotators: string[];
  /** (A, height, width), of the only slice of a case. */
  labels: Uint8Array;
}

export type ExportWhat = "sample" | "mean" | "labels" | "gamma" | "numbers";
export type ExportKind = "nifti" | "seg" | "json";

export async function getSession(): Promise<SessionInfo> {
  return (await request("api/session")).json();
}

export async function getScan(id: string): Promise<ScanInfo> {
  return (await request(`api/scans/${encodeURIComponent(id)}`)).json();
}

/** Return the values (height, width) of a slice. */
export async function getSlice(id: string, number: number): Promise<Float32Array> {
  const response = await request(`api/scans/${encodeURIComponent(id)}/slices/${number}`);
  return new Float32Array(await response.arrayBuffer());
}

export async function getAnnotations(id: string): Promise<Annotations | null> {
  const response = await request(`api/scans/${encodeURIComponent(id)}/annotations`);
  const found = (await response.json()) as { annotators: string[]; labels: string | null };
  return found.labels === null ? null : { annotators: found.annotators, labels: await unpack(found.labels) };
}

export async function sendScan(files: File[]): Promise<ScanInfo> {
  const form = new FormData();
  for (const file of files) form.append("files", file, file.name);
  return (await request("api/scans", { method: "POST", body: form })).json();
}

/** Ask for samples, and yield what comes line by line. */
export async function* predict(wish: PredictionRequest, signal: AbortSignal): AsyncGenerator<Message> {
  const response = await request("api/predictions", {
    method: "POST",
    headers: { "Content-Type": "application/json" },
    body: JSON.stringify(wish),
    signal,
  });
  if (!response.body) return;
  const reader = response.body.pipeThrough(new TextDecoderStream()).getReader();
  let rest = "";
  for (;;) {
    const { done, value } = await reader.read();
    const lines = (rest + (value ?? "")).split("\n");
    rest = lines.pop() ?? "";
    for (const line of lines) if (line) yield JSON.parse(line) as Message;
    if (done) return;
  }
}

export async function getExport(id: string, what: ExportWhat, kind: ExportKind, index: number): Promise<[Blob, string]> {
  const query = new URLSearchParams({ what, kind, index: String(index) });
  const response = await request(`api/predictions/${encodeURIComponent(id)}/export?${query}`);
  const name = /filename="([^"]+)"/.exec(response.headers.get("Content-Disposition") ?? "")?.[1];
  return [await response.blob(), name ?? what];
}

/** Undo `packed` of schema.py: base64, then deflate. */
export async function unpack(text: string): Promise<Uint8Array> {
  const bytes = Uint8Array.from(atob(text), (letter) => letter.charCodeAt(0));
  const stream = new Blob([bytes]).stream().pipeThrough(new DecompressionStream("deflate"));
  return new Uint8Array(await new Response(stream).arrayBuffer());
}

async function request(url: string, options: RequestInit = {}): Promise<Response> {
  let response: Response;
  try {
    response = await fetch(url, options);
  } catch (error) {
    if (options.signal?.aborted) throw error;
    throw new Error("No response from the viewer. Is `phiseg view` still running?");
  }
  if (!response.ok) throw new Error(await reasonOf(response));
  return response;
}

async function reasonOf(response: Response): Promise<string> {
  try {
    return ((await response.json()) as { message: string }).message;
  } catch {
    return `The server responded with ${response.status} ${response.statusText}`;
  }
}
