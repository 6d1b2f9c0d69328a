// The .vsix alone: a Python without any package. What is missing is said, with the command that installs it.
import { spawnSync } from "node:child_process";
import { mkdirSync, writeFileSync } from "node:fs";
import { join } from "node:path";
import { PYTHON } from "../sample";
import type { Scenario, Trial } from "../trial";
import { LATER } from "../workbench";

const KERNEL = "scalar/kernel.cu";
const MISSING = "Python packages are missing";

export const newcomer: Scenario = {
  name: "newcomer",
  profile: { python: null },
  async run(trial: Trial): Promise<void> {
    const python = await trial.step("a Python without packages", () => {
      const folder = join(trial.workspace, ".venv");
      const made = spawnSync(PYTHON, ["-m", "venv", "--without-pip", folder], { encoding: "utf8" });
      if (made.status !== 0) throw new Error(made.stderr);
      return Promise.resolve(join(folder, "bin", "python"));
    });
    mkdirSync(join(trial.workspace, ".vscode"));
    writeFileSync(join(trial.workspace, ".vscode", "settings.json"), JSON.stringify({ "cubridge.interpreter": [python] }));
    const window = await trial.step("open a kernel", () => trial.open(KERNEL));
    await trial.step("it says what is missing", () => window.toast(MISSING).waitFor({ timeout: LATER }));
    await trial.picture("missing");
    await trial.step("its button runs the command in a terminal, and says when that failed", async () => {
      await window.toastButton(MISSING, "Install").click();
      await window.page.locator(".xterm-rows", { hasText: /-m pip install .*pygls/ }).first().waitFor({ timeout: LATER });
      await window.toast("the packages were not installed").waitFor({ timeout: LATER }); // this Python has no pip
    });
    await trial.picture("install");
  },
};
