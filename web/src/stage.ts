/** The image area: its content in every view, and its mouse and wheel actions. */

import type { App, Place } from "./app";
import type { Box, Pair, Point } from "./api";
import { ANNOTATOR, classColour } from "./colours";
import { type PlacedTile, paintMontage } from "./montage";
import { type Pane, arrangePanes, paintCross, paintTitle } from "./panes";
import { type Frame, type Overlay, Painter, paintLegend, panel, write } from "./picture";
import { type Cut, fromPlane, spacingOf, toPlane, wholeCut } from "./planes";
import { paintScaleBar } from "./scale_bar";

const ZOOM_LIMITS: Pair = [0.5, 40];
const SLIDER = 28; // width of the slice slider

export class Stage {
  readonly painter: Painter;
  private readonly app: App;
  private readonly canvas: HTMLCanvasElement;
  private readonly context: CanvasRenderingContext2D;
  private tiles: PlacedTile[] = [];
  private panes: Pane[] = [];
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
    canvas.addEventListener("dblclick", (event) => this.onDoubleClick(event));
    canvas.addEventListener("contextmenu", (event) => event.preventDefault());
  }

  /** Zoom by a factor around a point of the canvas, by default its centre; three planes are zoomed around the cursor. */
  zoomBy(factor: number, x = this.width / 2, y = this.height / 2): void {
    if (!this.app.scan || this.isMontage) return;
    const zoom = Math.min(Math.max(this.app.state.zoom * factor, ZOOM_LIMITS[0]), ZOOM_LIMITS[1]);
    if (this.app.showsPlanes) {
      const [, row, column] = this.app.cursor;
      return this.app.store.set({ zoom, centre: [row + 0.5, column + 0.5] });
    }
    const before = this.frame();
    const place = [before.top + y / before.scaleY, before.left + x / before.scaleX];
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
    const { x, y, width, height } = this.rooms()[0]!;
    const whole = this.painter.fit(this.wholeSlice(), x, y, width, height);
    const close = this.painter.fit(box, x, y, width, height);
    const zoom = Math.min(Math.max(close.scaleX / whole.scaleX, 1), ZOOM_LIMITS[1]);
    this.app.store.set({ zoom, centre: [box.row + box.height / 2, box.column + box.width / 2] });
  }

  panBy(right: number, down: number, pane: Pane | undefined = this.panes[0]): void {
    if (!this.app.scan || this.isMontage) return;
    const { scaleX, scaleY } = pane?.frame ?? this.frame();
    const { height, width } = this.wholeSlice();
    const centre: Pair = [...(this.app.state.centre ?? [height / 2, width / 2])] as Pair;
    const { axes, flipped } = (pane?.cut ?? this.app.cutAt(0)).plane;
    [down / scaleY, right / scaleX].forEach((shift, n) => {
      const axis = axes[n + 1]!;
      if (axis > 0) centre[axis - 1]! += flipped[n] ? -shift : shift;
    });
    this.app.store.set({ centre });
  }

  /** Draw samples at the centre of the view, or at the cursor of three planes (keyboard use); in the grid, open the selected sample. */
  sampleInTheMiddle(): void {
    if (this.isMontage) return this.tiles.find(({ tile }) => tile.chosen)?.tile.onClick?.();
    if (this.app.showsPlanes) return this.app.sampleAt(this.app.cursor);
    const place = this.placeAt(this.width / 2, this.height / 2);
    if (place) this.app.sampleAt(place.point);
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
    [this.tiles, this.panes] = [[], []];
    if (!this.app.scan || !this.width) return;
    if (this.isMontage) this.tiles = paintMontage(context, this.painter, this.app, [this.width, this.height]);
    else if (this.app.showsPlanes) this.paintPlanes();
    else this.paintSlice();
  }

  /** Whether the view shows several images, which cannot be zoomed. */
  get isMontage(): boolean {
    return ["grid", "slices", "levels"].includes(this.app.state.view) && this.app.result !== null;
  }

  private paintSlice(): void {
    const { app, context } = this;
    const { slice, point } = app.state;
    const frame = this.frame();
    this.paintCut(frame, app.cutAt(slice), app.hasPlanes ? SLIDER - 6 : 0);
    if (point && point[0] === slice && !app.result) circle(context, frame, point[1], point[2]);
    this.paintLegends(this.overlay(app.cutAt(slice)));
  }

  /** Paint three planes that meet at the cursor. */
  private paintPlanes(): void {
    const { app, context } = this;
    const scan = app.scan!;
    this.panes = this.rooms().map((room, n) => {
      const cut = { plane: scan.planes[n]!, at: app.cursor[scan.planes[n]!.axes[0]]! };
      const whole = this.painter.fit(wholeCut(scan, cut.plane), room.x, room.y, room.width, room.height, cut.plane);
      const [scaleX, scaleY] = [whole.scaleX * app.state.zoom, whole.scaleY * app.state.zoom];
      const [row, column] = toPlane(scan, cut.plane, this.centre().map((place) => place - 0.5)).map((place) => place + 0.5) as Pair;
      const frame = { ...whole, scaleX, scaleY, left: column - room.width / 2 / scaleX, top: row - room.height / 2 / scaleY };
      return { cut, frame };
    });
    for (const { cut, frame } of this.panes) {
      this.paintCut(frame, cut, 0);
      paintCross(context, frame, toPlane(scan, cut.plane, app.cursor));
      paintTitle(context, frame, cut);
    }
    this.paintLegends(this.overlay(this.panes[0]!.cut));
  }

  private paintCut(frame: Frame, cut: Cut, spare: number): void {
    const scan = this.app.scan!;
    this.painter.paint(this.context, frame, cut, this.overlay(cut), this.app.state.annotators);
    if (scan.has_spacing) paintScaleBar(this.context, frame, spacingOf(scan, cut.plane)[1], spare);
  }

  private paintLegends(overlay: Overlay): void {
    const { app, context } = this;
    const { view, sample } = app.state;
    const bottom = this.bottom - 40;
    if (overlay.kind === "map") {
      if (!overlay.patch) this.note(app.result ? this.missing() : "");
      else if (view === "mean") paintLegend(context, 24, bottom, "mean", `Mean probability: ${app.model.classes[app.state.label]}`, "0", "1");
      else paintLegend(context, 24, bottom, "gamma", "γ: where samples disagree", "0", `${app.result!.gammaMax.toFixed(2)} nats`);
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
    const top = this.bottom - height - 12;
    panel(context, 12, top, 150, height);
    rows.forEach(([colour, text], n) => {
      context.fillStyle = colour;
      context.fillRect(24, top + 13 + 20 * n, 16, 2.5);
      write(context, text, colour === "transparent" ? 24 : 50, top + 18 + 20 * n);
    });
  }

  private overlay(cut: Cut): Overlay {
    const { view, sample } = this.app.state;
    const { result } = this.app;
    if (!result) return { kind: "none" };
    if (view === "sample") return { kind: "sample", sample, filled: true };
    if (view === "mean") return { kind: "map", patch: result.meanAt(cut, this.app.state.label), ramp: "mean" };
    if (view === "gamma") return { kind: "map", patch: result.gammaAt(cut), ramp: "gamma" };
    return { kind: "outlines" };
  }

  private missing(): string {
    const { result } = this.app;
    if (!result!.summary) return "Computing the map …";
    const known = result!.slices;
    const [first, last] = [known[0]! + 1, known[known.length - 1]! + 1];
    return first === last ? `This map covers slice ${first}` : `This map covers slices ${first} to ${last}`;
  }

  /** The lower end of the image that has the legend. */
  private get bottom(): number {
    const pane = this.panes[0];
    return pane ? pane.frame.y + pane.frame.height : this.height;
  }

  private note(text: string): void {
    if (!text) return;
    panel(this.context, 12, this.bottom - 44, 250, 32);
    write(this.context, text, 24, this.bottom - 24);
  }

  private wholeSlice(): Box {
    return wholeCut(this.app.scan!, this.app.scan!.planes[0]!);
  }

  /** Return the rectangles of the images of the slice: one, or one for each plane. */
  private rooms(): { x: number; y: number; width: number; height: number }[] {
    if (!this.app.showsPlanes) return [{ x: 0, y: 0, width: this.width, height: this.height }];
    return arrangePanes(this.width - SLIDER, this.height);
  }

  /** Return the slice, row and column at the centre of the three planes. */
  private centre(): Point {
    const { zoom, centre, point } = this.app.state;
    const { num_slices: slices, height, width } = this.app.scan!;
    const [row, column] = centre ?? [height / 2, width / 2];
    return [zoom > 1 && point ? point[0] + 0.5 : slices / 2, row, column];
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
    const { scan } = this.app;
    if (!scan) return null;
    const [tile, pane] = [this.tileAt(x, y), this.paneAt(x, y)];
    if ((this.isMontage && !tile) || (this.panes.length && !pane)) return null;
    const frame = tile?.frame ?? pane?.frame ?? this.frame();
    const cut = pane?.cut ?? this.app.cutAt(tile?.tile.slice ?? this.app.state.slice);
    const row = Math.floor(frame.top + (y - frame.y) / frame.scaleY);
    const column = Math.floor(frame.left + (x - frame.x) / frame.scaleX);
    const { height, width } = wholeCut(scan, cut.plane);
    if (row < 0 || column < 0 || row >= height || column >= width) return null;
    return { cut, row, column, point: fromPlane(scan, cut, row, column) };
  }

  private paneAt(x: number, y: number): Pane | undefined {
    return this.panes.find(({ frame }) => isInside(frame, x, y));
  }

  private tileAt(x: number, y: number): PlacedTile | undefined {
    return this.tiles.find(({ frame }) => isInside(frame, x, y));
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
    const axis = this.paneAt(event.offsetX, event.offsetY)?.cut.plane.axes[0];
    if (axis) this.app.setCursor(this.app.cursor.map((place, n) => (n === axis ? place + Math.sign(this.wheel) : place)) as Point);
    else this.app.setSlice(this.app.state.slice + Math.sign(this.wheel));
    this.wheel = 0;
  }

  /** A click draws samples, or moves the cursor of three planes; a drag changes the window, or pans with Shift or another button. */
  private onPress(event: PointerEvent): void {
    const [startX, startY] = [event.offsetX, event.offsetY];
    const pans = event.shiftKey || event.button !== 0;
    const pane = this.paneAt(startX, startY);
    let [x, y, dragged] = [startX, startY, false];
    this.canvas.setPointerCapture(event.pointerId);
    const move = (now: PointerEvent): void => {
      dragged ||= Math.hypot(now.offsetX - startX, now.offsetY - startY) > 4;
      if (dragged && pans) this.panBy(x - now.offsetX, y - now.offsetY, pane);
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
    if (!place) return;
    if (this.app.showsPlanes && this.app.state.point) this.app.setCursor(place.point);
    else this.app.sampleAt(place.point);
  }

  /** In three planes, where a click moves the cursor, a double click draws samples. */
  private onDoubleClick(event: MouseEvent): void {
    const place = this.placeAt(event.offsetX, event.offsetY);
    if (this.app.showsPlanes && place && place.point.join() !== this.app.state.point?.join()) this.app.sampleAt(place.point);
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

function isInside(frame: Frame, x: number, y: number): boolean {
  return x >= frame.x && y >= frame.y && x < frame.x + frame.width && y < frame.y + frame.height;
}

function circle(context: CanvasRenderingContext2D, frame: Frame, row: number, column: number): void {
  const x = frame.x + (column + 0.5 - frame.left) * frame.scaleX;
  const y = frame.y + (row + 0.5 - frame.top) * frame.scaleY;
  context.strokeStyle = classColour(1);
  context.lineWidth = 1.5;
  context.beginPath();
  context.arc(x, y, 9, 0, 2 * Math.PI);
  context.stroke();
}
