// Takes the pictures of findings, explanations and contracts in docs: only on demand, since they are kept in the repository.
import { mkdirSync, readFileSync, writeFileSync } from "node:fs";
import { dirname, join } from "node:path";
import { ROOT } from "../sample";
import { THEMES, wear } from "../themes";
import type { Scenario, Trial } from "../trial";
import { panel } from "../webviews";
import { JOB, LATER, lineOf, type Workbench } from "../workbench";
import { take } from "./pictures";

const KERNEL = "flash_fwd/kernel.cu";
const BARE = "bare/kernel.cu";
const SIZE = { width: 1280, height: 760 };

/** What somebody mistyped, and the code that says so. */
const CASES: readonly { name: string; from: string; to: string; code: RegExp }[] = [
  { name: "check-barrier", from: "    cp_async_wait<0>();\n    __syncthreads();", to: "    cp_async_wait<0>();", code: /CB852/ },
  { name: "check-wait", from: "    cp_async_wait<0>();", to: "    cp_async_wait<1>();", code: /CB850/ },
  { name: "check-units", from: "exp2_approx(m[r] * scale_log2 - m_scaled[r])", to: "exp2_approx(m[r] - m_scaled[r])", code: /CB862/ },
];

export const findingPictures: Scenario = {
  name: "finding-pictures",
  async run(trial: Trial): Promise<void> {
    const text = readFileSync(join(trial.workspace, KERNEL), "utf8");
    for (const one of CASES) {
      await trial.step(one.name, async () => {
        if (!text.includes(one.from)) throw new Error(`the kernel has no ${one.from}`);
        writeFileSync(join(trial.workspace, KERNEL), text.replace(one.from, one.to));
        const window = await open(trial, KERNEL);
        await window.page.keyboard.press("Control+Shift+m");
        const row = window.page.locator(".markers-panel .monaco-list-row", { hasText: one.code }).first();
        await row.waitFor({ timeout: LATER });
        const place = /Ln (\d+), Col (\d+)/.exec(await row.innerText());
        await window.command("View: Focus First Editor Group");
        await window.goTo(Number(place?.[1] ?? 1), Number(place?.[2] ?? 1));
        await window.page.locator(".lightBulbWidget:visible, [class*='gutter-lightbulb']:visible").first().waitFor({ timeout: LATER });
        await window.page.keyboard.press("Control+.");
        await window.page.locator(".action-widget:visible .monaco-list-row.action", { hasText: "Ignore CB8" }).first().waitFor();
        await take(window, one.name);
      });
    }
    writeFileSync(join(trial.workspace, KERNEL), text);
    await trial.step("explain", async () => {
      const window = await open(trial, KERNEL);
      await window.command("CuBridge: Explain Kernel");
      await panel(window.page, "explain", ".paragraph .sentence");
      await window.goTo(lineOf(window.path(KERNEL), "if (col >= sk"));
      await take(window, "explain");
    });
    await trial.step("contract", async () => {
      mkdirSync(dirname(join(trial.workspace, BARE)), { recursive: true });
      const bare = readFileSync(join(ROOT, "tests", "bind", "kernels", "extern_c.cu"), "utf8");
      writeFileSync(join(trial.workspace, BARE), bare.replaceAll(/\bsm_scale\b/g, "w"));
      const window = await open(trial, BARE);
      await window.command("CuBridge: Show How Kernel Is Called");
      await window.row(/^scale$/).waitFor({ timeout: JOB });
      await take(window, "contract-question");
      await window.row(/^scale$/).click();
      await (await panel(window.page, "contract", "table")).locator("p.good").first().waitFor({ timeout: JOB });
      await take(window, "contract");
    });
  },
};

/** A window with the kernel alone, in the dark theme of the other pictures. */
async function open(trial: Trial, file: string): Promise<Workbench> {
  const window = await trial.open(file);
  await window.page.setViewportSize(SIZE);
  // It was read: there is a lens on the first line of a long file, or a note in a short one.
  await window.editor(file).locator(".codelens-decoration, [class*='squiggly-']").first().waitFor({ timeout: LATER });
  const [, dark] = THEMES;
  if (dark) await wear(window, dark);
  await window.command("View: Toggle Primary Side Bar Visibility");
  return window;
}
