/** The image area: its content in every view, and its mouse and wheel actions. */

import type { App, Place } from "./app";
import type { Box, Pair } from "./api";
import { ANNOTATOR, classColour } from "./colours";
import { type PlacedTile, paintMontage } from "./montage";
import { type Frame, type Overlay, Painter, paintLegend, panel, write } from "./picture";
import { paintScaleBar } from "./scale_bar";

const ZOOM_LIMITS: Pair = [0.5, 40];

export class Stage {
  readonly painter: Painter;
  private readonly app: App;
  private readonly canvas: HTMLCanvasElement;
  private readonly context: CanvasRenderingContext2D;
  private tiles: PlacedTile[] = [];
  private width = 0;
  private height = 0;
  private wheel = 0;

  constructor(app: App, canvas: HTMLCanvasElement) {
    this.app = app;
    this.canvas = canvas;
    this.context = canvas.getContext("2d")!;
    this.painter = new Painter(app);
    new ResizeObserver(() => this.resize()).observe(canvas);
    canvas.addEventListener("wheel", (event) => this.onWheel(event), { passive: false });
    canvas.addEventListener("pointerdown", (event) => this.onPress(event));
    canvas.addEventListener("pointermove", (event) => this.onHover(event));
    canvas.addEventListener("pointerleave", () => this.setHover(null));
    canvas.addEventListener("contextmenu", (event) => event.preventDefault());
  }

  /** Zoom by a factor around a point of the canvas, by default its centre. */
  zoomBy(factor: number, x = this.width / 2, y = this.height / 2): void {
    if (!this.app.scan || this.isMontage) return;
    const before = this.frame();
    const place = [before.top + y / before.scaleY, before.left + x / before.scaleX];
    const zoom = Math.min(Math.max(this.app.state.zoom * factor, ZOOM_LIMITS[0]), ZOOM_LIMITS[1]);
    const scale = zoom / this.app.state.zoom;
    const [scaleX, scaleY] = [before.scaleX * scale, before.scaleY * scale];
    const centre: Pair = [place[0]! + (this.height / 2 - y) / scaleY, place[1]! + (this.width / 2 - x) / scaleX];
    this.app.store.set({ zoom, centre });
  }

  /** Fit the whole slice. */
  fitSlice(): void {
    this.app.store.set({ zoom: 1, centre: null });
  }

  /** Fit the segmentations. */
  fitLesion(): void {
    if (!this.app.scan || !this.app.result) return;
    const box = this.painter.focus();
    const whole = this.painter.fit(this.wholeSlice(), 0, 0, this.width, this.height);
    const close = this.painter.fit(box, 0, 0, this.width, this.height);
    const zoom = Math.min(Math.max(close.scaleX / whole.scaleX, 1), ZOOM_LIMITS[1]);
    this.app.store.set({ zoom, centre: [box.row + box.height / 2, box.column + box.width / 2] });
  }

  panBy(right: number, down: number): void {
    if (!this.app.scan || this.isMontage) return;
    const { scaleX, scaleY, top, left } = this.frame();
    const [row, column] = [top + this.height / 2 / scaleY, left + this.width / 2 / scaleX];
    this.app.store.set({ centre: [row + down / scaleY, column + right / scaleX] });
  }

  /** Draw samples at the centre of the view (keyboard use); in the grid, open the selected sample. */
  sampleInTheMiddle(): void {
    if (this.isMontage) return this.tiles.find(({ tile }) => tile.chosen)?.tile.onClick?.();
    const place = this.placeAt(this.width / 2, this.height / 2);
    if (place) this.app.sampleAt([this.app.state.slice, place.row, place.column]);
  }

  toPng(): Promise<Blob> {
    return new Promise((resolve, reject) => {
      this.canvas.toBlob((blob) => (blob ? resolve(blob) : reject(new Error("The image cannot be saved."))), "image/png");
    });
  }

  paint(): void {
    const { context } = this;
    context.setTransform(devicePixelRatio, 0, 0, devicePixelRatio, 0, 0);
    context.fillStyle = "#07090b";
    context.fillRect(0, 0, this.width, this.height);
    this.tiles = [];
    if (!this.app.scan || !this.width) return;
    if (this.isMontage) this.tiles = paintMontage(context, this.painter, this.app, [this.width, this.height]);
    else this.paintSlice();
  }

