/** Assembles the page. Each change updates all parts in one animation frame. */

import "./style.css";
import { type ScanInfo, getSession } from "./api";
import { App } from "./app";
import { Controls } from "./controls";
import { get, make } from "./dom";
import { ExportPanel } from "./exports";
import { listenToKeys } from "./keys";
import { LevelPanel } from "./levels";
import { NumbersPanel } from "./numbers";
import { readout } from "./readout";
import { Stage } from "./stage";
import { toHash } from "./state";
import { exposeForTests } from "./testing";
import { followTheme } from "./theme";

async function start(): Promise<void> {
  followTheme();
  const session = await getSession();
  let update: (() => void) | null = null;
  let frame = 0;
  const changed = (): void => {
    frame ||= requestAnimationFrame(() => {
      frame = 0;
      update?.();
    });
  };
  const app = new App(session, changed, report);
  const stage = new Stage(app, get<HTMLCanvasElement>("picture"));
  const parts = [new Controls(app, stage), new NumbersPanel(app), new LevelPanel(app, stage.painter), new ExportPanel(app, stage)];
  listenToKeys(app, stage);
  linkToClipboard();
  get("model").textContent = session.model.name;
  get("version").textContent = `PHiSeg ${session.version}`;
  let zoomedFor = "";
  update = () => {
    const clicked = `${app.state.scan} ${app.state.point}`;
    if (app.result && app.state.zoom === 1 && !app.state.centre && zoomedFor !== clicked) {
      zoomedFor = clicked; // a small lesion in a large slice: zoom in once
      if (stage.painter.focus().width < app.scan!.width / 1.5) stage.fitLesion();
    }
    stage.paint();
    for (const part of parts) part.update();
    updateStatus(app);
    writeLink(app);
  };
  exposeForTests(app);
  await app.restore(location.hash);
  addEventListener("hashchange", () => {
    if (location.hash.slice(1) !== toHash(app.state)) void app.restore(location.hash);
  });
}

function updateStatus(app: App): void {
  get("status").textContent = app.busy ? `${app.busy} …` : app.scan ? about(app.scan) : "";
  const bar = get<HTMLProgressElement>("progress");
  bar.value = app.progress;
  bar.classList.toggle("idle", !app.busy);
  get("readout").textContent = readout(app);
  const hint = app.scan ? `Click ${app.model.centred_on ? `a ${app.model.centred_on}` : "the slice"} to draw samples` : "Drop a NIfTI file, a picture or a DICOM series here";
  get("hint").textContent = hint;
  get("hint").hidden = Boolean(app.state.point) || Boolean(app.busy);
  document.title = app.scan ? `${app.scan.name} – PHiSeg` : "PHiSeg";
}

function about({ name, width, height, num_slices: slices, spacing_mm: [between, down, right], has_spacing: hasSpacing, plane, split }: ScanInfo): string {
  const grid = [width, height, ...(slices > 1 ? [slices] : [])].join(" × ");
  const spacing = [right, down, ...(slices > 1 ? [between] : [])].map((length) => length.toFixed(2)).join(" × ");
  return `${name}${split === null ? "" : `  ·  ${split} split`}  ·  ${plane}  ·  ${grid}  ·  ${hasSpacing ? `${spacing} mm` : "pixel size unknown"}`;
}

let linkTimer = 0;

/** Update the address, at the rate that browsers allow. */
function writeLink(app: App): void {
  window.clearTimeout(linkTimer);
  linkTimer = window.setTimeout(() => {
    if (app.scan) history.replaceState(null, "", `#${toHash(app.state)}`);
  }, 150);
}

function linkToClipboard(): void {
  const button = get("copy-link");
  button.addEventListener("click", () => {
    navigator.clipboard.writeText(location.href).then(
      () => {
        button.textContent = "Copied";
        window.setTimeout(() => (button.textContent = "Copy link"), 1500);
      },
      () => report("The browser does not allow the page to copy. Copy the link from the address bar."),
    );
  });
}

/** Show a message until it is dismissed. */
function report(reason: string): void {
  const messages = get("messages");
  const text = reason.charAt(0).toUpperCase() + reason.slice(1);
  if ([...messages.children].some((shown) => shown.firstChild?.textContent === text)) return;
  const message: HTMLElement = make(
    "div",
    { class: "message" },
    make("span", {}, text),
    make("button", { type: "button", "aria-label": "Dismiss", click: () => message.remove() }, "×"),
  );
  messages.append(message);
}

start().catch((error: unknown) => report(error instanceof Error ? error.message : String(error)));
