// The .vsix alone: a Python without any package. The walkthrough leads; what is missing is said, with the command that
// installs it.
import { mkdirSync, writeFileSync } from "node:fs";
import { join } from "node:path";
import { finished } from "../processes";
import { PYTHON } from "../sample";
import type { Scenario, Trial } from "../trial";
import { ENVIRONMENT, unbearable, webview } from "../webviews";
import { LATER, type Workbench } from "../workbench";
import { inAllThemes } from "./looks";

const KERNEL = "scalar/kernel.cu";
const MISSING = "Python packages are missing";
const WALKTHROUGH = "Adapt an expert kernel to your attention";
/** A step's title, and words of the page beside it. */
const STEPS: readonly [string, string][] = [
  ["Check the environment", "Python 3.10 or later"],
  ["Open a kernel, yours or ours", "contract.toml"],
  ["See what it does", "attention forward"],
  ["Write down what it shall mean", "import torch"],
  ["Adapt, review, accept", "simulated"],
];

export const newcomer: Scenario = {
  name: "newcomer",
  profile: { python: null },
  async run(trial: Trial): Promise<void> {
    const python = await trial.step("a Python without packages", async () => {
      const folder = join(trial.workspace, ".venv");
      const made = await finished(PYTHON, ["-m", "venv", "--without-pip", folder]);
      if (made.code !== 0) throw new Error(made.stderr);
      return join(folder, "bin", "python");
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
    await window.command("Notifications: Clear All Notifications");
    await window.command("View: Hide Panel");
    await trial.step("the walkthrough opens", () => openWalkthrough(window));
    for (const [title, words] of STEPS) await trial.step(`walkthrough: ${title}`, () => turnTo(trial, window, title, words));
    await trial.step("its first button: the environment page names the command that mends it", () => environment(window));
    await inAllThemes(trial, window, "environment page", ENVIRONMENT);
  },
};

async function openWalkthrough(window: Workbench): Promise<void> {
  await window.command("Welcome: Open Walkthrough...");
  await window.row(WALKTHROUGH).click();
  await window.page.locator(".gettingStartedContainer h2", { hasText: WALKTHROUGH }).first().waitFor();
}

const step = (window: Workbench, title: string) => window.page.locator(".getting-started-step", { hasText: title }).first();

/** The step and its page. Only the page is ours to be judged by axe. */
async function turnTo(trial: Trial, window: Workbench, title: string, words: string): Promise<void> {
  await step(window, title).click();
  const looked = { body: `body[data-vscode-theme-kind]:has-text("${words}")`, content: "h2", rendered: true };
  await webview(window.page, looked.body, looked.content);
  for (const complaint of await unbearable(window.page, looked)) trial.complain(`walkthrough, ${title}: ${complaint}`);
  await trial.picture(`walkthrough-${STEPS.findIndex(([item]) => item === title) + 1}`);
}

async function environment(window: Workbench): Promise<void> {
  const [[first]] = STEPS as [[string, string]];
  await step(window, first).click();
  await window.page.locator(".gettingStartedContainer .monaco-button:visible", { hasText: "Check Environment" }).first().click();
  const page = await webview(window.page, ENVIRONMENT.body, ENVIRONMENT.content);
  await page.locator("code", { hasText: /-m pip install .*pygls/ }).first().waitFor();
  await page.locator("p", { hasText: "Missing: torch" }).waitFor();
}
