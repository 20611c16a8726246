/** The view state: one store, saved in the URL so that a link restores it. */

import type { LevelControl, Pair, Point } from "./api";

export const VIEWS = ["outlines", "sample", "mean", "gamma", "grid", "slices", "levels"] as const;
export type ViewName = (typeof VIEWS)[number];

export interface State {
  model: string;
  scan: string | null;
  slice: number;
  point: Point | null;
  numSamples: number;
  seed: number;
  /** One for each of the model's `noise_names`. */
  levels: LevelControl[];
  view: ViewName;
  /** The selected sample, from 0. */
  sample: number;
  window: Pair;
  /** 1 fits the whole slice. */
  zoom: number;
  /** Row and column at the centre of the view; null for the centre of the slice. */
  centre: Pair | null;
  annotators: boolean;
  /** Whether to show three planes of a scan with several slices. */
  planes: boolean;
  /** Row and column of the cursor that links the planes; null for the clicked point or the centre. */
  cursor: Pair | null;
  /** The class whose measurements and mean are shown; 1 is the first foreground class. */
  label: number;
}

export const INITIAL: State = {
  model: "",
  scan: null,
  slice: 0,
  point: null,
  numSamples: 16,
  seed: 0,
  levels: [],
  view: "outlines",
  sample: 0,
  window: [0, 1],
  zoom: 1,
  centre: null,
  annotators: true,
  planes: false,
  cursor: null,
  label: 1,
};

export const AS_IT_IS: LevelControl = { seed: 0, hold: false, temperature: 1 };

export function isAsItIs(level: LevelControl): boolean {
  return level.seed === 0 && !level.hold && level.temperature === 1;
}

type Listener = (changed: Partial<State>) => void;

export class Store {
  private state: State;
  private listeners: Listener[] = [];

  constructor(state: State) {
    this.state = state;
  }

  get(): Readonly<State> {
    return this.state;
  }

  set(change: Partial<State>): void {
    this.state = { ...this.state, ...change };
    for (const listener of this.listeners) listener(change);
  }

  subscribe(listener: Listener): void {
    this.listeners.push(listener);
  }
}

/** Serialise the state as `key=value&...`, without defaults. */
export function toHash(state: State): string {
  const words: [string, string][] = [["model", state.model]];
  if (state.scan !== null) words.push(["scan", state.scan], ["slice", String(state.slice)]);
  if (state.point) words.push(["point", state.point.join(",")]);
  words.push(["samples", String(state.numSamples)], ["seed", String(state.seed)], ["view", state.view]);
  if (state.sample) words.push(["sample", String(state.sample + 1)]);
  if (!state.levels.every(isAsItIs)) {
    const level = ({ seed, hold, temperature }: LevelControl) => [seed, hold ? 1 : 0, temperature].join(",");
    words.push(["levels", state.levels.map(level).join(";")]);
  }
  words.push(["window", state.window.map((value) => Number(value.toPrecision(6))).join(",")]);
  if (state.zoom !== 1) words.push(["zoom", state.zoom.toFixed(3)]);
  if (state.centre) words.push(["centre", state.centre.map((place) => place.toFixed(1)).join(",")]);
  words.push(["planes", state.planes ? "1" : "0"]);
  if (state.cursor) words.push(["cursor", state.cursor.join(",")]);
  if (state.label !== 1) words.push(["class", String(state.label)]);
  if (!state.annotators) words.push(["annotators", "0"]);
  return words.map(([key, value]) => `${key}=${encodeURIComponent(value).replaceAll("%2C", ",").replaceAll("%3B", ";")}`).join("&");
}

/** Parse the output of `toHash`; invalid parts are ignored. */
export function fromHash(hash: string): Partial<State> {
  const words = new URLSearchParams(hash.replace(/^#/, ""));
  const found: Partial<State> = {};
  const model = words.get("model");
  const scan = words.get("scan");
  if (model) found.model = model;
  if (scan) found.scan = scan;
  const whole = (key: string, low: number, high: number): number | undefined => {
    const value = Number(words.get(key) ?? NaN);
    return Number.isInteger(value) && value >= low && value <= high ? value : undefined;
  };
  const list = (key: string, length: number): number[] | undefined => {
    const values = (words.get(key) ?? "").split(",").map(Number);
    return words.has(key) && values.length === length && values.every(Number.isFinite) ? values : undefined;
  };
  const take = <K extends keyof State>(key: K, value: State[K] | undefined): void => {
    if (value !== undefined) found[key] = value;
  };
  const sample = whole("sample", 1, 100);
  const view = VIEWS.find((name) => name === words.get("view"));
  const window = list("window", 2) as Pair | undefined;
  const zoom = list("zoom", 1)?.[0];
  const point = list("point", 3) as Point | undefined;
  take("slice", whole("slice", 0, 1e6));
  take("point", point?.every(Number.isInteger) ? point : undefined);
  take("numSamples", whole("samples", 1, 100));
  take("seed", whole("seed", 0, 2 ** 31));
  take("view", view);
  take("label", whole("class", 1, 254));
  take("sample", sample === undefined ? undefined : sample - 1);
  take("levels", words.has("levels") ? readLevels(words.get("levels") ?? "") : undefined);
  take("window", window && window[0] < window[1] ? window : undefined);
  take("zoom", zoom !== undefined && zoom >= 0.2 && zoom <= 64 ? zoom : undefined);
  take("centre", list("centre", 2) as Pair | undefined);
  take("planes", words.has("planes") ? words.get("planes") !== "0" : undefined);
  take("cursor", list("cursor", 2)?.every(Number.isInteger) ? (list("cursor", 2) as Pair) : undefined);
  take("annotators", words.has("annotators") ? words.get("annotators") !== "0" : undefined);
  return found;
}

function readLevels(text: string): LevelControl[] | undefined {
  const levels = text.split(";").map((level) => level.split(",").map(Number));
  const fits = ([seed, hold, temperature]: number[]) =>
    Number.isInteger(seed) && seed! >= 0 && (hold === 0 || hold === 1) && temperature! >= 0 && temperature! <= 4;
  if (!levels.every((level) => level.length === 3 && fits(level))) return undefined;
  return levels.map(([seed, hold, temperature]) => ({ seed: seed!, hold: hold === 1, temperature: temperature! }));
}
