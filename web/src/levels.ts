/** The hierarchy: one row a latent level, coarse to fine, with what it decides, what came of it, and its controls. */

import type { App } from "./app";
import type { LevelControl } from "./api";
import { get, make } from "./dom";
import type { Painter } from "./picture";
import type { Result } from "./result";
import { sharesUnderCursor } from "./stage";
import { AS_IT_IS, isAsItIs } from "./state";

const WORDS = ["is it there, how large", "its overall shape", "its larger bumps", "its smaller bumps", "the last pixels of the border"];
const THUMBNAIL = 48;

interface Row {
  level: number;
  element: HTMLElement;
  picture: HTMLCanvasElement;
  bar: HTMLMeterElement;
  share: HTMLElement;
  hold: HTMLButtonElement;
  temperature: HTMLInputElement;
  value: HTMLOutputElement;
}

/** Say what a level decides; level 0 is the finest. */
export function levelName(level: number, number: number, withWords = true): string {
  const place = number > 1 ? (number - 1 - level) / (number - 1) : 0;
  const size = place === 0 ? "coarse" : place === 1 ? "fine" : "";
  const words = [size, WORDS[Math.round(place * (WORDS.length - 1))]].filter(Boolean).join(": ");
  return `level ${level + 1}${withWords ? `: ${words}` : size && ` (${size})`}`;
}

export class LevelPanel {
  private readonly app: App;
  private readonly painter: Painter;
  private readonly rows: Row[];
  private painted: [Result | null, number, string] = [null, -1, ""];

  constructor(app: App, painter: Painter) {
    this.app = app;
    this.painter = painter;
    const number = app.model.num_levels;
    get("hierarchy").hidden = number === 0;
    this.rows = Array.from({ length: number }, (_, n) => this.row(number - 1 - n));
    get("levels").append(...this.rows.map((row) => row.element));
    get("levels-reset").addEventListener("click", () => app.redraw({ levels: app.defaultLevels() }));
  }

  update(): void {
    const { app } = this;
    const here = sharesUnderCursor(app);
    const shares = here ?? app.result?.numbers?.level_shares ?? null;
    const most = shares ? Math.max(...shares) : 0;
    get("levels-of").textContent = here ? "share of the uncertainty under the cursor" : shares ? "share of the uncertainty, whole lesion" : "";
    get<HTMLButtonElement>("levels-reset").disabled = app.state.levels.every(isAsItIs);
    for (const row of this.rows) {
      const control = app.state.levels[row.level] ?? AS_IT_IS;
      const share = shares?.[row.level] ?? null;
      row.bar.value = share ?? 0;
      row.share.textContent = share === null ? "" : `${Math.round(100 * share)} %`;
      row.element.classList.toggle("most", share !== null && share === most);
      row.hold.setAttribute("aria-pressed", String(control.hold));
      if (document.activeElement !== row.temperature) row.temperature.value = String(control.temperature);
      row.value.textContent = `× ${control.temperature.toFixed(1)}`;
      row.value.classList.toggle("changed", control.temperature !== 1);
    }
    this.paint();
  }

  /** Paint the first sample after each level, when there is a new one. */
  private paint(): void {
    const { result, state, scan } = this.app;
    const window = state.window.join(" ");
    const [known, version, before] = this.painted;
    if (!scan || (known === result && version === (result?.version ?? -1) && before === window)) return;
    this.painted = [result, result?.version ?? -1, window];
    const size = THUMBNAIL * devicePixelRatio;
    for (const { picture, level } of this.rows) {
      picture.width = picture.height = size;
      const context = picture.getContext("2d")!;
      context.clearRect(0, 0, size, size);
      if (!result) continue;
      const frame = this.painter.fit(this.painter.focus("close"), 0, 0, size, size);
      this.painter.paint(context, frame, result.slice, { kind: "map", patch: result.outputOf(level), ramp: "mean" }, false);
    }
  }

  private row(level: number): Row {
    const name = levelName(level, this.app.model.num_levels);
    const change = (changes: Partial<LevelControl>): void => {
      const levels = this.app.state.levels.map((control, n) => (n === level ? { ...control, ...changes } : control));
      this.app.redraw({ levels });
    };
    const control = (): LevelControl => this.app.state.levels[level] ?? AS_IT_IS;
    const picture = make("canvas", { class: "thumbnail", role: "img", "aria-label": `the first sample after ${name}` });
    const bar = make("meter", { min: 0, max: 1, value: 0, "aria-label": `share of the uncertainty of ${name}` });
    const share = make("span", { class: "share" });
    const hold = make(
      "button",
      { type: "button", title: "All samples share this level", "aria-label": `Hold ${name}`, click: () => change({ hold: !control().hold }) },
      "Hold",
    );
    const redraw = make(
      "button",
      { type: "button", title: "Draw this level anew and no other", "aria-label": `Redraw ${name}`, click: () => change({ seed: control().seed + 1 }) },
      "Redraw",
    );
    const temperature = make("input", {
      type: "range", min: 0, max: 2, step: 0.1, value: 1,
      title: "Temperature: less or more variety from this level",
      "aria-label": `Temperature of ${name}`,
      "data-level": level,
      input: () => change({ temperature: Number(temperature.value) }),
    });
    const value = make("output", { class: "value" });
    const [number, ...words] = name.split(": ");
    const title = make("div", { class: "title" }, make("b", {}, `${number![0]!.toUpperCase()}${number!.slice(1)}`), ` ${words.join(": ")}`);
    const element = make(
      "li",
      { class: "level" },
      picture,
      make("div", { class: "about" }, title, make("div", { class: "line" }, bar, share), make("div", { class: "line" }, hold, redraw, temperature, value)),
    );
    return { level, element, picture, bar, share, hold, temperature, value };
  }
}
