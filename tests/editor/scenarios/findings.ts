// A mistake while it is typed: said on the line that it hurts, mended by a quick fix, or ignored with a reason.
import { readFileSync, writeFileSync } from "node:fs";
import { problem, quickFix, showProblems, toProblem } from "../problems";
import type { Scenario, Trial } from "../trial";
import { webview } from "../webviews";
import { JOB, LATER, lineOf, type Workbench } from "../workbench";

const KERNEL = "flash_fwd/kernel.cu";
/** One that is soon run in the simulator. */
const SMALL = "scalar/kernel.cu";
const BARRIER = "    __syncthreads();";
/** A barrier that is missing: before a tile is overwritten, or before it is read. */
const MISSING = /CB85[12]/;

export const findings: Scenario = {
  name: "findings",
  async run(trial: Trial): Promise<void> {
    const window = await trial.step("open a kernel", () => trial.open(KERNEL));
    const original = readFileSync(window.path(KERNEL), "utf8");
    await trial.step("a sound kernel has no finding", async () => {
      await window.goTo(lineOf(window.path(KERNEL), "__global__"));
      await window.lens(KERNEL, "Adapt to…").waitFor({ timeout: LATER });
      await showProblems(window);
      await problem(window, /CB124/).waitFor({ timeout: LATER }); // a note on how it is read, so the list is there
      if ((await problem(window, /CB8\d\d/).count()) > 0) throw new Error("there is a finding");
    });
    await trial.step("a barrier is deleted: found on the line that reads", () => mistake(trial, window));
    await trial.picture("found");
    await trial.step("the code leads to its page", () => codePage(trial, window));
    await trial.step("the quick fix mends it", () => mend(window, original));
    await trial.step("ignored, it stays until there is a reason", () => ignore(trial, window));
    await trial.picture("ignored");
    await trial.step("checked by running it in the simulator", () => watch(trial, window.path(SMALL)));
    await trial.picture("checked");
  },
};

async function mistake(trial: Trial, window: Workbench): Promise<void> {
  await window.goTo(readFileSync(window.path(KERNEL), "utf8").split("\n").indexOf(BARRIER) + 1);
  await window.focusEditor();
  await window.page.keyboard.press("Control+Shift+k"); // the whole line
  await problem(window, MISSING).waitFor({ timeout: LATER });
  await trial.picture("problem");
}

async function codePage(trial: Trial, window: Workbench): Promise<void> {
  await problem(window, MISSING).locator("a", { hasText: MISSING }).first().click();
  const page = await webview(window.page, "body:has(h1)", "h1");
  await page.locator("h1", { hasText: /CB85/ }).first().waitFor({ timeout: LATER });
  await trial.picture("page");
  await window.command("View: Focus First Editor Group");
  await window.command("View: Close Editors in Other Groups");
}

async function mend(window: Workbench, original: string): Promise<void> {
  await toProblem(window, MISSING);
  await quickFix(window, /__syncthreads/);
  await problem(window, MISSING).waitFor({ state: "detached", timeout: LATER });
  await window.save();
  const mended = readFileSync(window.path(KERNEL), "utf8");
  if (mended.split("__syncthreads();").length !== original.split("__syncthreads();").length) throw new Error("the barrier is not back");
}

async function ignore(trial: Trial, window: Workbench): Promise<void> {
  await mistake(trial, window);
  await toProblem(window, MISSING);
  await quickFix(window, /Ignore CB85/);
  await problem(window, /does not say why/).waitFor({ timeout: LATER });
  await window.page.keyboard.type("the tile is private to a warp"); // the placeholder is selected
  await problem(window, MISSING).waitFor({ state: "detached", timeout: LATER });
  await window.save();
  const text = readFileSync(window.path(KERNEL), "utf8");
  if (!/\/\/ cubridge: ignore\[CB85\d\] the tile is private to a warp\n/.test(text)) throw new Error("the comment is not in the file");
}

async function watch(trial: Trial, path: string): Promise<void> {
  writeFileSync(path, readFileSync(path, "utf8").replace(`${BARRIER}\n`, ""));
  const window = await trial.open(SMALL);
  await window.lens(SMALL, /attention forward/).waitFor({ timeout: LATER });
  await showProblems(window);
  await problem(window, MISSING).waitFor({ timeout: LATER });
  await window.command("View: Focus First Editor Group");
  await window.command("CuBridge: Check Kernel");
  await window.outcome(window.toast(/kernel\.cu: \d+ findings? in \d+ launches/), JOB);
}
