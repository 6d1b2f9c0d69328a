// What goes wrong while adapting: a cancel, a worker that dies, a spec that no kernel can mean.
import { readFileSync } from "node:fs";
import type { Scenario, Trial } from "../trial";
import { panel } from "../webviews";
import { JOB, lineOf, LATER, type Workbench } from "../workbench";

const KERNEL = "scalar/kernel.cu";
const SPEC = "causal_bottom_right.py";
const REFUSED = "dropout.py";
const RUNNING = `Adapting kernel.cu to ${SPEC}`;
/** The stages that take longest, as the progress says them. */
const STAGE = /Adapting[^]*(compile|simulate)/;
const WORKER = "cubridge_engine.jobs.worker";

export const troubles: Scenario = {
  name: "troubles",
  async run(trial: Trial): Promise<void> {
    const window = await trial.step("open a kernel", () => trial.open(KERNEL));
    const original = readFileSync(window.path(KERNEL), "utf8");
    await trial.step("lens over the kernel", async () => {
      await window.goTo(lineOf(window.path(KERNEL), "__global__"));
      await window.lens(KERNEL, "Adapt to…").waitFor({ timeout: LATER });
    });
    await trial.step("cancel during an adaptation", async () => {
      await adapt(window, SPEC);
      await window.toast(RUNNING).hover();
      await window.toastButton(RUNNING, "Cancel").click();
      await window.toast(RUNNING).waitFor({ state: "detached" });
      await nothingHappened(window);
    });
    await trial.step("the worker is killed in the middle", async () => {
      await adapt(window, SPEC);
      await window.toast(STAGE).waitFor({ timeout: JOB }); // before its first stage a job is just given to another worker
      for (const worker of trial.processes(WORKER)) process.kill(worker.pid, "SIGKILL");
      await window.toast("CB803").waitFor();
      await nothingHappened(window);
    });
    await trial.picture("killed");
    await trial.step("afterwards a job runs again; a spec that cannot be met is refused", async () => {
      await window.command("Notifications: Clear All Notifications");
      await adapt(window, REFUSED);
      await window.toast(/CB[23]\d\d/).waitFor({ timeout: JOB });
    });
    await trial.picture("refused");
    await trial.step("the reason stands on the line of the spec", async () => {
      await window.command("Notifications: Clear All Notifications");
      await window.openFile(`specs/${REFUSED}`);
      await window.editor(`specs/${REFUSED}`).locator(".squiggly-error").first().waitFor();
      await window.page.keyboard.press("Control+Shift+m");
      await window.page.locator(".markers-panel .monaco-list-row", { hasText: /CB[23]\d\d/ }).first().waitFor();
    });
    await trial.picture("spec");
    await trial.step("a kernel that does not mean the spec: verifying says so, with an element", () => differs(window));
    await trial.picture("differs");
    await trial.step("the kernel was not touched", () => {
      if (readFileSync(window.path(KERNEL), "utf8") !== original) throw new Error("it was");
      return Promise.resolve();
    });
  },
};

async function adapt(window: Workbench, spec: string): Promise<void> {
  await window.openFile(KERNEL);
  await window.command("CuBridge: Adapt Kernel to Spec…");
  await window.row(spec).waitFor();
  await window.row(spec).click();
  await window.toast(`Adapting kernel.cu to ${spec}`).waitFor();
}

/** No diff opened and the kernel's editor is clean. */
async function nothingHappened(window: Workbench): Promise<void> {
  if ((await window.tab("adapted to").count()) > 0) throw new Error("a diff opened");
  if ((await window.page.locator(".tab.dirty").count()) > 0) throw new Error("an editor was changed");
}

async function differs(window: Workbench): Promise<void> {
  await window.command("Notifications: Clear All Notifications");
  await window.openFile(KERNEL);
  await window.command("CuBridge: Verify Kernel Against Spec…");
  await window.row(SPEC).click();
  await window.toast(/CB7\d\d/).waitFor({ timeout: JOB });
  await window.page.locator(".markers-panel .monaco-list-row", { hasText: /CB7\d\d/ }).first().waitFor();
  await window.toastButton(/CB7\d\d/, "Show Report").click();
  const report = await panel(window.page, "report", ".ladder .failed");
  await report.locator("td", { hasText: /^O\[b=\d+, h=\d+, i=\d+, d=\d+\]$/ }).first().waitFor();
}
