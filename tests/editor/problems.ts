// The list of problems, and the menu of quick fixes at one of them.
import type { Locator } from "playwright-core";
import { until } from "./until";
import { appears, LATER, SOON, type Workbench } from "./workbench";

const BULB = ".lightBulbWidget:visible, [class*='gutter-lightbulb']:visible";

/** Shows the list of problems. */
export async function showProblems(window: Workbench): Promise<void> {
  await window.page.keyboard.press("Control+Shift+m");
  await window.page.locator(".markers-panel:visible").first().waitFor();
}

/** The first row of the list with `text`. */
export function problem(window: Workbench, text: RegExp): Locator {
  return window.page.locator(".markers-panel .monaco-list-row", { hasText: text }).first();
}

/** Line and column (from 1) of the problem, as the list says them. */
export async function placeOf(window: Workbench, text: RegExp): Promise<[number, number]> {
  const place = /Ln (\d+), Col (\d+)/.exec(await problem(window, text).innerText());
  if (!place) throw new Error("the problem has no place");
  return [Number(place[1]), Number(place[2])];
}

/** The caret to where the problem is. */
export async function toProblem(window: Workbench, text: RegExp): Promise<void> {
  const [line, column] = await placeOf(window, text);
  await window.command("View: Focus First Editor Group");
  await window.goTo(line, column);
}

/**
 * Opens the menu of quick fixes at the caret and returns its action with `title`. The menu that is asked for while diagnostics
 * come is taken away again, and one that comes before a fix is verified lacks it: then a user asks once more.
 */
export async function openFixes(window: Workbench, title: string | RegExp): Promise<Locator> {
  await window.page.locator(BULB).first().waitFor({ timeout: LATER });
  const action = window.page.locator(".action-widget:visible:not(.action-list-submenu-panel) .monaco-list-row.action", { hasText: title }).first();
  await until(`a quick fix ${String(title)}`, SOON, async () => {
    await window.page.keyboard.press("Control+.");
    if (await appears(action)) return true;
    await window.page.keyboard.press("Escape");
    return false;
  });
  return action;
}

/** Takes the quick fix with `title` at the caret. */
export async function quickFix(window: Workbench, title: string | RegExp): Promise<void> {
  await (await openFixes(window, title)).click();
}
