// One VS Code in a fresh profile: start, stop, and know which processes belong to it.
import { spawn, type ChildProcess } from "node:child_process";
import { closeSync, cpSync, mkdirSync, openSync, readdirSync, readFileSync, writeFileSync } from "node:fs";
import { createServer } from "node:net";
import { join } from "node:path";
import { finished } from "./processes";
import type { Runtime } from "./runtime";
import { until } from "./until";

/** No prompt, no toast and no request that is not the extension's. */
const QUIET = {
  "workbench.startupEditor": "none",
  "workbench.tips.enabled": false,
  "workbench.enableExperiments": false,
  "workbench.welcomePage.walkthroughs.openOnInstall": false,
  "telemetry.telemetryLevel": "off",
  "update.mode": "none",
  "extensions.autoUpdate": false,
  "extensions.autoCheckUpdates": false,
  "extensions.ignoreRecommendations": true,
  "git.enabled": false,
  "remote.autoForwardPorts": false,
  "chat.disableAIFeatures": true,
  "workbench.secondarySideBar.defaultVisibility": "hidden",
  "editor.minimap.enabled": false,
  "editor.hover.delay": 100,
  // As on the desktop: a browser saves by itself.
  "files.autoSave": "off",
  // So that the text of a terminal is in the page.
  "terminal.integrated.gpuAcceleration": "off",
  // Pages of the workbench in a tab, not over the editors.
  "workbench.editor.useModal": "off",
  "window.restoreWindows": "none",
  // No picture of something on its way.
  "workbench.reduceMotion": "on",
};

const START = 240_000;
const STOP = 120_000;

export interface Profile {
  /** Everything of this editor lives here. */
  folder: string;
  /** What `install` has made; the editor has a copy of it. */
  extensions: string;
  /** `cubridge.interpreter`; null leaves the choice to the extension. */
  python: string | null;
  /** Ask for workspace trust as the desktop does. */
  trust: boolean;
  settings?: Record<string, unknown>;
  /** For tests inside the extension host. */
  testDriver?: boolean;
  port?: number;
}

export interface Running {
  pid: number;
  argv: string[];
}

/** Compiled kernels are kept from run to run. */
export const engineCache = (runtime: Runtime): string => join(runtime.cache, "engine");

/** Nothing is asked of a marketplace. */
const GALLERY = { EXTENSIONS_GALLERY: JSON.stringify({ serviceUrl: "", itemUrl: "", resourceUrlTemplate: "" }) };

/** Installs the packaged extension as a user does, into a folder of extensions below `folder`; returns that. */
export async function install(runtime: Runtime, vsix: string, folder: string): Promise<string> {
  const extensions = join(folder, "extensions");
  mkdirSync(extensions, { recursive: true });
  writeFileSync(join(folder, "config.yaml"), "auth: none\n");
  const places = ["--config", join(folder, "config.yaml"), "--user-data-dir", join(folder, "user"), "--extensions-dir", extensions];
  const env = { ...process.env, HOME: folder, ...GALLERY };
  const done = await finished(runtime.node, [runtime.codeServer, ...places, "--install-extension", vsix, "--force"], { env });
  if (done.code !== 0) throw new Error(`the .vsix cannot be installed: ${done.stderr}${done.stdout}`);
  return extensions;
}

export class CodeServer {
  private constructor(
    private readonly child: ChildProcess,
    private readonly home: string,
    readonly profile: Profile,
    readonly port: number,
  ) {}

