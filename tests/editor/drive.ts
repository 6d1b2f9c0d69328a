// The tests of the real editor: node dist/editor/drive.js [--only NAME] [--update-pictures] [--times N] [--vsix FILE]
import { existsSync, mkdtempSync, rmSync, writeFileSync } from "node:fs";
import { loadavg, tmpdir } from "node:os";
import { join } from "node:path";
import { parseArgs } from "node:util";
import { chromium } from "playwright-core";
import { prepare, Unavailable, type Runtime } from "./runtime";
import { PYTHON, ROOT } from "./sample";
import { ON_DEMAND, SCENARIOS } from "./scenarios";
import { say, Trial, type Options, type Scenario } from "./trial";

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

interface Outcome {
  scenario: string;
  passed: boolean;
  seconds: number;
  /** Of the machine, averaged over the last minute. */
  load: number;
  steps: Trial["times"];
  why?: string;
}

async function main(): Promise<number> {
  const { values } = parseArgs({
    options: {
      only: { type: "string", multiple: true },
      "update-pictures": { type: "boolean", default: false },
      times: { type: "string", default: "1" },
      vsix: { type: "string", default: join(ROOT, "dist", "cubridge-0.1.0.vsix") },
    },
  });
  const all = values["update-pictures"] ? ON_DEMAND : SCENARIOS;
  const chosen = all.filter((item) => !values.only || values.only.includes(item.name));
  if (chosen.length === 0) throw new Error(`no such scenario; there are ${all.map((item) => item.name).join(", ")}`);
  for (const needed of [values.vsix, PYTHON]) {
    if (!existsSync(needed)) throw new Error(`${needed} is missing: make test-editor builds it`);
  }
  let runtime: Runtime;
  try {
    runtime = prepare(say, { browser: true });
  } catch (error) {
    if (!(error instanceof Unavailable)) throw error;
    say(`skipped: ${error.message}`);
    return 0;
  }
  const options = { vsix: values.vsix, out: join(ROOT, "out", "editor") };
  const outcomes: Outcome[] = [];
  for (let turn = 0; turn < Number(values.times); turn++) {
    for (const scenario of chosen) {
      if (!interrupted) outcomes.push(await attempt(scenario, runtime, options));
    }
  }
  writeFileSync(join(options.out, "outcomes.json"), JSON.stringify(outcomes, null, 2));
  for (const item of outcomes) say(`${item.passed ? "ok  " : "FAIL"} ${item.scenario.padEnd(12)} ${item.seconds.toFixed(0).padStart(4)} s  ${item.why ?? ""}`);
  return !interrupted && outcomes.every((item) => item.passed) ? 0 : 1;
}

async function attempt(scenario: Scenario, runtime: Runtime, options: Options): Promise<Outcome> {
  say(scenario.name);
  const start = Date.now();
  const temporary = mkdtempSync(join(tmpdir(), "cubridge-editor-"));
  rmSync(join(options.out, scenario.name), { recursive: true, force: true });
  const browser = await chromium.launch({ executablePath: which(runtime.chromium ?? "chromium"), headless: true, args: CHROMIUM, handleSIGINT: false, handleSIGTERM: false });
  const trial = new Trial(scenario, runtime, browser, options, temporary);
  const done = (passed: boolean, why?: string): Outcome => ({
    scenario: scenario.name,
    passed,
    steps: trial.times,
    seconds: (Date.now() - start) / 1000,
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
