/** The left panel (scans, window, samples) and the view buttons above the image. */

import type { App } from "./app";
import type { Pair } from "./api";
import { get, make } from "./dom";
import type { Stage } from "./stage";
import type { ViewName } from "./state";

const VIEW_TITLES: Record<ViewName, [string, string]> = {
  outlines: ["Outlines", "Outlines of all samples"],
  sample: ["Sample", "One sample at a time; switch with the arrow keys"],
  mean: ["Mean", "Mean probability of the samples"],
  gamma: ["Uncertainty", "γ map: where the samples disagree"],
  grid: ["Grid", "All samples side by side"],
  slices: ["Slices", "All slices of the lesion"],
  levels: ["Levels", "Output after each level, coarse to fine"],
};

export class Controls {
  private readonly app: App;
  private readonly stage: Stage;
  private listed = "";

  constructor(app: App, stage: Stage) {
    this.app = app;
    this.stage = stage;
    get("views").append(
      ...app.views.map((view, n) => {
        const [title, meaning] = VIEW_TITLES[view];
        return make("button", { type: "button", "data-view": view, title: `${meaning} (${n + 1})`, click: () => app.setView(view) }, title);
      }),
    );
    get("presets").append(
      ...presets(app).map(([name, window], n) =>
        make("button", { type: "button", "data-preset": n, click: () => app.store.set({ window: window() }) }, name),
      ),
    );
    const listen = (id: string, event: string, act: (element: HTMLInputElement) => void): void => {
      const element = get<HTMLInputElement>(id);
      element.addEventListener(event, () => act(element));
    };
    listen("scans", "change", (list) => void app.open(list.value));
    listen("find", "input", () => app.changed());
    listen("slice", "input", (slider) => app.setSlice(Number(slider.value)));
    listen("number", "input", (slider) => app.redraw({ numSamples: Number(slider.value), sample: 0 }));
    listen("seed", "change", (field) => app.redraw({ seed: Math.min(Math.max(Math.round(Number(field.value)) || 0, 0), 2 ** 31) }));
    listen("reseed", "click", () => app.redraw({ seed: app.state.seed + 1 }));
    listen("low", "change", () => this.setWindow());
    listen("high", "change", () => this.setWindow());
    listen("show-annotators", "change", (box) => app.store.set({ annotators: box.checked }));
    listen("zoom-in", "click", () => stage.zoomBy(1.4));
    listen("zoom-out", "click", () => stage.zoomBy(1 / 1.4));
    listen("fit", "click", () => stage.fitSlice());
    listen("fit-lesion", "click", () => stage.fitLesion());
    listen("planes", "click", () => app.store.set({ planes: !app.state.planes }));
    get<HTMLInputElement>("number").max = String(app.session.max_samples);
    acceptFiles(app);
  }

  update(): void {
    const { state, scan, result } = this.app;
    this.updateList();
    for (const button of get("views").querySelectorAll("button")) {
      const view = button.dataset["view"] as ViewName;
      button.setAttribute("aria-pressed", String(view === state.view));
      button.disabled = !this.app.canShow(view);
    }
    presets(this.app).forEach(([, window], n) => {
      const same = scan !== null && window().every((value, side) => Math.abs(value - state.window[side]!) < 1e-6);
      get("presets").querySelector(`[data-preset="${n}"]`)?.setAttribute("aria-pressed", String(same));
    });
    const slider = get<HTMLInputElement>("slice");
    slider.max = String((scan?.num_slices ?? 1) - 1);
    slider.value = String(state.slice);
    slider.hidden = (scan?.num_slices ?? 1) < 2;
    get("slice-number").textContent = scan ? `Slice ${state.slice + 1} of ${scan.num_slices}` : "";
    get<HTMLInputElement>("number").value = String(state.numSamples);
    get("number-value").textContent = String(state.numSamples);
    setUnlessEdited("seed", String(state.seed));
    setUnlessEdited("low", String(Number(state.window[0].toPrecision(4))));
    setUnlessEdited("high", String(Number(state.window[1].toPrecision(4))));
    get<HTMLInputElement>("show-annotators").checked = state.annotators;
    const isFixed = !scan || this.stage.isMontage; // nothing to zoom
    for (const id of ["zoom-in", "zoom-out"]) get<HTMLButtonElement>(id).disabled = isFixed;
    get<HTMLButtonElement>("fit").disabled = isFixed || (state.zoom === 1 && !state.centre);
    get<HTMLButtonElement>("fit-lesion").disabled = isFixed || !result;
    const planes = get<HTMLButtonElement>("planes");
    planes.disabled = isFixed || !this.app.hasPlanes;
    planes.setAttribute("aria-pressed", String(this.app.showsPlanes));
    get<HTMLButtonElement>("reseed").disabled = !state.point;
    get("zoom-value").textContent = `${Math.round(100 * state.zoom)} %`;
  }