  static async start(runtime: Runtime, profile: Profile): Promise<CodeServer> {
    const { folder } = profile;
    const home = join(folder, "home");
    for (const name of ["home", "user/User", "user/Machine"]) mkdirSync(join(folder, name), { recursive: true });
    writeFileSync(join(folder, "config.yaml"), "auth: none\n");
    const trust = { "security.workspace.trust.enabled": profile.trust, "security.workspace.trust.startupPrompt": "never" };
    writeFileSync(join(folder, "user", "User", "settings.json"), JSON.stringify({ ...QUIET, ...trust, ...profile.settings }, null, 2));
    // A remote window drops a setting of machine scope from the user's file at times: it belongs here.
    const machine = profile.python ? { "cubridge.interpreter": [profile.python] } : {};
    writeFileSync(join(folder, "user", "Machine", "settings.json"), JSON.stringify(machine, null, 2));

    cpSync(profile.extensions, join(folder, "extensions"), { recursive: true });
    const env = { ...process.env, HOME: home, XDG_CACHE_HOME: engineCache(runtime), ...GALLERY };
    const places = ["--config", join(folder, "config.yaml"), "--user-data-dir", join(folder, "user"), "--extensions-dir", join(folder, "extensions")];

    const port = profile.port ?? (await freePort());
    const out = openSync(join(folder, "code-server.log"), "w");
    const flags = ["--disable-telemetry", "--disable-update-check", "--disable-getting-started-override", "--ignore-last-opened"];
    if (!profile.trust) flags.push("--disable-workspace-trust");
    if (profile.testDriver) flags.push("--vscode-option", "enable-smoke-test-driver");
    // A group of its own: Ctrl-C in the terminal reaches us only, and we stop it in order.
    const child = spawn(runtime.node, [runtime.codeServer, ...places, "--bind-addr", `127.0.0.1:${port}`, "--auth", "none", ...flags], {
      env,
      detached: true,
      stdio: ["ignore", out, out],
    });
    closeSync(out);
    const server = new CodeServer(child, home, profile, port);
    await until(`code-server answers on port ${port}`, START, async () => {
      if (child.exitCode !== null) throw new Error(`code-server ended: ${readFileSync(join(folder, "code-server.log"), "utf8")}`);
      return (await fetch(`${server.origin}/healthz`).catch(() => null))?.ok;
    });
    return server;
  }

  get origin(): string {
    return `http://127.0.0.1:${this.port}`;
  }

  /** The address that opens `folder`, with `file` in an editor. */
  address(folder: string, file?: string): string {
    return this.page(folder, file ? { openFile: join(folder, file) } : {});
  }

  /** The address that opens `folder` and runs `tests` inside the extension host. */
  testPage(folder: string, extension: string, tests: string): string {
    return this.page(folder, { extensionDevelopmentPath: extension, extensionTestsPath: tests });
  }

  private page(folder: string, paths: Record<string, string>): string {
    const payload = Object.entries(paths).map(([key, path]) => [key, `vscode-remote://127.0.0.1:${this.port}${path}`]);
    const query = payload.length > 0 ? `&payload=${encodeURIComponent(JSON.stringify(payload))}` : "";
    return `${this.origin}/?folder=${encodeURIComponent(folder)}${query}`;
  }

  /** All processes of this editor: they share its home folder, whatever group they made. */
  processes(): Running[] {
    const found: Running[] = [];
    for (const name of readdirSync("/proc")) {
      if (!/^\d+$/.test(name) || Number(name) === process.pid) continue;
      try {
        const environment = readFileSync(`/proc/${name}/environ`, "utf8").split("\0");
        const argv = readFileSync(`/proc/${name}/cmdline`, "utf8").split("\0").slice(0, -1);
        if (environment.includes(`HOME=${this.home}`) && argv.length > 0) found.push({ pid: Number(name), argv });
      } catch {
        // it ended while we looked, or is not ours to read
      }
    }
    return found;
  }

  /** Processes whose command line has `word`, as `-m cubridge_engine.jobs.worker`. */
  running(word: string): Running[] {
    return this.processes().filter((item) => item.argv.includes(word));
  }

  /** Stops it and waits until nothing of it runs. Rejects, after ending them, with what did not end by itself. */
  async stop(): Promise<void> {
    this.signal("SIGTERM");
    try {
      await until("nothing of the editor runs", STOP, () => this.processes().length === 0);
    } catch {
      const left = this.processes();
      for (const { pid } of left) process.kill(pid, "SIGKILL");
      throw new Error(`still running after the editor was stopped: ${left.map((item) => item.argv.slice(0, 4).join(" ")).join("; ")}`);
    }
  }

  private signal(name: NodeJS.Signals): void {
    try {
      if (this.child.pid) process.kill(-this.child.pid, name);
    } catch {
      // it is gone already
    }
  }
}

function freePort(): Promise<number> {
  return new Promise((resolve, reject) => {
    const probe = createServer();
    probe.once("error", reject);
    probe.listen(0, "127.0.0.1", () => {
      const address = probe.address();
      probe.close(() => {
        if (address && typeof address === "object") resolve(address.port);
        else reject(new Error("no free port"));
      });
    });
  });
}
