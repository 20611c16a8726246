/** State shared by all parts of the page: the session, the open scan, its prediction, and the actions that change them. */

import type { Annotations, ModelInfo, Pair, Point, ScanInfo, SessionInfo } from "./api";
import * as api from "./api";
import { type Block, type Cut, type Patch, cutBlock, gridOf } from "./planes";
import { Result } from "./result";
import { Slices } from "./slices";
import type { State } from "./state";
import { AS_IT_IS, INITIAL, Store, VIEWS, fromHash, isAsItIs } from "./state";

/** The pixel under the mouse. */
export interface Place {
  cut: Cut;
  row: number;
  column: number;
  /** The voxel. */
  point: Point;
}

export class App {
  readonly session: SessionInfo;
  readonly store: Store;
  scan: ScanInfo | null = null;
  slices: Slices | null = null;
  annotations: Annotations | null = null;
  result: Result | null = null;
  hover: Place | null = null;
  /** The current activity for the status line; empty if idle. */
  busy = "";
  /** Progress of the activity, 0 to 1. */
  progress = 0;
  private running: AbortController | null = null;
  private timer = 0;
  private turn = 0;
  private readonly annotationCuts = new Map<string, Patch | null>();
  private readonly onChange: () => void;
  private readonly onError: (message: string) => void;

  constructor(session: SessionInfo, onChange: () => void, onError: (message: string) => void) {
    this.session = session;
    this.onChange = onChange;
    this.onError = onError;
    this.store = new Store({ ...INITIAL, model: session.model.name, levels: this.defaultLevels(), planes: session.model.dims === 3 });
    this.store.subscribe(() => this.changed());
  }

  get model(): ModelInfo {
    return this.session.model;
  }

  get state(): Readonly<State> {
    return this.store.get();
  }

  /** The views available for this model. */
  get views(): (typeof VIEWS)[number][] {
    return VIEWS.filter((view) => view !== "levels" || this.model.num_levels > 0);
  }

  /** Whether the current view shows three planes. */
  get showsPlanes(): boolean {
    const { planes, view } = this.state;
    return planes && this.hasPlanes && ["outlines", "sample", "mean", "gamma"].includes(view);
  }

  /** Whether the scan has several slices. */
  get hasPlanes(): boolean {
    return (this.scan?.num_slices ?? 1) > 1;
  }

  /** The voxel at which the three planes meet. */
  get cursor(): Point {
    const { slice, cursor, point } = this.state;
    const [row, column] = cursor ?? point?.slice(1) ?? [this.scan!.height >> 1, this.scan!.width >> 1];
    return [slice, row!, column!];
  }

  /** A slice in the plane of the model. */
  cutAt(slice: number): Cut {
    return { plane: this.scan!.planes[0]!, at: slice };
  }

  /** Return the mask of an annotator in a cut. */
  annotationAt(annotator: number, cut: Cut): Patch | null {
    if (!this.annotations || !this.scan) return null;
    const key = `${annotator} ${cut.plane.name} ${cut.at}`;
    let patch = this.annotationCuts.get(key);
    if (patch === undefined) {
      const size = gridOf(this.scan);
      const number = size[0] * size[1] * size[2];
      const block: Block = { start: [0, 0, 0], size, values: this.annotations.labels.subarray(annotator * number, (annotator + 1) * number) };
      patch = cutBlock(this.scan, block, cut);
      this.annotationCuts.set(key, patch);
    }
    return patch;
  }

  /** Return whether a view has something to show for the open scan. */
  canShow(view: (typeof VIEWS)[number]): boolean {
    if (view === "outlines") return true;
    return this.state.point !== null && (view !== "slices" || (this.scan?.num_slices ?? 1) > 1);
  }

  /** Select a view, if it has something to show. */
  setView(view: (typeof VIEWS)[number]): void {
    if (this.canShow(view)) this.store.set({ view });
  }

  changed(): void {
    this.onChange();
  }

  fail(error: unknown): void {
    this.onError(error instanceof Error ? error.message : String(error));
  }

  /** Restore the view state of a link. */
  async restore(hash: string): Promise<void> {
    const wish = fromHash(hash);
    if (wish.model && wish.model !== this.model.name) {
      this.onError(`This link was created with the model ${wish.model}, but this viewer uses ${this.model.name}.`);
    }
    const levels = wish.levels?.length === this.model.noise_names.length ? wish.levels : this.defaultLevels();
    const first = this.session.scans[0]?.id;
    const scan = wish.scan ?? first;
    if (scan) await this.open(scan, { ...wish, levels });
    if (!this.scan && first && first !== scan) await this.open(first);
  }

  /** Open a scan with the view state in `wish`. */
  async open(id: string, wish: Partial<State> = {}): Promise<void> {
    const known = this.session.scans.find((scan) => scan.id === id);
    await this.attempt("Opening the scan", () => this.show(known ?? api.getScan(id), wish));
  }

