// An untrusted workspace: reading works, nothing of the user's is executed until trust is given.
import type { Scenario, Trial } from "../trial";
import { lineOf, LATER } from "../workbench";

const KERNEL = "scalar/kernel.cu";
const REFUSAL = "does not adapt a kernel in an untrusted workspace";

export const trust: Scenario = {
  name: "trust",
  profile: { trust: true },
  async run(trial: Trial): Promise<void> {
    const window = await trial.step("open an untrusted workspace", () => trial.open(KERNEL));
    await trial.step("it reads", async () => {
      await window.page.locator(".statusbar-item", { hasText: "Restricted Mode" }).waitFor({ timeout: LATER });
      await window.goTo(lineOf(window.path(KERNEL), "__global__"));
      await window.lens(KERNEL, /attention forward.*tiles 32x32/).waitFor({ timeout: LATER });
    });
    await trial.step("it refuses to adapt, and says why", async () => {
      await window.lens(KERNEL, "Adapt to…").click();
      await window.toast(REFUSAL).waitFor();
    });
    await trial.picture("restricted");
    await trial.step("no worker was started", () => {
      const workers = trial.processes("cubridge_engine.jobs.worker");
      if (workers.length > 0) throw new Error(workers.map((item) => item.argv.join(" ")).join("; "));
      return Promise.resolve();
    });
    await trial.step("trust given: it offers the specs", async () => {
      await window.toastButton(REFUSAL, "Manage Workspace Trust").click();
      await window.page.locator(".workspace-trust-editor .monaco-button", { hasText: /^Trust/ }).first().click();
      await window.page.locator(".statusbar-item", { hasText: "Restricted Mode" }).waitFor({ state: "detached" });
      await window.tab("kernel.cu").click();
      await window.editor(KERNEL).locator(".view-line").first().waitFor();
      await window.command("CuBridge: Adapt Kernel to Spec…");
      await window.row("causal_bottom_right.py").waitFor({ timeout: LATER });
    });
    await trial.picture("trusted");
  },
};