  /** Whether the view shows several images, which cannot be zoomed. */
  get isMontage(): boolean {
    return ["grid", "slices", "levels"].includes(this.app.state.view) && this.app.result !== null;
  }

  private paintSlice(): void {
    const { app, context } = this;
    const { view, slice, sample, annotators, point } = app.state;
    const frame = this.frame();
    const overlay = this.overlay();
    this.painter.paint(context, frame, slice, overlay, annotators);
    if (point && point[0] === slice && !app.result) cross(context, frame, point[1], point[2]);
    const { has_spacing: isKnown, spacing_mm: spacing, num_slices: slices } = app.scan!;
    if (isKnown) paintScaleBar(context, frame, spacing[2], slices > 1 ? 22 : 0); // next to the slice slider
    const bottom = this.height - 40;
    if (overlay.kind === "map") {
      if (!overlay.patch) this.note(app.result ? this.missing() : "");
      else if (view === "mean") paintLegend(context, 24, bottom, "mean", `Mean probability: ${app.model.classes[app.state.label]}`, "0", "1");
      else paintLegend(context, 24, bottom, "gamma", "γ: where samples disagree", "0", `${app.result!.summary!.gammaMax.toFixed(2)} nats`);
    } else if (app.result) {
      const number = app.result.samples.length;
      this.paintKey(view === "sample" ? `Sample ${sample + 1} of ${number}` : `${number} samples`);
    }
  }

  /** Paint the legend of the outlines. */
  private paintKey(samples: string): void {
    const { app, context } = this;
    const classes = app.model.classes.slice(1);
    const rows = classes.map((name, n) => [classColour(n + 1), classes.length > 1 ? name : samples] as [string, string]);
    if (classes.length > 1) rows.unshift(["transparent", samples]);
    if (app.annotations && app.state.annotators) {
      rows.push([ANNOTATOR, `${app.annotations.annotators.length} annotators`]);
    }
    const height = 20 * rows.length + 8;
    const top = this.height - height - 12;
    panel(context, 12, top, 150, height);
    rows.forEach(([colour, text], n) => {
      context.fillStyle = colour;
      context.fillRect(24, top + 13 + 20 * n, 16, 2.5);
      write(context, text, colour === "transparent" ? 24 : 50, top + 18 + 20 * n);
    });
  }

  private overlay(): Overlay {
    const { view, slice, sample } = this.app.state;
    const { result } = this.app;
    if (!result) return { kind: "none" };
    if (view === "sample") return { kind: "sample", sample, filled: true };
    if (view === "mean") return { kind: "map", patch: result.meanAt(slice, this.app.state.label), ramp: "mean" };
    if (view === "gamma") return { kind: "map", patch: result.gammaAt(slice), ramp: "gamma" };
    return { kind: "outlines" };
  }

  private missing(): string {
    const { result, state } = this.app;
    if (!result!.summary) return "Computing the map …";
    const known = state.view === "gamma" ? [result!.slice] : result!.slices;
    const [first, last] = [known[0]! + 1, known[known.length - 1]! + 1];
    return first === last ? `This map covers slice ${first}` : `This map covers slices ${first} to ${last}`;
  }

  private note(text: string): void {
    if (!text) return;
    panel(this.context, 12, this.height - 44, 250, 32);
    write(this.context, text, 24, this.height - 24);
  }

  private wholeSlice(): Box {
    const { height, width } = this.app.scan!;
    return { row: 0, column: 0, height, width };
  }

  /** Return the visible part of the slice. */
  private frame(): Frame {
    const { zoom, centre } = this.app.state;
    const { height, width } = this.app.scan!;
    const whole = this.painter.fit(this.wholeSlice(), 0, 0, this.width, this.height);
    const [scaleX, scaleY] = [whole.scaleX * zoom, whole.scaleY * zoom];
    const [row, column] = centre ?? [height / 2, width / 2];
    return { ...whole, scaleX, scaleY, left: column - this.width / 2 / scaleX, top: row - this.height / 2 / scaleY };
  }

