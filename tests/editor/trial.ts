// One scenario's run: named steps with their times, pictures, and on a failure everything that explains it.
import { cpSync, existsSync, mkdirSync, readdirSync, readFileSync, writeFileSync } from "node:fs";
import { join } from "node:path";
import type { Browser } from "playwright-core";
import { CodeServer, engineCache, type Profile, type Running } from "./codeServer";
import { finished } from "./processes";
import type { Runtime } from "./runtime";
import { PYTHON, sample } from "./sample";
import { until } from "./until";
import { JOB, Workbench } from "./workbench";

export interface Scenario {
  name: string;
  /** What of the profile differs from the usual one. */
  profile?: Partial<Profile>;
  run(trial: Trial): Promise<void>;
}

export interface Options {
  /** The extension, installed. */
  extensions: string;
  /** Folder of the artefacts of all scenarios. */
  out: string;
  /** Say each step as it ends. */
  steps: boolean;
}

export interface Step {
  step: string;
  seconds: number;
  passed: boolean;
}

export class Trial {
  /** What was checked so far, in order: a step is over when what it waits for is there. */
  readonly checks: Step[] = [];
  readonly folder: string;
  readonly workspace: string;
  private window: Workbench | undefined;
  private server: CodeServer | undefined;
  private shots = 0;
  private readonly complaints: string[] = [];

  constructor(
    readonly scenario: Scenario,
    readonly runtime: Runtime,
    readonly browser: Browser,
    readonly options: Options,
    temporary: string,
  ) {
    this.folder = join(temporary, scenario.name);
    this.workspace = sample(join(this.folder, "workspace"));
    mkdirSync(this.out, { recursive: true });
  }

  get out(): string {
    return join(this.options.out, this.scenario.name);
  }

  /** Where a file of the workspace is. */
  path(file: string): string {
    return join(this.workspace, file);
  }

  async run(): Promise<void> {
    try {
      this.server = await this.step("start", () =>
        CodeServer.start(this.runtime, {
          folder: join(this.folder, "profile"),
          extensions: this.options.extensions,
          python: PYTHON,
          trust: false,
          ...this.scenario.profile,
        }),
      );
      await this.scenario.run(this);
      if (this.complaints.length > 0) throw new Error("what was seen on the way");
    } catch (error) {
      this.complaints.forEach((item) => { say(item); });
      if (this.checks.every((item) => item.passed)) this.count("what is between the steps", 0, false);
      await this.explain(error);
      throw error;
    } finally {
      await this.window?.close().catch(() => undefined); // after an interrupt there is no browser any more
      const server = this.server;
      if (server) await this.step("it stops, and nothing of it is left running", () => server.stop());
    }
  }

  /** Opens a window of the workspace; the one before is closed. */
  async open(file?: string): Promise<Workbench> {
    await this.window?.close();
    if (!this.server) throw new Error("the editor was not started");
    this.window = await Workbench.blank(this.browser, this.server, this.workspace);
    await this.window.visit(file);
    return this.window;
  }

  /** Runs `tests` inside the extension host and returns their exit code. */
  async runInHost(extension: string, tests: string): Promise<number> {
    if (!this.server) throw new Error("the editor was not started");
    this.window = await Workbench.blank(this.browser, this.server, this.workspace);
    const { page } = this.window;
    const codes: number[] = [];
    await page.exposeFunction("codeAutomationExit", (code: number) => { codes.push(code); });
    await page.exposeFunction("codeAutomationLog", () => undefined);
    await page.goto(this.server.testPage(this.workspace, extension, tests), { waitUntil: "domcontentloaded" });
    await until("the tests end", JOB, () => codes.length > 0);
    return codes[0] ?? 1;
  }

  async step<T>(name: string, action: () => Promise<T>): Promise<T> {
    const start = Date.now();
    const complaints = this.complaints.length;
    let passed = false;
    try {
      const result = await action();
      passed = this.complaints.length === complaints;
      return result;
    } catch (error) {
      throw new Error(`step "${name}": ${error instanceof Error ? error.message : String(error)}`, { cause: error });
    } finally {
      this.count(name, (Date.now() - start) / 1000, passed);
    }
  }

  /** Counts a check that something else made. */
  count(step: string, seconds: number, passed: boolean): void {
    this.checks.push({ step, seconds, passed });
    if (this.options.steps) this.tell({ step, seconds, passed });
  }

  /** Says a step, with its scenario: two may run at a time. */
  private tell({ step, seconds, passed }: Step): void {
    say(`  ${passed ? "ok  " : "FAIL"} ${seconds.toFixed(1).padStart(6)} s  ${this.scenario.name}: ${step}`);
  }

  /** Makes the step and, at its end, the scenario fail: for findings that do not hinder the next step. */
  complain(what: string): void {
    this.complaints.push(what);
  }

  /** Processes of the editor whose command line has `word`. */
  processes(word: string): Running[] {
    return this.server?.running(word) ?? [];
  }

  /** Runs the command line in the workspace. Rejects with what it says unless it succeeds. */
  async cubridge(...args: string[]): Promise<void> {
    const env = { ...process.env, XDG_CACHE_HOME: engineCache(this.runtime) };
    const done = await finished(PYTHON, ["-m", "cubridge_engine.cli.main", ...args], { cwd: this.workspace, env });
    if (done.code !== 0) throw new Error(`cubridge ${args[0] ?? ""} exits with ${String(done.code)}: ${done.stderr.slice(-2000)}`);
  }

  /** A picture of the window, kept as an artefact. */
  async picture(name: string): Promise<void> {
    this.shots += 1;
    await this.window?.page.screenshot({ animations: "disabled", path: join(this.out, `${String(this.shots).padStart(2, "0")}-${name}.png`) });
  }

  /** Address and words of each document of the window, panels included. */
  private async frames(): Promise<string[]> {
    const all = this.window?.page.frames() ?? [];
    return Promise.all(all.map(async (frame) => `${frame.url()}\n${await frame.evaluate<string>(BODY).catch(String)}`));
  }

  private async explain(error: unknown): Promise<void> {
    await this.picture("failure").catch(() => undefined);
    const lines = [String(error), "", "processes:", ...(this.server?.processes() ?? []).map((item) => `${item.pid} ${item.argv.join(" ")}`)];
    writeFileSync(join(this.out, "failure.txt"), lines.join("\n"));
    if (!this.options.steps) this.checks.forEach((item) => { this.tell(item); });
    writeFileSync(join(this.out, "console.log"), (this.window?.console ?? []).join("\n"));
    writeFileSync(join(this.out, "frames.txt"), (await this.frames()).join("\n\n"));
    const logs = join(this.folder, "profile", "user", "logs");
    if (existsSync(logs)) cpSync(logs, join(this.out, "logs"), { recursive: true });
    for (const path of files(join(this.out, "logs")).filter((name) => /CuBridge.*\.log$/.test(name))) {
      say(`--- ${path}\n${readFileSync(path, "utf8").split("\n").slice(-30).join("\n")}`);
    }
  }
}

/** In the page: its body's tag and text. */
const BODY = "[document.body.cloneNode(false).outerHTML, document.body.innerText.slice(0, 2000)].join('\\n')";

function files(folder: string): string[] {
  if (!existsSync(folder)) return [];
  return readdirSync(folder, { recursive: true, withFileTypes: true })
    .filter((item) => item.isFile())
    .map((item) => join(item.parentPath, item.name));
}

export function say(line: string): void {
  process.stdout.write(`${line}\n`);
}
