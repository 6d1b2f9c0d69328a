// The Mocha suite inside the extension host, on the installed extension.
import { existsSync, readdirSync, readFileSync } from "node:fs";
import { join } from "node:path";
import { ROOT } from "../sample";
import { say, type Scenario, type Trial } from "../trial";

export const host: Scenario = {
  name: "host",
  profile: { testDriver: true },
  async run(trial: Trial): Promise<void> {
    await trial.step("mocha in the extension host", async () => {
      const installed = join(trial.folder, "profile", "extensions");
      const name = readdirSync(installed).find((item) => item.startsWith("cubridge.cubridge-"));
      if (!name) throw new Error("the extension is not installed");
      const report = join(trial.workspace, "host.txt");
      const code = await trial.runInHost(join(installed, name), join(ROOT, "dist", "editor", "host"));
      const lines = existsSync(report) ? readFileSync(report, "utf8") : "the suite wrote nothing";
      say(lines.replaceAll(/^/gm, "           "));
      if (code !== 0 || !lines.startsWith("ok ")) throw new Error(lines.split("\n").filter((line) => !line.startsWith("ok ")).join("; "));
    });
  },
};
