/** Keyboard shortcuts; the help dialog is built from the same list. */

import type { App } from "./app";
import { presets } from "./controls";
import { get, make } from "./dom";
import type { Stage } from "./stage";

const MOUSE: [string, string][] = [
  ["Click", "draw samples at this point; in three planes, move the cursor"],
  ["Double-click", "draw samples at this point of three planes"],
  ["Wheel", "previous or next slice"],
  ["Ctrl + wheel", "zoom"],
  ["Drag", "change the window: right for less contrast, up for darker"],
  ["Shift + drag", "pan (also with the right button)"],
];

const SETTING = "phiseg-character-keys";

interface Key {
  shown: string;
  keys: string[];
  meaning: string;
  act: (key: string, event: KeyboardEvent) => void;
}

export function listenToKeys(app: App, stage: Stage): void {
  const help = get<HTMLDialogElement>("help");
  const step = (key: string): number => (key === "ArrowLeft" ? -1 : 1);
  const keys: Key[] = [
    { shown: "↑ ↓", keys: ["ArrowUp", "ArrowDown"], meaning: "previous or next slice", act: (key) => app.setSlice(app.state.slice + (key === "ArrowUp" ? -1 : 1)) },
    { shown: "Page up / down", keys: ["PageUp", "PageDown"], meaning: "ten slices back or forward", act: (key) => app.setSlice(app.state.slice + (key === "PageUp" ? -10 : 10)) },
    { shown: "← →", keys: ["ArrowLeft", "ArrowRight"], meaning: "previous or next sample", act: (key) => stepSample(app, step(key)) },
    { shown: `1 – ${app.views.length}`, keys: app.views.map((_, n) => String(n + 1)), meaning: "select a view", act: (key) => app.setView(app.views[Number(key) - 1]!) },
    { shown: "Enter", keys: ["Enter"], meaning: "draw samples at the centre of the view, or at the cursor", act: () => stage.sampleInTheMiddle() },
    { shown: "R", keys: ["r"], meaning: "draw new samples with the next seed", act: () => app.state.point && app.redraw({ seed: app.state.seed + 1 }) },
    { shown: "W", keys: ["w"], meaning: "next window preset", act: () => nextWindow(app) },
    { shown: "+ −", keys: ["+", "=", "-"], meaning: "zoom", act: (key) => stage.zoomBy(key === "-" ? 1 / 1.25 : 1.25) },
    { shown: "0", keys: ["0"], meaning: "show the whole slice", act: () => stage.fitSlice() },
    { shown: "L", keys: ["l"], meaning: "zoom to the lesion", act: () => stage.fitLesion() },
    { shown: "P", keys: ["p"], meaning: "show one or three planes", act: () => app.store.set({ planes: !app.state.planes }) },
    { shown: "A", keys: ["a"], meaning: "show or hide the annotators", act: () => app.store.set({ annotators: !app.state.annotators }) },
    { shown: "?", keys: ["?"], meaning: "show this help", act: () => help.showModal() },
  ];
  const row = ([shown, meaning]: [string, string]) => [make("dt", {}, make("kbd", {}, shown)), make("dd", {}, meaning)];
  get("mouse-list").append(...MOUSE.flatMap(row));
  get("key-list").append(
    ...[...keys.map(({ shown, meaning }): [string, string] => [shown, meaning]), ["Shift + arrows", "pan"] as [string, string]].flatMap(row),
  );
  const characters = get<HTMLInputElement>("use-characters");
  characters.checked = localStorage.getItem(SETTING) !== "off";
  characters.addEventListener("change", () => localStorage.setItem(SETTING, characters.checked ? "on" : "off"));
  get("help-open").addEventListener("click", () => help.showModal());
  get("help-close").addEventListener("click", () => help.close());
  addEventListener("pointerup", (event) => event.target instanceof Element && event.target.closest("button")?.blur()); // keys act on the image again
  addEventListener("keydown", (event) => {
    const inImage = event.target === get("picture");
    if (event.ctrlKey || event.metaKey || event.altKey || help.open || !(inImage || event.target === document.body)) return;
    if (event.key.length === 1 && !characters.checked) return;
    if (event.shiftKey && event.key.startsWith("Arrow")) {
      const [right, down] = { ArrowLeft: [-40, 0], ArrowRight: [40, 0], ArrowUp: [0, -40], ArrowDown: [0, 40] }[event.key] ?? [0, 0];
      stage.panBy(right!, down!);
      return event.preventDefault();
    }
    const found = keys.find((key) => key.keys.includes(event.key.length === 1 ? event.key.toLowerCase() : event.key));
    if (!found || (event.key === "Enter" && !inImage)) return;
    event.preventDefault();
    found.act(event.key, event);
  });
}

function stepSample(app: App, step: number): void {
  const { view, sample } = app.state;
  if (!app.result) return;
  if (view === "sample" || view === "grid") app.setSample(sample + step);
  else app.store.set({ view: "sample" });
}

function nextWindow(app: App): void {
  const windows = presets(app).map(([, window]) => window());
  const now = windows.findIndex((window) => window.join() === app.state.window.join());
  app.store.set({ window: windows[(now + 1) % windows.length]! });
}
