// The tests of the real editor: node dist/editor/drive.js [--only NAME] [--steps] [--times N] [--lanes N] [--update-pictures] [--vsix FILE]
import { existsSync, mkdtempSync, renameSync, rmSync, writeFileSync } from "node:fs";
import { availableParallelism, loadavg, tmpdir } from "node:os";
import { join } from "node:path";
import { parseArgs } from "node:util";
import { chromium } from "playwright-core";
import { install } from "./codeServer";
import { prepare, Unavailable, type Runtime } from "./runtime";
import { PYTHON, ROOT } from "./sample";
import { ON_DEMAND, SCENARIOS } from "./scenarios";
import { say, Trial, type Options, type Scenario, type Step } from "./trial";
import { LATER } from "./workbench";

const CHROMIUM = [
  "--no-sandbox", // as root in a container there is no other way
  "--disable-gpu",
  "--disable-quic",
  "--no-first-run",
  "--disable-background-networking",
  "--disable-component-update",
  "--disable-sync",
];

const SIGNALS = ["SIGINT", "SIGTERM"] as const;

let interrupted = false;
/** Asked anew: a signal may come while a scenario runs. */
const ended = (): boolean => interrupted;

interface Outcome {
  scenario: string;
  passed: boolean;
  seconds: number;
  /** Of the machine, averaged over the last minute. */
  load: number;
  checks: Step[];
  why?: string;
  /** Why the first of two tries failed. */
  before?: string;
}

async function main(): Promise<number> {
  const { values } = parseArgs({
    options: {
      only: { type: "string", multiple: true },
      steps: { type: "boolean", default: false },
      "update-pictures": { type: "boolean", default: false },
      times: { type: "string", default: "1" },
      // A scenario waits for its page, its server and its worker in turn: two keep two cores busy.
      lanes: { type: "string", default: String(Math.min(2, availableParallelism())) },
      vsix: { type: "string", default: join(ROOT, "dist", "cubridge-0.1.0.vsix") },
    },
  });
  const all = values["update-pictures"] ? ON_DEMAND : SCENARIOS;
  const chosen = all.filter((item) => !values.only || values.only.includes(item.name));
  if (chosen.length === 0) throw new Error(`no such scenario; there are ${all.map((item) => item.name).join(", ")}`);
  for (const needed of [values.vsix, PYTHON]) {
    if (!existsSync(needed)) throw new Error(`${needed} is missing: make test-editor builds it`);
  }
  const start = Date.now();
  let runtime: Runtime;
  try {
    runtime = await prepare(say, { browser: true });
  } catch (error) {
    if (!(error instanceof Unavailable)) throw error;
    say(`skipped, no check was made: ${error.message}`);
    return process.env.CUBRIDGE_EDITOR_REQUIRED ? 1 : 0;
  }
  const folder = mkdtempSync(join(tmpdir(), "cubridge-vsix-"));
  try {
    const extensions = await install(runtime, values.vsix, folder);
    say(`set-up: ${since(start).toFixed(0)} s`);
    const options = { extensions, out: join(ROOT, "out", "editor"), steps: values.steps };
    const outcomes: Outcome[] = [];
    for (let turn = 0; turn < Number(values.times); turn++) outcomes.push(...(await round(chosen, runtime, options, Number(values.lanes))));
    writeFileSync(join(options.out, "outcomes.json"), JSON.stringify(outcomes, null, 2));
    return !ended() && outcomes.every((item) => item.passed) ? 0 : 1;
  } finally {
    rmSync(folder, { recursive: true, force: true });
  }
}

/** Each scenario once, `lanes` of them at a time, the next where one is over. */
async function round(scenarios: readonly Scenario[], runtime: Runtime, options: Options, lanes: number): Promise<Outcome[]> {
  const start = Date.now();
  const waiting = [...scenarios];
  const outcomes: Outcome[] = [];
  const lane = async (): Promise<void> => {
    for (let scenario = waiting.shift(); scenario && !ended(); scenario = waiting.shift()) {
      const outcome = await tried(scenario, runtime, options);
      say(lineOf(outcome));
      outcomes.push(outcome);
    }
  };
  await Promise.all(Array.from({ length: lanes }, lane));
  say(total(outcomes, since(start)));
  return outcomes;
}

