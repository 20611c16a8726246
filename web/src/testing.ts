/** Read-only state of the page for tests, as `window.phiseg`. */

import type { App } from "./app";

export function exposeForTests(app: App): void {
  const view = {
    get state() {
      return structuredClone(app.state);
    },
    get scan() {
      return structuredClone(app.scan);
    },
    get busy() {
      return app.busy;
    },
    get cursor() {
      return app.scan && [...app.cursor];
    },
    get result() {
      const { result } = app;
      if (!result) return null;
      return {
        id: result.id,
        request: structuredClone(result.request),
        box: result.sampleBox,
        samples: result.samples.map((sample) => [...sample]),
        mean: result.summary && [...result.summary.means],
        levelShares: result.summary?.shares && [...result.summary.shares],
        levelOutputs: result.summary?.outputs && [...result.summary.outputs],
        numbers: structuredClone(result.numbers),
        scores: structuredClone(result.scores),
      };
    },
  };
  Object.defineProperty(window, "phiseg", { value: Object.freeze(view) });
}
