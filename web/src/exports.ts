/** Saves the current result. */

import type { App } from "./app";
import type { ExportKind, ExportWhat } from "./api";
import { getExport } from "./api";
import { get, make } from "./dom";
import type { Stage } from "./stage";

export class ExportPanel {
  private readonly app: App;

  constructor(app: App, stage: Stage) {
    this.app = app;
    get("what").addEventListener("change", () => app.changed());
    get("save-nifti").addEventListener("click", () => void this.save(this.what(), "nifti"));
    get("save-seg").addEventListener("click", () => void this.save(this.what(), "seg"));
    get("save-json").addEventListener("click", () => void this.save("numbers", "json"));
    get("save-png").addEventListener("click", () => {
      const { seed, view } = app.state;
      const name = [app.scan!.file_stem, ...(app.result ? [`seed-${seed}`] : []), view].join("_");
      stage.toPng().then((blob) => download(blob, `${name}.png`), (error) => app.fail(error));
    });
  }

  update(): void {
    const { result, state, scan } = this.app;
    for (const id of ["save-nifti", "save-json"]) get<HTMLButtonElement>(id).disabled = !result?.id;
    const reason = scan?.is_dicom === false ? "Needs a DICOM series" : this.what() === "gamma" ? "A γ map is not a segmentation" : "";
    const seg = get<HTMLButtonElement>("save-seg");
    seg.disabled = !result?.id || reason !== "";
    seg.title = reason || "Refers to the DICOM series of the scan";
    get<HTMLButtonElement>("save-png").disabled = !scan;
    get<HTMLSelectElement>("what").options[0]!.textContent = `Sample ${state.sample + 1}`;
  }

  private what(): ExportWhat {
    return get<HTMLSelectElement>("what").value as ExportWhat;
  }

  private async save(what: ExportWhat, kind: ExportKind): Promise<void> {
    const { result, state } = this.app;
    if (!result?.id) return;
    try {
      download(...(await getExport(result.id, what, kind, state.sample)));
    } catch (error) {
      this.app.fail(error);
    }
  }
}

function download(blob: Blob, name: string): void {
  const link = make("a", { href: URL.createObjectURL(blob), download: name });
  link.click();
  window.setTimeout(() => URL.revokeObjectURL(link.href), 10_000);
}
