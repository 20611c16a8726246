/** Measurements of the samples, with a histogram of the sizes. */

import type { App } from "./app";
import type { ClassNumbers, Numbers, Spread } from "./api";
import { get, make, makeSvg } from "./dom";

type Unit = Numbers["size_unit" | "length_unit"];

const [WIDTH, HEIGHT] = [300, 72];

export class NumbersPanel {
  private readonly app: App;
  private shown = "";

  constructor(app: App) {
    this.app = app;
    const classes = get<HTMLSelectElement>("class");
    classes.append(...app.model.classes.slice(1).map((name, n) => make("option", { value: n + 1 }, name)));
    classes.hidden = app.model.classes.length < 3;
    classes.addEventListener("change", () => app.store.set({ label: Number(classes.value) }));
  }

  update(): void {
    const { result, state, scan } = this.app;
    const key = [scan?.id, result?.version, result?.request.seed, result?.id, state.sample, state.label, this.app.busy].join(" ");
    if (key === this.shown) return;
    this.shown = key;
    get<HTMLSelectElement>("class").value = String(state.label);
    const name = this.app.model.classes[state.label];
    const numbers = name === undefined ? undefined : result?.numbers?.classes[name];
    get("numbers").replaceChildren(...(numbers ? this.content(numbers) : [this.empty()]));
    this.updateScores();
  }

  private content(numbers: ClassNumbers): Node[] {
    const { result, scan, state } = this.app;
    const { size, diameter, present, size_if_present: sizeIf, diameter_if_present: diameterIf } = numbers;
    const { agreement, mean_gamma: gamma, unusual, size_unit: unit, length_unit: length } = result!.numbers!;
    const sizeName = unit === "px" ? "Area" : "Volume";
    const facts = [`agreement ${agreement.toFixed(2)}`, `mean γ ${gamma.toFixed(2)}`];
    if (scan!.num_slices === 1 && scan!.has_spacing) facts.push(`slice of ${scan!.spacing_mm[0].toFixed(2)} mm`);
    const notes = [facts.join("  ·  ")];
    if (present < 1 && sizeIf && diameterIf) {
      const name = this.app.model.classes[state.label];
      notes.unshift(`Among samples with ${name}: ${sizeName.toLowerCase()} ${inWords(sizeIf, unit)}, diameter ${inWords(diameterIf, length)}.`);
    }
    if (!scan!.has_spacing) notes.push("The pixel size is unknown, so measurements are in pixels.");
    const cut = result!.numbers!.truncated;
    if (cut > 0) notes.push(`${percent(cut)} of the samples are truncated: the lesion may be larger than measured.`);
    return [
      ...(unusual === null ? [] : [make("p", { class: "warning", role: "alert" }, `Warning: ${unusual}.`)]),
      make(
        "div",
        { class: "figures" },
        figure("Present in", percent(present), "of the samples"),
        figure(sizeName, `${digits(size.median, unit)} ${unit}`, interval(size, unit)),
        figure("Diameter", `${digits(diameter.median, length)} ${length}`, interval(diameter, length)),
      ),
      histogram(size, unit, state.sample),
      ...notes.map((note) => make("p", { class: "note" }, note)),
    ];
  }

  private empty(): Node {
    const { app } = this;
    const what = app.model.centred_on ?? "slice";
    const text = app.busy && app.state.point ? "Computing the measurements …" : `Click a ${what} in the image to see how different experts might segment it.`;
    return make("p", { class: "empty" }, text);
  }

  private updateScores(): void {
    const { result, scan } = this.app;
    get("annotators").hidden = !scan?.annotators.length;
    const scores = result?.scores;
    const row = (name: string, value: number | null | undefined, meaning: string): Node =>
      make("div", { class: "score", title: meaning }, make("dt", {}, name), make("dd", {}, value == null ? "–" : value.toFixed(3)));
    get("scores").replaceChildren(
      row("GED", scores?.ged, "Distance between the distributions of samples and annotations; lower is better"),
      row("GED floor", scores?.ged_floor, "Expected GED of samples from the annotators' own distribution, if annotators are independent given the image"),
      row("S_NCC", scores?.s_ncc, "Correlation of the γ map with the errors; 1 is best"),
      row("Dice", scores?.dice, "Overlap of the consensus with the annotators; higher is better"),
    );
  }
}

function figure(name: string, value: string, below: string): Node {
  return make("div", { class: "figure" }, make("span", { class: "name" }, name), make("strong", {}, value), make("span", { class: "below" }, below));
}

/** Draw a histogram of the sizes with the median, the 90 % interval and the selected sample. */
function histogram({ samples, median, low, high }: Spread, unit: Unit, chosen: number): Node {
  const [smallest, largest] = [Math.min(...samples), Math.max(...samples)];
  const spare = Math.max((largest - smallest) * 0.04, largest * 0.02, 1e-6);
  const [from, to] = [Math.max(0, smallest - spare), largest + spare];
  const number = Math.min(24, Math.max(6, Math.ceil(2 * Math.sqrt(samples.length))));
  const counts = new Array<number>(number).fill(0);
  for (const size of samples) counts[Math.min(number - 1, Math.floor(((size - from) / (to - from)) * number))]! += 1;
  const most = Math.max(...counts);
  const base = HEIGHT - 18;
  const x = (size: number): number => ((size - from) / (to - from)) * WIDTH;
  const line = (size: number, name: string) => makeSvg("line", { class: name, x1: x(size), x2: x(size), y1: 2, y2: base });
  const bars = counts.map((count, n) => {
    const height = (count / most) * (base - 8);
    return makeSvg("rect", { class: "bar", x: (n * WIDTH) / number + 1, y: base - height, width: WIDTH / number - 2, height, rx: 1.5 });
  });
  const text = (size: number, anchor: string, words: string, place = x(size)) =>
    makeSvg("text", { x: place, y: HEIGHT - 4, "text-anchor": anchor }, words);
  const drawn = samples[chosen];
  return makeSvg(
    "svg",
    { class: "histogram", viewBox: `0 0 ${WIDTH} ${HEIGHT}`, role: "img", "aria-label": `Sizes of ${samples.length} samples, median ${digits(median, unit)} ${unit}` },
    makeSvg("rect", { class: "interval", x: x(low), y: 2, width: Math.max(x(high) - x(low), 1), height: base - 2 }),
    ...bars,
    makeSvg("line", { class: "axis", x1: 0, x2: WIDTH, y1: base, y2: base }),
    line(median, "median"),
    ...(drawn === undefined ? [] : [makeSvg("path", { class: "chosen", d: `M ${x(drawn)} 6 l -4 -6 h 8 z` })]),
    text(from, "start", digits(from, unit), 0),
    text(to, "end", `${digits(to, unit)} ${unit}`, WIDTH),
  );
}

/** Write a measurement with its 90 % interval. */
function inWords(found: Spread, unit: Unit): string {
  return `${digits(found.median, unit)} ${unit} (${interval(found, unit)})`;
}

function interval({ low, high }: Spread, unit: Unit): string {
  return `90 %: ${digits(low, unit)}–${digits(high, unit)}`;
}

function percent(share: number): string {
  return `${Math.round(100 * share)} %`;
}

/** Format a measurement: three significant digits for ml, one decimal for mm, and whole pixels. */
function digits(value: number, unit: Unit): string {
  if (unit !== "ml") return value.toFixed(unit === "mm" ? 1 : 0);
  return value >= 100 ? value.toFixed(0) : value >= 10 ? value.toFixed(1) : value >= 1 ? value.toFixed(2) : value.toFixed(3);
}
