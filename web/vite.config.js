import { defineConfig } from "vite";

// The built page is committed and shipped in the wheel: fixed names, nothing inline (the server's policy forbids it).
export default defineConfig({
  base: "./",
  build: {
    outDir: "../src/phiseg/viewer/static",
    emptyOutDir: true,
    assetsDir: "",
    assetsInlineLimit: 0,
    modulePreload: false,
    target: "es2022",
    rolldownOptions: {
      output: { entryFileNames: "viewer.js", assetFileNames: "viewer.[ext]" },
    },
  },
  server: { proxy: { "/api": "http://127.0.0.1:8765" } },
});
