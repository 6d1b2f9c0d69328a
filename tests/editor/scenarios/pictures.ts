// Takes the pictures of the README and of docs: only on demand, since they are kept in the repository.
import { mkdirSync, statSync } from "node:fs";
import { join } from "node:path";
import { ROOT } from "../sample";
import { THEMES, wear } from "../themes";
import type { Scenario, Trial } from "../trial";
import { panel } from "../webviews";
import { JOB, lineOf, LATER, type Workbench } from "../workbench";

const KERNEL = "flash_fwd/kernel.cu";
const SPEC = "gemma2_softcap_window.py";
const FOLDER = join(ROOT, "docs", "pictures");
const MAX_BYTES = 250_000;
const SIZE = { width: 1280, height: 760 };

export const pictures: Scenario = {
  name: "pictures",
  async run(trial: Trial): Promise<void> {
    const window = await trial.step("open a kernel", () => trial.open(KERNEL));
    await window.page.setViewportSize(SIZE);
    const path = window.path(KERNEL);
    await trial.step("kernel and CuIR", async () => {
      await window.goTo(lineOf(path, "__global__"));
      await window.lens(KERNEL, "Adapt to…").waitFor({ timeout: LATER });
      const [, dark] = THEMES;
      if (dark) await wear(window, dark);
      await window.command("View: Toggle Primary Side Bar Visibility");
      await window.command("CuBridge: Show CuIR of Kernel");
      const ir = await panel(window.page, "ir", "[role=treeitem]");
      await window.goTo(lineOf(path, "mma_m16n8k16<T>(s["));
      await ir.locator("[aria-selected=true]", { hasText: "Q·Kᵀ" }).waitFor();
      await take(window, "kernel");
    });
    await trial.step("pipeline", async () => {
      await window.command("CuBridge: Show Pipeline of Kernel");
      await (await panel(window.page, "pipeline", "svg")).locator(".verdict.good").waitFor({ timeout: LATER });
      await take(window, "pipeline");
    });
    await trial.step("mask", async () => {
      await window.command("CuBridge: Show Mask as Tile Map");
      await (await panel(window.page, "mask", "svg")).locator(".map .full").first().waitFor({ timeout: LATER });
      await take(window, "mask");
      await window.command("View: Close Editors in Other Groups");
    });
    await trial.step("adapt, diff", async () => {
      await window.command("CuBridge: Adapt Kernel to Spec…");
      await window.row(SPEC).waitFor();
      await window.row(SPEC).click();
      await window.outcome(window.tab(`adapted to ${SPEC}`), JOB);
      await window.page.locator(".monaco-diff-editor .modified .view-line").first().waitFor();
      await window.page.locator(".monaco-diff-editor .modified .line-insert").first().waitFor();
      await take(window, "diff");
    });
    await trial.step("report", async () => {
      await window.command("CuBridge: Show Last Report");
      await panel(window.page, "report", "table");
      await take(window, "report");
    });
  },
};

/** Overwrites a picture in docs/pictures. Throws when it is too large to keep. */
export async function take(window: Workbench, name: string): Promise<void> {
  mkdirSync(FOLDER, { recursive: true });
  const path = join(FOLDER, `${name}.png`);
  await window.page.screenshot({ path, animations: "disabled" });
  const { size } = statSync(path);
  if (size > MAX_BYTES) throw new Error(`${path} has ${size} bytes; at most ${MAX_BYTES} are kept`);
}
