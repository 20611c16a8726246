/** One function for each route of the server. Its messages are the types of schema.ts, which schema.py generates. */

import type {
  ExportKind,
  ExportWhat,
  PackedAnnotations,
  PredictionRequest,
  ScanInfo,
  SessionInfo,
  StreamedMessage,
} from "./schema";

export type * from "./schema";

export type Pair = [number, number];
/** Slice, row, column. */
export type Point = PredictionRequest["point"];

export interface Annotations {
  annotators: string[];
  /** (A, slices, height, width). */
  labels: Uint8Array;
}

export async function getSession(): Promise<SessionInfo> {
  return (await request("api/session")).json();
}

export async function getScan(id: string): Promise<ScanInfo> {
  return (await request(`api/scans/${encodeURIComponent(id)}`)).json();
}

/** Return the values (height, width) of a slice in one of the planes of the scan; (height, width, 3) with colours. */
export async function getSlice(id: string, plane: number, number: number): Promise<Float32Array> {
  const response = await request(`api/scans/${encodeURIComponent(id)}/slices/${number}${plane ? `?plane=${plane}` : ""}`);
  return new Float32Array(await response.arrayBuffer());
}

export async function getAnnotations(id: string): Promise<Annotations | null> {
  const response = await request(`api/scans/${encodeURIComponent(id)}/annotations`);
  const found = (await response.json()) as PackedAnnotations;
  return found.labels === null ? null : { annotators: found.annotators, labels: await unpack(found.labels) };
}

export async function sendScan(files: File[]): Promise<ScanInfo> {
  const form = new FormData();
  for (const file of files) form.append("files", file, file.name);
  return (await request("api/scans", { method: "POST", body: form })).json();
}

/** Request samples and yield the messages line by line. */
export async function* predict(wish: PredictionRequest, signal: AbortSignal): AsyncGenerator<StreamedMessage> {
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
    for (const line of lines) if (line) yield JSON.parse(line) as StreamedMessage;
    if (done) return;
  }
}

export async function getExport(id: string, what: ExportWhat, kind: ExportKind, index: number): Promise<[Blob, string]> {
  const query = new URLSearchParams({ what, kind, index: String(index) });
  const response = await request(`api/predictions/${encodeURIComponent(id)}/export?${query}`);
  const name = /filename\*=UTF-8''(.+)/.exec(response.headers.get("Content-Disposition") ?? "")?.[1];
  return [await response.blob(), name ? decodeURIComponent(name) : what];
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
