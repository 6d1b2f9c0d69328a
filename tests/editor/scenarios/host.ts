// The Mocha suite inside the extension host, on the installed extension.
import { existsSync, readdirSync, readFileSync } from "node:fs";
import { join } from "node:path";
import { ROOT } from "../sample";
import type { Test } from "../host";
import type { Scenario, Trial } from "../trial";

export const host: Scenario = {
  name: "host",
  profile: { testDriver: true },
  async run(trial: Trial): Promise<void> {
    await trial.step("mocha in the extension host", async () => {
      const installed = join(trial.folder, "profile", "extensions");
      const name = readdirSync(installed).find((item) => item.startsWith("cubridge.cubridge-"));
      if (!name) throw new Error("the extension is not installed");
      const report = join(trial.workspace, "host.json");
      const code = await trial.runInHost(join(installed, name), join(ROOT, "dist", "editor", "host"));
      if (!existsSync(report)) throw new Error(`the suite ended with ${code} and wrote nothing`);
      const tests = JSON.parse(readFileSync(report, "utf8")) as Test[];
      for (const test of tests) trial.count(test.name, test.seconds, !test.problem);
      const failed = tests.filter((test) => test.problem).map((test) => `${test.name}: ${test.problem}`);
      if (code !== 0 || failed.length > 0 || tests.length === 0) throw new Error(failed.join("; ") || `the suite ended with ${code}`);
    });
  },
};
