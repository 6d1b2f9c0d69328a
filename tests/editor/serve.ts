// make editor: a VS Code in the browser on this machine, with the extension and a sample workspace, until Ctrl-C.
import { existsSync, mkdirSync, mkdtempSync, rmSync } from "node:fs";
import { tmpdir } from "node:os";
import { join } from "node:path";
import { parseArgs } from "node:util";
import { CodeServer, install } from "./codeServer";
import { prepare } from "./runtime";
import { PYTHON, ROOT, sample } from "./sample";

const say = (line: string): void => void process.stdout.write(`${line}\n`);

async function main(): Promise<void> {
  const { values } = parseArgs({
    options: {
      port: { type: "string" },
      workspace: { type: "string" },
      vsix: { type: "string", default: join(ROOT, "dist", "cubridge-0.1.0.vsix") },
    },
  });
  const runtime = await prepare(say, { browser: false });
  const folder = mkdtempSync(join(tmpdir(), "cubridge-editor-"));
  // A sample of its own, kept from run to run: what was edited in it is still there.
  const workspace = values.workspace ?? join(ROOT, "out", "editor-workspace");
  if (!existsSync(workspace)) {
    mkdirSync(workspace, { recursive: true });
    sample(workspace);
  }
  const interrupted = new Promise<void>((resolve) => {
    for (const name of ["SIGINT", "SIGTERM", "SIGHUP"] as const) process.on(name, () => { resolve(); });
  });
  try {
    const server = await CodeServer.start(runtime, {
      folder,
      extensions: await install(runtime, values.vsix, join(folder, "installed")),
      python: PYTHON,
      trust: false,
      ...(values.port ? { port: Number(values.port) } : {}),
    });
    say(`\nVS Code with CuBridge: ${server.address(workspace, existsSync(join(workspace, "flash_fwd")) ? "flash_fwd/kernel.cu" : undefined)}\n`);
    say(`Workspace: ${workspace}. Without a password, on 127.0.0.1 only. Ctrl-C stops it.`);
    await interrupted;
    say("stopping");
    await server.stop();
  } finally {
    rmSync(folder, { recursive: true, force: true });
  }
}

main().catch((error: unknown) => {
  process.stderr.write(`${error instanceof Error ? error.message : String(error)}\n`);
  process.exitCode = 1;
});
