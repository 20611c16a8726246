/** The dark or light theme: that of the system, until the user chooses. */

import { get } from "./dom";

const KEY = "phiseg-theme";

export function followTheme(): void {
  const system = matchMedia("(prefers-color-scheme: light)");
  const apply = (): void => {
    document.documentElement.dataset["theme"] = localStorage.getItem(KEY) ?? (system.matches ? "light" : "dark");
  };
  system.addEventListener("change", apply);
  get("theme").addEventListener("click", () => {
    localStorage.setItem(KEY, document.documentElement.dataset["theme"] === "dark" ? "light" : "dark");
    apply();
  });
  apply();
}
