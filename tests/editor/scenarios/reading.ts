// Opening a kernel: what it computes is on the screen without a click, the rest a key away, in every theme.
import { THEMES, wear } from "../themes";
import type { Scenario, Trial } from "../trial";
import { until } from "../until";
import { ENVIRONMENT, webview } from "../webviews";
import { appears, lineOf, LATER, SOON, type Workbench } from "../workbench";
import { inAllThemes } from "./looks";

const KERNEL = "flash_fwd/kernel.cu";

export const reading: Scenario = {
  name: "reading",
  async run(trial: Trial): Promise<void> {
    const window = await trial.step("open a kernel", () => trial.open(KERNEL));
    await trial.step("what it computes, on the first screen", async () => {
      await window.lens(KERNEL, /attention forward.*tiles 64x64/).waitFor({ timeout: LATER });
    });
    await trial.picture("opened");
    const kernel = lineOf(window.path(KERNEL), "__global__");
    await trial.step("lens over the kernel", async () => {
      await window.goTo(kernel);
      await window.lens(KERNEL, "Adapt to…").waitFor({ timeout: LATER });
    });
    await trial.picture("lens");
    await trial.step("hints at landmark lines", async () => {
      await window.goTo(lineOf(window.path(KERNEL), "for (int tile"));
      await window.line(KERNEL, "for (int tile", "KV tiles").waitFor({ timeout: LATER });
    });
    await trial.picture("hints");
    await trial.step("hover by the keyboard", () => hoverByKeyboard(trial, window));
    await trial.step("hover by the mouse", () => hoverByMouse(window));
    await trial.step("outline of phases", () => outline(trial, window));
    for (const theme of THEMES) {
      await trial.step(`theme ${theme.name}`, () => wear(window, theme));
      await trial.picture(theme.workbench);
    }
    await trial.step("environment page", () => doctor(window));
    await inAllThemes(trial, window, "environment page", ENVIRONMENT);
    await trial.step("nothing was asked of another host", () => {
      if (window.foreign.size > 0) throw new Error([...window.foreign].join(" "));
      return Promise.resolve();
    });
  },
};

async function hoverByKeyboard(trial: Trial, window: Workbench): Promise<void> {
  await window.goTo(lineOf(window.path(KERNEL), "for (int tile"));
  await window.focusEditor();
  await window.command("Show or Focus Hover");
  await window.page.locator(".monaco-hover:visible", { hasText: /KV\s(tiles|loop)/ }).first().waitFor();
  await trial.picture("hover");
  await window.page.keyboard.press("Escape");
}

async function hoverByMouse(window: Workbench): Promise<void> {
  const card = window.page.locator(".monaco-hover:visible", { hasText: /barrier/i }).first();
  // Hints that arrive move the text below the mouse: the card goes, and comes back when the mouse does.
  await until("a card under the mouse", SOON, async () => {
    await window.editor(KERNEL).locator(".view-line span span", { hasText: "__syncthreads" }).first().hover();
    if (await appears(card)) return true;
    await window.page.mouse.move(0, 0);
    return false;
  });
}

/** The list of symbols of the file, which the outline view shows too. */
async function outline(trial: Trial, window: Workbench): Promise<void> {
  await window.focusEditor();
  await window.page.keyboard.press("Control+Shift+o");
  for (const phase of ["prologue", "KV loop", "S = Q·Kᵀ"]) await window.row(phase).waitFor();
  await trial.picture("outline");
  await window.page.keyboard.type("epilogue"); // the list holds only the rows on the screen
  await window.row("epilogue").waitFor();
  await window.page.keyboard.press("Escape");
}

async function doctor(window: Workbench): Promise<void> {
  await window.command("CuBridge: Check Environment");
  const page = await webview(window.page, ENVIRONMENT.body, ENVIRONMENT.content);
  await page.locator("tr", { hasText: "NVRTC" }).filter({ hasText: "✓" }).waitFor();
  await page.locator("p", { hasText: "Everything required is there" }).waitFor();
}
