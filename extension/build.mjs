// Bundles the extension (one file, everything but the editor's own API), or its unit tests, with esbuild.
import { readdirSync, rmSync } from "node:fs";
import { join } from "node:path";
import esbuild from "esbuild";

const folder = import.meta.dirname;
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
  const options = {
    ...shared,
    entryPoints: [join(folder, "src", "extension.ts")],
    outfile: "dist/extension.js",
    external: ["vscode"],
    minify: !process.argv.includes("--watch"),
    sourcemap: process.argv.includes("--watch"),
  };
  if (process.argv.includes("--watch")) await (await esbuild.context(options)).watch();
  else await esbuild.build(options);
}