/** A scenario that fails is tried a second time in a fresh window, and its line says so. */
async function tried(scenario: Scenario, runtime: Runtime, options: Options): Promise<Outcome> {
  const outcome = await attempt(scenario, runtime, options);
  if (outcome.passed || ended()) return outcome;
  say(lineOf(outcome));
  renameSync(join(options.out, scenario.name), firstTry(options.out, scenario.name));
  return { ...(await attempt(scenario, runtime, options)), before: outcome.why ?? "" };
}

const since = (start: number): number => (Date.now() - start) / 1000;

function lineOf({ passed, scenario, seconds, checks, why, before }: Outcome): string {
  const line = `${passed ? "ok  " : "FAIL"} ${scenario.padEnd(12)} ${seconds.toFixed(0).padStart(4)} s  `;
  if (!passed) return `${line}${why ?? ""}; pictures and logs: out/editor/${scenario}`;
  return `${line}${checks.length} checks${before === undefined ? "" : `, at the second try: ${before}; see out/editor/${scenario}-first`}`;
}

/** Where the pictures and logs of a first try go. */
function firstTry(out: string, scenario: string): string {
  const folder = join(out, `${scenario}-first`);
  rmSync(folder, { recursive: true, force: true });
  return folder;
}

/** "120 of 121 checks, 250 s". A scenario that failed may have had more to check. */
function total(outcomes: Outcome[], seconds: number): string {
  const checks = outcomes.flatMap((item) => item.checks);
  const failed = outcomes.filter((item) => !item.passed).map((item) => item.scenario);
  const line = `${checks.filter((item) => item.passed).length} of ${checks.length} checks, ${seconds.toFixed(0)} s`;
  return failed.length > 0 ? `${line}; failed: ${failed.join(", ")}` : line;
}

async function attempt(scenario: Scenario, runtime: Runtime, options: Options): Promise<Outcome> {
  const start = Date.now();
  const temporary = mkdtempSync(join(tmpdir(), "cubridge-editor-"));
  rmSync(join(options.out, scenario.name), { recursive: true, force: true });
  const browser = await chromium.launch({
    executablePath: which(runtime.chromium ?? "chromium"),
    args: CHROMIUM,
    ignoreDefaultArgs: ["--hide-scrollbars"], // pictures show what people see
    timeout: LATER,
    handleSIGINT: false,
    handleSIGTERM: false,
  });
  const trial = new Trial(scenario, runtime, browser, options, temporary);
  const done = (passed: boolean, why?: string): Outcome => ({
    scenario: scenario.name,
    passed,
    checks: trial.checks,
    seconds: since(start),
    load: loadavg()[0] ?? 0,
    ...(why ? { why } : {}),
  });
  // What the scenario waits for then fails, and it puts away what it started.
  const interrupt = (): void => {
    interrupted = true;
    void browser.close();
  };
  for (const name of SIGNALS) process.once(name, interrupt);
  try {
    await trial.run();
    return done(true);
  } catch (error) {
    say(error instanceof Error ? (error.stack ?? error.message) : String(error));
    return done(false, error instanceof Error ? error.message.split("\n")[0] : String(error));
  } finally {
    for (const name of SIGNALS) process.off(name, interrupt);
    await browser.close();
    rmSync(temporary, { recursive: true, force: true });
  }
}

function which(command: string): string {
  const folder = (process.env.PATH ?? "").split(":").find((item) => existsSync(join(item, command)));
  return folder ? join(folder, command) : command;
}

main().then(
  (code) => process.exit(code),
  (error: unknown) => {
    process.stderr.write(`${error instanceof Error ? error.message : String(error)}\n`);
    process.exit(2);
  },
);
