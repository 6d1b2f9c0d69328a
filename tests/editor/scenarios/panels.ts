// The panels beside a kernel: they follow the cursor, keep up with typing, show a race where it is, and need no mouse.
import { readFileSync, writeFileSync } from "node:fs";
import type { Scenario, Trial } from "../trial";
import { until } from "../until";
import { panel, webview } from "../webviews";
import { lineOf, LATER, SOON, type Workbench } from "../workbench";

const KERNEL = "flash_fwd/kernel.cu";
const EMPTY = "helpers.cu";
const WAIT = "    cp_async_wait<0>();";

export const panels: Scenario = {
  name: "panels",
  async run(trial: Trial): Promise<void> {
    const window = await trial.step("open a kernel", () => trial.open(KERNEL));
    await trial.step("lens over the kernel", async () => {
      await window.goTo(lineOf(window.path(KERNEL), "__global__"));
      await window.lens(KERNEL, "Adapt to…").waitFor({ timeout: LATER });
    });
    await trial.step("CuIR: opens and follows the cursor", () => follows(trial, window));
    await trial.step("CuIR: the keyboard walks it and jumps to the source", () => walks(window));
    await trial.step("CuIR: keeps its selection while typing", () => keeps(trial, window));
    await trial.step("pipeline: a sound kernel", () => sound(trial, window));
    await trial.step("pipeline: a missing wait is drawn where it hurts", () => race(trial, window));
    await trial.step("mask: lengths to choose", () => lengths(trial, window));
    await trial.step("a file without a kernel: the panel says so", () => nothing(trial, window));
    await trial.step("no panel breaks its content policy", () => {
      const refused = window.console.filter((line) => /Content Security Policy|page error/.test(line) && /panel-|dist\/webviews/.test(line));
      if (refused.length > 0) throw new Error(refused.join("\n"));
      return Promise.resolve();
    });
  },
};

/** The focus back into the kernel, which is in the first group; a panel that was clicked has it otherwise. */
async function toSource(window: Workbench): Promise<void> {
  await window.command("View: Focus First Editor Group");
  await window.editor(KERNEL).locator("xpath=self::*[contains(@class, 'focused')]").waitFor();
}

async function follows(trial: Trial, window: Workbench): Promise<void> {
  await window.command("CuBridge: Show CuIR of Kernel");
  const page = await panel(window.page, "ir", "[role=treeitem]");
  await page.locator("[role=treeitem]", { hasText: "KV loop" }).first().waitFor({ timeout: LATER });
  await toSource(window);
  await window.goTo(lineOf(window.path(KERNEL), "mma_m16n8k16<T>(s[2 * np]"));
  await page.locator("[aria-selected=true]", { hasText: "Q·Kᵀ" }).waitFor();
  await trial.picture("cuir");
}

async function walks(window: Workbench): Promise<void> {
  const page = await panel(window.page, "ir", "[role=treeitem]");
  await page.locator("[aria-selected=true]").focus();
  await window.page.keyboard.press("ArrowDown");
  await page.locator("[aria-selected=true]", { hasText: "mask" }).waitFor();
  await window.page.keyboard.press("Enter");
  await window.caretAt(lineOf(window.path(KERNEL), "if (col >= sk"));
}

async function keeps(trial: Trial, window: Workbench): Promise<void> {
  const page = await panel(window.page, "ir", "[role=treeitem]");
  const line = lineOf(window.path(KERNEL), "const int lane");
  await window.goTo(line);
  const row = page.locator("[role=treeitem]", { hasText: /^mask/ }).first();
  await row.click();
  const before = await row.locator(".line").textContent();
  await toSource(window);
  await window.page.keyboard.press("Home");
  await window.page.locator("#status\\.editor\\.selection", { hasText: `Ln ${line}, Col 3` }).waitFor(); // the editor takes keys
  await window.page.keyboard.press("Enter"); // an empty line moves everything below
  await window.caretAt(line + 1);
  await until("the tree has the new lines", LATER, async () => (await row.locator(".line").textContent()) !== before);
  await page.locator("[aria-selected=true]", { hasText: "mask" }).waitFor();
  // Drawn anew, the tree has left the focus where the user types.
  await window.page.keyboard.type("// typed on");
  await window.line(KERNEL, "// typed on").waitFor();
  await trial.picture("cuir-typing");
  await until("what was typed is undone", SOON, async () => {
    if ((await window.page.locator(".tab.dirty").count()) === 0) return true;
    await window.page.keyboard.press("Control+z");
    return false;
  });
}

async function sound(trial: Trial, window: Workbench): Promise<void> {
  await toSource(window);
  await window.command("CuBridge: Show Pipeline of Kernel");
  const page = await panel(window.page, "pipeline", "svg");
  await page.locator(".verdict.good").waitFor({ timeout: LATER });
  await page.locator(".step.product").first().click();
  await trial.picture("pipeline");
}

async function race(trial: Trial, window: Workbench): Promise<void> {
  const page = await panel(window.page, "pipeline", "svg");
  const text = readFileSync(window.path(KERNEL), "utf8");
  await toSource(window);
  await window.goTo(text.split("\n").findIndex((line) => line === WAIT) + 1);
  await window.page.keyboard.press("Control+/"); // a comment of it
  await page.locator(".fault").first().waitFor({ timeout: LATER });
  await page.locator(".finding", { hasText: "CB502" }).first().waitFor();
  await trial.picture("pipeline-race");
  await window.page.keyboard.press("Control+/");
  await page.locator(".verdict.good").waitFor({ timeout: LATER });
}

async function lengths(trial: Trial, window: Workbench): Promise<void> {
  await toSource(window);
  await window.command("CuBridge: Show Mask as Tile Map");
  const page = await panel(window.page, "mask", "svg");
  await page.locator(".map .full").first().waitFor({ timeout: LATER });
  await page.locator("input[name=Sk]").fill("512");
  await page.locator("input[name=Sq]").fill("256");
  await window.page.keyboard.press("Enter");
  await page.locator(".map [data-row='3']").waitFor();
  await until("four rows of tiles", LATER, async () => (await page.locator(".map [data-row]").count()) === 4);
  await trial.picture("mask");
}

/** A new page of the panel, that has shown no kernel before. */
async function nothing(trial: Trial, window: Workbench): Promise<void> {
  writeFileSync(window.path(EMPTY), "// Nothing to launch.\nstatic float twice(float x) { return 2.f * x; }\n");
  await toSource(window);
  await window.command("View: Close Editors in Other Groups");
  await window.openFile(EMPTY);
  await window.command("CuBridge: Show CuIR of Kernel");
  const page = await webview(window.page, "body.panel-ir", "#status:visible");
  await page.locator("#status", { hasText: "kernel" }).waitFor();
  await trial.picture("no-kernel");
}