  /** Upload files as one scan. */
  async send(files: File[]): Promise<void> {
    const size = files.reduce((sum, file) => sum + file.size, 0);
    if (size > this.session.max_upload_bytes) {
      const limit = Math.floor(this.session.max_upload_bytes / 2 ** 20);
      return this.onError(`The file is larger than ${limit} MB. Pass it to the command instead: phiseg view MODEL SCAN`);
    }
    await this.attempt("Reading the files", async () => {
      const scan = await api.sendScan(files);
      const { listed } = this.session;
      if (!listed.some(({ id }) => id === scan.id)) listed.push({ id: scan.id, name: scan.name, split: null });
      await this.show(scan, {});
    });
  }

  /** Draw samples at a point of the scan. */
  sampleAt(point: Point): void {
    this.result = null;
    this.store.set({ point, slice: point[0], cursor: [point[1], point[2]], sample: 0 });
    void this.draw();
  }

  /** Change the sampling settings; draw again after a short delay without further changes. */
  redraw(change: Partial<State>): void {
    this.store.set(change);
    if (!this.state.point) return;
    this.running?.abort();
    this.report("Drawing samples", 0.03);
    window.clearTimeout(this.timer);
    this.timer = window.setTimeout(() => void this.draw(), 200);
  }

  setSlice(slice: number): void {
    if (!this.scan) return;
    this.store.set({ slice: Math.min(Math.max(slice, 0), this.scan.num_slices - 1) });
  }

  /** Move the cursor that links the planes, inside the scan. */
  setCursor(point: Point): void {
    const grid = gridOf(this.scan!);
    const [slice, row, column] = point.map((place, axis) => Math.min(Math.max(place, 0), grid[axis]! - 1)) as Point;
    this.store.set({ slice, cursor: [row, column] });
  }

  setSample(sample: number): void {
    const number = this.result?.samples.length ?? 0;
    if (number) this.store.set({ sample: (sample + number) % number });
  }

  defaultLevels(): State["levels"] {
    return this.session.model.noise_names.map(() => AS_IT_IS);
  }

  /** Show a scan once it has loaded, unless another one was requested since. */
  private async show(wanted: ScanInfo | Promise<ScanInfo>, wish: Partial<State>): Promise<void> {
    const turn = (this.turn += 1);
    const scan = await wanted;
    const annotations = scan.annotators.length ? await api.getAnnotations(scan.id) : null;
    if (turn !== this.turn) return;
    this.running?.abort();
    window.clearTimeout(this.timer);
    [this.scan, this.annotations, this.result] = [scan, annotations, null];
    this.annotationCuts.clear();
    this.slices = new Slices(scan, () => this.changed(), (error) => this.fail(error));
    for (const warning of scan.warnings) this.onError(warning);
    const isLesionKnown = scan.id === "example" || scan.annotators.length > 0;
    this.store.set({
      slice: scan.start[0],
      point: isLesionKnown ? scan.start : null,
      sample: 0,
      window: scan.window as Pair,
      zoom: 1,
      centre: null,
      cursor: null,
      ...wish,
      model: this.model.name,
      scan: scan.id,
    });
    if (!this.canShow(this.state.view)) this.store.set({ view: "outlines" });
    this.setSlice(this.state.slice);
    if (this.state.point) await this.draw();
  }

  private async draw(): Promise<void> {
    const { scan, point, numSamples, seed, levels } = this.state;
    if (!scan || !point) return;
    this.running?.abort();
    const running = (this.running = new AbortController());
    const request = { scan, point, num_samples: numSamples, seed, levels: levels.every(isAsItIs) ? [] : levels };
    const result = new Result(request, this.scan!);
    this.report("Drawing samples", 0.03);
    try {
      for await (const message of api.predict(request, running.signal)) {
        if (message.type === "error") throw new Error(message.message);
        await result.add(message);
        if (running.signal.aborted) return;
        if (result.samples.length) this.result = result;
        if (message.type === "queued") this.report(`Waiting: ${message.ahead} ahead`, 0.03);
        else this.report(...stepOf(result));
      }
      if (result.id === null) throw new Error("Sampling was interrupted. Click again.");
      this.report("", 1);
    } catch (error) {
      if (running.signal.aborted) return;
      this.report("", 0);
      this.fail(error);
    }
  }

  private async attempt(what: string, work: () => Promise<void>): Promise<void> {
    this.report(what, 0.1);
    try {
      await work();
    } catch (error) {
      this.fail(error);
    }
    if (this.busy === what) this.report("", 0);
  }

  private report(busy: string, progress: number): void {
    this.busy = busy;
    this.progress = progress;
    this.changed();
  }
}

/** Return the current activity and its progress. */
function stepOf(result: Result): [string, number] {
  const [here, all] = [result.samples.length, result.request.num_samples];
  if (here < all) return [`${here} of ${all} samples`, 0.05 + (0.45 * here) / all];
  if (!result.summary) return ["Computing the uncertainty", 0.55];
  if (!result.lesion) return ["Segmenting the neighbouring slices", 0.75];
  if (result.scan.annotators.length && !result.scores) return ["Comparing with the annotators", 0.85];
  return ["Comparing the levels", 0.9];
}
