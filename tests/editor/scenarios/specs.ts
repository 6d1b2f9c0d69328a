// A spec in the editor: what it means, its mask, and a kernel to start from where there is none yet.
import { existsSync, readFileSync } from "node:fs";
import { basename, join } from "node:path";
import { ROOT } from "../sample";
import type { Scenario, Trial } from "../trial";
import { until } from "../until";
import { panel } from "../webviews";
import { JOB, LATER, type Workbench } from "../workbench";
import { inAllThemes } from "./looks";

const SPEC = "specs/gemma2_softcap_window.py";
const KERNEL = "scalar/kernel.cu";
/** Its mask is decided by data: the drop-in lists the tiles to visit. */
const DATA = "document_mask.py";
const DROP_IN = "scalar/kernel_document_mask_drop_in.py";
const EXPERT = "flash_fwd_scalar";
const COPY = `specs/${EXPERT}/kernel.cu`;

export const specs: Scenario = {
  name: "specs",
  async run(trial: Trial): Promise<void> {
    const window = await trial.step("open a spec", () => trial.open(SPEC));
    await trial.step("nothing of it is run by itself", async () => {
      await window.lens(SPEC, "What does this spec mean?").waitFor({ timeout: LATER });
      const workers = trial.processes("cubridge_engine.jobs.worker");
      if (workers.length > 0) throw new Error(workers.map((item) => item.argv.join(" ")).join("; "));
    });
    await trial.step("asked, the lens says what it means", async () => {
      await window.lens(SPEC, "What does this spec mean?").click();
      await window.outcome(window.lens(SPEC, /means: .*softcap 50/), JOB);
    });
    await trial.picture("means");
    await trial.step("its mask", async () => {
      await window.focusEditor();
      await window.command("CuBridge: Show Mask as Tile Map");
      const frame = await panel(window.page, "mask", "svg");
      await frame.locator(".map .partial").first().waitFor({ timeout: JOB });
    });
    await inAllThemes(trial, window, "mask of a spec", { body: "body.panel-mask", content: "svg" });
    await trial.step("a mask that data decide: the drop-in opens beside the diff", () => openDropIn(trial, window));
    await trial.step("accepted, both are on disk", () => keepBoth(window));
    await trial.step("start from an expert kernel, for this spec", () => start(trial, window));
    await trial.picture("started");
  },
};

async function openDropIn(trial: Trial, window: Workbench): Promise<void> {
  await window.command("View: Close All Editors");
  await window.openFile(KERNEL);
  await window.command("CuBridge: Adapt Kernel to Spec…");
  await window.row(DATA).click();
  await window.outcome(window.tab(`adapted to ${DATA}`), JOB);
  await window.toast("this kernel is not all").waitFor();
  await window.toastButton("this kernel is not all", "Open the Drop-in").click();
  await window.tab(basename(DROP_IN)).waitFor();
  await window.page.locator(".editor-instance .view-line", { hasText: "import torch" }).first().waitFor({ timeout: LATER });
  await trial.picture("drop-in");
}

async function keepBoth(window: Workbench): Promise<void> {
  await window.tab(`adapted to ${DATA}`).click();
  await window.command("CuBridge: Accept Adaptation");
  // Said last, when the kernel's text has changed too: a save before that would keep the old one.
  await window.toast("was written beside the kernel").waitFor();
  const dropIn = await until(`${DROP_IN} on disk`, LATER, () => (existsSync(window.path(DROP_IN)) ? readFileSync(window.path(DROP_IN), "utf8") : null));
  await window.editor(KERNEL).locator(".view-line").first().click();
  await window.save();
  await until("the kernel's header, on disk, names its drop-in", LATER, () => readFileSync(window.path(KERNEL), "utf8").includes(basename(DROP_IN)));
  if (!dropIn.includes("kernel(")) throw new Error(`${DROP_IN} does not call the kernel`);
  await window.command("Notifications: Clear All Notifications");
}

async function start(trial: Trial, window: Workbench): Promise<void> {
  await window.openFile(SPEC);
  await window.command("CuBridge: Start from an Expert Kernel…");
  await window.row(EXPERT).waitFor({ timeout: LATER });
  await trial.picture("experts");
  await window.row(EXPERT).click();
  await window.editor(COPY).locator(".view-line").first().waitFor({ timeout: LATER });
  await window.lens(COPY, /attention forward/).waitFor({ timeout: LATER });
  const bundled = readFileSync(join(ROOT, "expert_kernels", EXPERT, "kernel.cu"), "utf8");
  if (readFileSync(window.path(COPY), "utf8") !== bundled) throw new Error(`${COPY} is not the bundled kernel`);
  if (!existsSync(window.path(`specs/${EXPERT}/contract.toml`))) throw new Error("its contract is not beside it");
}
