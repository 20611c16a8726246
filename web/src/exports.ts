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
    get("save-nifti").addEventListener("click", () => void this.save(this.what(), "nifti"));
    get("save-seg").addEventListener("click", () => void this.save(this.what(), "seg"));
    get("save-json").addEventListener("click", () => void this.save("numbers", "json"));
    get("save-png").addEventListener("click", () => {
      stage.toPng().then((blob) => download(blob, `${app.state.view}.png`), (error) => app.fail(error));
    });
  }

  update(): void {
    const { result, state, scan } = this.app;
    for (const id of ["save-nifti", "save-seg", "save-json"]) get<HTMLButtonElement>(id).disabled = !result?.id;
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
