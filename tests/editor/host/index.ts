// Runs inside the extension host: what the workbench calls `extensionTestsPath`.
import { writeFileSync } from "node:fs";
import { join } from "node:path";
import Mocha from "mocha";
import { workspace } from "vscode";

/** Runs the suite, writes one line for each test beside the workspace, rejects when any failed. */
export function run(): Promise<void> {
  const folder = workspace.workspaceFolders?.[0]?.uri.fsPath ?? ".";
  const lines: string[] = [];
  class Report extends Mocha.reporters.Base {
    constructor(runner: Mocha.Runner, options: Mocha.MochaOptions) {
      super(runner, options);
      runner.on("pass", (test) => lines.push(`ok ${test.fullTitle()} (${test.duration ?? 0} ms)`));
      runner.on("fail", (test, error: Error) => lines.push(`not ok ${test.fullTitle()}: ${error.message}`));
    }
  }
  const mocha = new Mocha({ ui: "bdd", timeout: 120_000, reporter: Report });
  mocha.addFile(join(__dirname, "suite.js"));
  return new Promise((resolve, reject) => {
    mocha.run((failures) => {
      writeFileSync(join(folder, "host.txt"), lines.join("\n"));
      if (failures > 0) reject(new Error(`${failures} failed`));
      else resolve();
    });
  });
}
