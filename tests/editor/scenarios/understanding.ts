// A kernel explained, two kernels compared, and how a kernel is called: asked where nobody but the user knows.
import { mkdirSync, readFileSync, writeFileSync } from "node:fs";
import { dirname, join } from "node:path";
import type { Frame } from "playwright-core";
import { ROOT } from "../sample";
import type { Scenario, Trial } from "../trial";
import { until } from "../until";
import { panel } from "../webviews";
import { JOB, LATER, lineOf, type Workbench } from "../workbench";
import { inAllThemes } from "./looks";

const KERNEL = "flash_fwd/kernel.cu";
const OTHER = "flash_fwd/strict.cu";
const BARE = "bare/kernel.cu";
const CONTRACT = "bare/contract.toml";

export const understanding: Scenario = {
  name: "understanding",
  async run(trial: Trial): Promise<void> {
    const window = await trial.step("open a kernel", () => trial.open(KERNEL));
    await trial.step("lens over the kernel", async () => {
      await window.goTo(lineOf(window.path(KERNEL), "__global__"));
      await window.lens(KERNEL, "Explain").waitFor({ timeout: LATER });
    });
    await trial.step("explained from its lens", async () => {
      await window.lens(KERNEL, "Explain").click();
      const page = await explained(window);
      await page.locator("p", { hasText: "Every step of it was understood" }).waitFor();
    });
    await trial.picture("explained");
    await trial.step("a sentence leads to its lines", () => leads(window));
    await inAllThemes(trial, window, "explanation", { body: "body.panel-explain", content: ".paragraph" });
    await trial.step("a change makes it old, asking again makes it new", () => again(window));
    await trial.step("compared with a copy whose mask is another one", () => compare(trial, window));
    const bare = await trial.step("a kernel whose names do not say how it is called", () => openBare(trial, window.path(BARE)));
    await trial.step("what only the user knows is asked, and tried", () => ask(trial, bare));
    await trial.step("accepted, it is a contract beside the kernel", () => accept(bare));
    await trial.picture("contract-written");
    await trial.step("a mistake in the contract is told on its line", () => mistake(bare));
  },
};

async function explained(window: Workbench): Promise<Frame> {
  const page = await panel(window.page, "explain", ".paragraph .sentence");
  await page.locator("h1", { hasText: "flash_fwd_sm80" }).waitFor({ timeout: JOB });
  return page;
}

async function leads(window: Workbench): Promise<void> {
  const page = await explained(window);
  const sentence = page.locator(".sentence", { hasText: /causal/i }).filter({ has: page.locator("[data-lines]") }).first();
  const link = sentence.locator("[data-lines]").first();
  const [first, last] = ((await link.getAttribute("data-lines")) ?? "").split(",").map(Number);
  if (first === undefined || last === undefined) throw new Error("the sentence has no lines");
  await link.click();
  // The caret is there whichever of editor and panel has the focus after a click.
  await window.editor(KERNEL).locator(".active-line-number", { hasText: new RegExp(`^${first + 1}$`) }).waitFor();
}

async function again(window: Workbench): Promise<void> {
  const page = await explained(window);
  await window.command("View: Focus First Editor Group");
  await window.goTo(1);
  await window.page.keyboard.press("Home");
  await window.page.keyboard.press("Enter");
  await page.locator("#status", { hasText: "changed since" }).waitFor();
  await page.locator("#again").click();
  await page.locator("#status", { hasText: "changed since" }).waitFor({ state: "hidden", timeout: JOB });
  await window.command("View: Focus First Editor Group");
  await window.page.keyboard.press("Control+z");
}

async function compare(trial: Trial, window: Workbench): Promise<void> {
  const text = readFileSync(window.path(KERNEL), "utf8");
  writeFileSync(window.path(OTHER), text.replace("col > row", "col >= row"));
  await window.command("View: Focus First Editor Group");
  await window.command("CuBridge: Compare Kernels…");
  await window.row("strict.cu").click();
  const page = await panel(window.page, "explain", ".verdict");
  await page.locator("h1", { hasText: "strict.cu" }).waitFor({ timeout: JOB });
  await page.locator("strong.error", { hasText: "different functions" }).waitFor();
  const finding = page.locator(".finding", { hasText: "mask" }).first();
  await trial.picture("compared");
  await finding.locator("[data-path$='strict.cu']").first().click();
  await until("the other file is shown", LATER, async () => (await window.tab("strict.cu").count()) > 0);
}

/** A kernel alone, without host code; one parameter has a name that says nothing. */
async function openBare(trial: Trial, path: string): Promise<Workbench> {
  mkdirSync(dirname(path), { recursive: true });
  const text = readFileSync(join(ROOT, "tests", "bind", "kernels", "extern_c.cu"), "utf8");
  writeFileSync(path, text.replaceAll(/\bsm_scale\b/g, "w"));
  const window = await trial.open(BARE);
  await window.line(BARE, "attn_fwd").waitFor({ timeout: LATER });
  return window;
}

async function ask(trial: Trial, window: Workbench): Promise<void> {
  await window.command("CuBridge: Show How Kernel Is Called");
  await window.row(/^scale$/).waitFor({ timeout: JOB });
  await trial.picture("question");
  await window.row(/^scale$/).click();
  const page = await panel(window.page, "contract", "table");
  await page.locator("p.good", { hasText: "Tried in the simulator" }).waitFor({ timeout: JOB });
  await page.locator("tr", { hasText: "parameter w" }).filter({ hasText: "scale" }).filter({ hasText: "answer" }).waitFor();
  await trial.picture("contract");
}

async function accept(window: Workbench): Promise<void> {
  const page = await panel(window.page, "contract", "[data-write]");
  await page.locator("[data-write]").click();
  await window.tab("contract.toml").waitFor({ timeout: JOB });
  if (!/name = "w", role = "scale"/.test(readFileSync(window.path(CONTRACT), "utf8"))) throw new Error("the answer is not in the contract");
}

async function mistake(window: Workbench): Promise<void> {
  await window.command("View: Focus First Editor Group");
  await window.goTo(lineOf(window.path(CONTRACT), "schema = 1"));
  await window.page.keyboard.press("End");
  await window.page.keyboard.type("7");
  await window.editor(CONTRACT).locator(".squiggly-error").first().waitFor({ timeout: LATER });
  await window.page.keyboard.press("Backspace");
  await window.editor(CONTRACT).locator(".squiggly-error").first().waitFor({ state: "detached", timeout: LATER });
}