  private setWindow(): void {
    const [low, high] = ["low", "high"].map((id) => Number(get<HTMLInputElement>(id).value)) as Pair;
    if (low < high) this.app.store.set({ window: [low, high] });
  }

  private updateList(): void {
    const wanted = get<HTMLInputElement>("find").value.trim().toLowerCase();
    const all = this.app.session.listed;
    const key = `${all.length} ${wanted}`;
    const list = get<HTMLSelectElement>("scans");
    if (key !== this.listed) {
      this.listed = key;
      get("find").hidden = all.length < 8;
      const fitting = all.filter(({ name }) => name.toLowerCase().includes(wanted));
      const splits = [...new Set(fitting.map(({ split }) => split))];
      const options = (of: string | null): Node[] =>
        fitting.filter(({ split }) => split === of).map(({ id, name }) => make("option", { value: id, title: name }, name));
      const group = (split: string | null): Node[] => (split === null ? options(null) : [make("optgroup", { label: `${split} split` }, ...options(split))]);
      list.replaceChildren(...splits.flatMap(group));
    }
    list.value = this.app.scan?.id ?? "";
  }
}

/** Return the window presets; CT presets only if the values look like Hounsfield units. */
export function presets(app: App): [string, () => Pair][] {
  const own: [string, () => Pair] = ["Model", () => app.model.window ?? app.scan?.window ?? [0, 1]];
  const range: [string, () => Pair] = ["Full", () => app.scan?.value_range ?? [0, 1]];
  const low = app.model.window?.[0];
  if (low === undefined || low > -100) return [own, range];
  return [["Lung", () => [-1350, 150]], ["Soft tissue", () => [-160, 240]], own];
}

function setUnlessEdited(id: string, value: string): void {
  const field = get<HTMLInputElement>(id);
  if (document.activeElement !== field) field.value = value;
}

/** Open files that are chosen, or dropped anywhere on the page. */
function acceptFiles(app: App): void {
  for (const kind of ["file", "folder"]) {
    const input = get<HTMLInputElement>(`choose-${kind}`);
    get(`open-${kind}`).addEventListener("click", () => input.click());
    input.addEventListener("change", () => {
      const files = [...(input.files ?? [])];
      input.value = "";
      if (files.length) void app.send(files);
    });
  }
  const isFiles = (event: DragEvent): boolean => event.dataTransfer?.types.includes("Files") ?? false;
  addEventListener("dragover", (event) => {
    if (!isFiles(event)) return;
    event.preventDefault();
    get("drop").hidden = false;
  });
  addEventListener("dragleave", (event) => {
    if (!event.relatedTarget) get("drop").hidden = true;
  });
  addEventListener("drop", (event) => {
    event.preventDefault();
    get("drop").hidden = true;
    const items = [...(event.dataTransfer?.items ?? [])];
    const entries = items.map((item) => item.webkitGetAsEntry()).filter((entry) => entry !== null);
    void Promise.all(entries.map(filesOf)).then((files) => app.send(files.flat()), (error) => app.fail(error));
  });
}

/** Return a dropped file, or all files of a dropped folder. */
async function filesOf(entry: FileSystemEntry): Promise<File[]> {
  if (entry.isFile) return [await new Promise<File>((resolve, reject) => (entry as FileSystemFileEntry).file(resolve, reject))];
  const reader = (entry as FileSystemDirectoryEntry).createReader();
  const files: File[] = [];
  for (;;) {
    const some = await new Promise<FileSystemEntry[]>((resolve, reject) => reader.readEntries(resolve, reject));
    if (!some.length) return files;
    for (const inner of some) files.push(...(await filesOf(inner)));
  }
}
