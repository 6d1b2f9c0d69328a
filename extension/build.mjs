// Bundles the extension host, one script and one style sheet for the webviews each, or the unit tests, with esbuild.
import { readdirSync, rmSync } from "node:fs";
import { join } from "node:path";
import esbuild from "esbuild";

const folder = import.meta.dirname;
const watch = process.argv.includes("--watch");
const shared = { bundle: true, platform: "node", format: "cjs", target: "node20", logLevel: "info" };

if (process.argv.includes("--tests")) {
  const tests = join(folder, "test");
  rmSync("dist/test", { recursive: true, force: true });
  await esbuild.build({
    ...shared,
    entryPoints: readdirSync(tests)
      .filter((name) => name.endsWith(".test.ts"))
      .map((name) => join(tests, name)),
    outdir: "dist/test",
  });
} else {
  const bundled = { ...shared, minify: !watch, sourcemap: watch };
  const host = { ...bundled, entryPoints: [join(folder, "src", "extension.ts")], outfile: "dist/extension.js", external: ["vscode"] };
  // A page per panel; report.css also goes alone, into exported reports.
  const pages = ["ir.ts", "pipeline.ts", "mask.ts", "report.ts", "explain.ts", "contract.ts", "style.css", "report.css"];
  const views = {
    ...bundled,
    platform: "browser",
    format: "iife",
    target: "chrome122",
    entryPoints: pages.map((name) => join(folder, "src", "webviews", name)),
    outdir: "dist/webviews",
  };
  for (const options of [host, views]) {
    if (watch) await (await esbuild.context(options)).watch();
    else await esbuild.build(options);
  }
}
