// Runs inside the extension host: what the workbench calls `extensionTestsPath`.
import { writeFileSync } from "node:fs";
import { join } from "node:path";
import Mocha from "mocha";
import { workspace } from "vscode";

/** One test of the suite, as it is written for the driver. */
export interface Test {
  name: string;
  seconds: number;
  /** Empty when it passed. */
  problem: string;
}

/** Runs the suite, writes what became of each test into the workspace, rejects when any failed. */
export function run(): Promise<void> {
  const folder = workspace.workspaceFolders?.[0]?.uri.fsPath ?? ".";
  const tests: Test[] = [];
  class Report extends Mocha.reporters.Base {
    constructor(runner: Mocha.Runner, options: Mocha.MochaOptions) {
      super(runner, options);
      runner.on("pass", (test) => tests.push(row(test, "")));
      runner.on("fail", (test, error: Error) => tests.push(row(test, error.message || "failed")));
    }
  }
  const mocha = new Mocha({ ui: "bdd", timeout: 300_000, reporter: Report });
  mocha.addFile(join(__dirname, "suite.js"));
  return new Promise((resolve, reject) => {
    mocha.run((failures) => {
      writeFileSync(join(folder, "host.json"), JSON.stringify(tests));
      if (failures > 0) reject(new Error(`${failures} failed`));
      else resolve();
    });
  });
}

function row(test: Mocha.Runnable, problem: string): Test {
  return { name: test.title, seconds: (test.duration ?? 0) / 1000, problem };
}