  private placeAt(x: number, y: number): Place | null {
    if (!this.app.scan) return null;
    const tile = this.tileAt(x, y);
    if (this.isMontage && !tile) return null;
    const frame = tile?.frame ?? this.frame();
    const row = Math.floor(frame.top + (y - frame.y) / frame.scaleY);
    const column = Math.floor(frame.left + (x - frame.x) / frame.scaleX);
    const { height, width } = this.app.scan;
    return row >= 0 && column >= 0 && row < height && column < width ? { row, column } : null;
  }

  private tileAt(x: number, y: number): PlacedTile | undefined {
    return this.tiles.find(({ frame }) => x >= frame.x && y >= frame.y && x < frame.x + frame.width && y < frame.y + frame.height);
  }

  private resize(): void {
    this.width = this.canvas.clientWidth;
    this.height = this.canvas.clientHeight;
    this.canvas.width = Math.round(this.width * devicePixelRatio);
    this.canvas.height = Math.round(this.height * devicePixelRatio);
    this.app.changed();
  }

  private onWheel(event: WheelEvent): void {
    event.preventDefault();
    if (event.ctrlKey || event.metaKey) {
      this.zoomBy(Math.exp(-event.deltaY / 300), event.offsetX, event.offsetY);
      return;
    }
    this.wheel += event.deltaY;
    if (Math.abs(this.wheel) < 30) return; // a touchpad sends many small steps
    this.app.setSlice(this.app.state.slice + Math.sign(this.wheel));
    this.wheel = 0;
  }

  /** A click draws samples; a drag changes the window, or pans with Shift or another button. */
  private onPress(event: PointerEvent): void {
    const [startX, startY] = [event.offsetX, event.offsetY];
    const pans = event.shiftKey || event.button !== 0;
    let [x, y, dragged] = [startX, startY, false];
    this.canvas.setPointerCapture(event.pointerId);
    const move = (now: PointerEvent): void => {
      dragged ||= Math.hypot(now.offsetX - startX, now.offsetY - startY) > 4;
      if (dragged && pans) this.panBy(x - now.offsetX, y - now.offsetY);
      else if (dragged) this.dragWindow(now.offsetX - x, now.offsetY - y);
      if (dragged) [x, y] = [now.offsetX, now.offsetY];
    };
    const end = new AbortController();
    const release = (): void => {
      end.abort();
      if (!dragged && event.button === 0) this.onClick(startX, startY);
    };
    this.canvas.addEventListener("pointermove", move, { signal: end.signal });
    this.canvas.addEventListener("pointerup", release, { signal: end.signal });
    this.canvas.addEventListener("pointercancel", () => end.abort(), { signal: end.signal });
  }

  private onClick(x: number, y: number): void {
    if (this.isMontage) return this.tileAt(x, y)?.tile.onClick?.();
    const place = this.placeAt(x, y);
    if (place) this.app.sampleAt([this.app.state.slice, place.row, place.column]);
  }

  /** Drag right for less contrast and down for a brighter image, as in radiology viewers. */
  private dragWindow(right: number, down: number): void {
    const [low, high] = this.app.state.window;
    const [darkest, brightest] = this.app.scan!.value_range;
    const step = Math.max(high - low, (brightest - darkest) / 100) / 300;
    const width = Math.max(high - low + 2 * right * step, (brightest - darkest) / 1000);
    const middle = (low + high) / 2 - down * step;
    this.app.store.set({ window: [middle - width / 2, middle + width / 2] });
  }

  private onHover(event: PointerEvent): void {
    this.setHover(this.placeAt(event.offsetX, event.offsetY));
  }

  private setHover(place: Place | null): void {
    this.app.hover = place;
    this.app.changed();
  }
}

function cross(context: CanvasRenderingContext2D, frame: Frame, row: number, column: number): void {
  const x = frame.x + (column + 0.5 - frame.left) * frame.scaleX;
  const y = frame.y + (row + 0.5 - frame.top) * frame.scaleY;
  context.strokeStyle = classColour(1);
  context.lineWidth = 1.5;
  context.beginPath();
  context.arc(x, y, 9, 0, 2 * Math.PI);
  context.stroke();
}
