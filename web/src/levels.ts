/** The causes of differences between samples: the member of an ensemble, the presence of a lesion if the model draws it
 *  separately, and the latent levels, coarse to fine. Each has one row with a description, its output, and its controls. */

import type { App } from "./app";
import type { LevelControl, ModelInfo } from "./api";
import { get, make } from "./dom";
import type { Painter } from "./picture";
import type { Result } from "./result";
import { sharesUnderCursor } from "./readout";
import { AS_IT_IS, isAsItIs } from "./state";

const WORDS = ["presence and size", "overall shape", "larger details", "smaller details", "border pixels"];
const THUMBNAIL = 48;

/** The texts for a part of the noise that is not a latent level. */
interface Choice {
  words: string;
  hold: string;
  redraw: string;
}

/** By name in `noise_names`. */
const CHOICES: Record<string, Choice> = {
  member: {
    words: "which network is used",
    hold: "Use one network for all samples",
    redraw: "Choose new networks and keep the rest of the noise",
  },
  presence: {
    words: "whether anything is outlined",
    hold: "Use the same noise for the presence in all samples",
    redraw: "Draw new noise for the presence only",
  },
};
const OTHER_CHOICE: Choice = { words: "", hold: "Use the same noise for all samples", redraw: "Draw new noise for this part only" };

function choiceOf(model: ModelInfo, cause: number): Choice | null {
  return cause < model.num_levels ? null : (CHOICES[model.noise_names[cause]!] ?? OTHER_CHOICE);
}

interface Row {
  /** Its index in `noise_names`. */
  cause: number;
  element: HTMLElement;
  picture: HTMLCanvasElement;
  bar: HTMLMeterElement;
  share: HTMLElement;
  hold: HTMLButtonElement;
  temperature: HTMLInputElement;
  value: HTMLOutputElement;
}

/** Return the indices in `noise_names` in order of display: the member, the presence, then the levels, coarse to fine. */
export function coarseToFine(model: ModelInfo): number[] {
  return model.noise_names.map((_, cause) => cause).reverse();
}

/** Describe what a part of the noise determines. */
export function causeName(model: ModelInfo, cause: number, withWords = true): string {
  const [name, number] = [model.noise_names[cause]!, model.num_levels];
  const choice = choiceOf(model, cause);
  if (choice) return withWords && choice.words ? `${name}: ${choice.words}` : name;
  const place = number > 1 ? (number - 1 - cause) / (number - 1) : 0;
  const size = place === 0 ? "coarse" : place === 1 ? "fine" : "";
  const words = [size, WORDS[Math.round(place * (WORDS.length - 1))]].filter(Boolean).join(": ");
  return `${name}${withWords ? `: ${words}` : size && ` (${size})`}`;
}

export class LevelPanel {
  private readonly app: App;
  private readonly painter: Painter;
  private readonly rows: Row[];
  private painted: [Result | null, number, string] = [null, -1, ""];

  constructor(app: App, painter: Painter) {
    this.app = app;
    this.painter = painter;
    get("hierarchy").hidden = app.model.num_levels === 0;
    this.rows = coarseToFine(app.model).map((cause) => this.row(cause));
    get("levels").append(...this.rows.map((row) => row.element));
    get("levels-reset").addEventListener("click", () => app.redraw({ levels: app.defaultLevels() }));
  }

  update(): void {
    const { app } = this;
    const here = sharesUnderCursor(app);
    const all = app.result?.levelTotals;
    const shares = here ?? (all ? app.model.noise_names.map((name) => all[name]!) : null);
    const most = shares ? Math.max(...shares) : 0;
    get("levels-of").textContent = here ? "Share of the uncertainty under the cursor" : shares ? "Share of the uncertainty in the clicked slice" : "";
    get<HTMLButtonElement>("levels-reset").disabled = app.state.levels.every(isAsItIs);
    for (const row of this.rows) {
      const control = app.state.levels[row.cause] ?? AS_IT_IS;
      const share = shares?.[row.cause] ?? null;
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

  /** Paint the first sample after each level, if it has changed. */
  private paint(): void {
    const { result, state, scan } = this.app;
    const window = state.window.join(" ");
    const [known, version, before] = this.painted;
    if (!scan || (known === result && version === (result?.version ?? -1) && before === window)) return;
    this.painted = [result, result?.version ?? -1, window];
    const size = THUMBNAIL * devicePixelRatio;
    for (const { picture, cause } of this.rows) {
      picture.width = picture.height = size;
      const context = picture.getContext("2d")!;
      context.clearRect(0, 0, size, size);
      if (!result) continue;
      const frame = this.painter.fit(this.painter.focus("close"), 0, 0, size, size);
      this.painter.paint(context, frame, result.cutAt(result.slice), { kind: "map", patch: result.outputOf(cause), ramp: "mean" }, false);
    }
  }

  private row(cause: number): Row {
    const { model } = this.app;
    const choice = choiceOf(model, cause);
    const name = causeName(model, cause);
    const change = (changes: Partial<LevelControl>): void => {
      const levels = this.app.state.levels.map((control, n) => (n === cause ? { ...control, ...changes } : control));
      this.app.redraw({ levels });
    };
    const control = (): LevelControl => this.app.state.levels[cause] ?? AS_IT_IS;
    const shown = choice ? "The image, before any level" : `First sample after ${name}`;
    const picture = make("canvas", { class: "thumbnail", role: "img", title: shown, "aria-label": shown });
    const bar = make("meter", { min: 0, max: 1, value: 0, "aria-label": `Share of the uncertainty: ${name}` });
    const share = make("span", { class: "share" });
    const hold = make(
      "button",
      { type: "button", title: choice?.hold ?? "Use the same noise for all samples at this level", "aria-label": `Hold ${name}`, click: () => change({ hold: !control().hold }) },
      "Hold",
    );
    const redraw = make(
      "button",
      { type: "button", title: choice?.redraw ?? "Draw new noise for this level only", "aria-label": `Redraw ${name}`, click: () => change({ seed: control().seed + 1 }) },
      "Redraw",
    );
    const temperature = make("input", {
      type: "range", min: 0, max: 2, step: 0.1, value: 1,
      title: "Temperature: how much the samples vary at this level",
      "aria-label": `Temperature of ${name}`,
      "data-level": cause,
      input: () => change({ temperature: Number(temperature.value) }),
    });
    const value = make("output", { class: "value" });
    const [number, ...words] = name.split(": ");
    const title = make("div", { class: "title" }, make("b", {}, `${number![0]!.toUpperCase()}${number!.slice(1)}`), ` ${words.join(": ")}`);
    const element = make(
      "li",
      { class: "level" },
      picture,
      make("div", { class: "about" }, title, make("div", { class: "line" }, bar, share), make("div", { class: "line" }, hold, redraw, ...(choice ? [] : [temperature, value]))),
    );
    return { cause, element, picture, bar, share, hold, temperature, value };
  }
}
