// Bundles the driver of the real editor, `make editor` and the suite that runs inside the extension host.
import { rmSync } from "node:fs";
import { join } from "node:path";
import esbuild from "esbuild";

const folder = import.meta.dirname;
rmSync("dist/editor", { recursive: true, force: true });
await esbuild.build({
  bundle: true,
  platform: "node",
  format: "cjs",
  target: "node20",
  logLevel: "warning",
  sourcemap: "inline",
  // Those with files of their own beside the code are taken from node_modules.
  external: ["vscode", "mocha", "playwright-core", "axe-core"],
  entryPoints: {
    drive: join(folder, "drive.ts"),
    serve: join(folder, "serve.ts"),
    host: join(folder, "host", "index.ts"),
    suite: join(folder, "host", "suite.ts"),
  },
  outdir: "dist/editor",
});
