// A mistake that only running the kernel shows: found at a save, kept while the text is the same, gone with an edit.
import { mkdirSync, readFileSync, writeFileSync } from "node:fs";
import { dirname } from "node:path";
import { placeOf, problem, quickFix, showProblems, toProblem } from "../problems";
import type { Scenario, Trial } from "../trial";
import { panel } from "../webviews";
import { JOB, LATER, lineOf, SOON, type Workbench } from "../workbench";

const KERNEL = "scalar/kernel.cu";
const MASKED = "flash_fwd/kernel.cu";
const SETTINGS = ".vscode/settings.json";
const BARRIER = "__syncthreads();  // the next tile overwrites Ks, Vs and Ps";
/** Two barriers, each of one half of the CTA: the halves do not wait for each other. Reading does not know whose is which. */
const HALVES = 'asm volatile("bar.sync %0, 64;" ::"r"(1 + (tid >= 64)));';
const MASK = "col > row + sk - sq";
const RACE = /CB516/;

export const watching: Scenario = {
  name: "watching",
  async run(trial: Trial): Promise<void> {
    const window = await trial.step("open a kernel; kernels are run when they are saved", () => open(trial));
    await trial.step("a barrier that only half of the CTA shares is saved: run, and found", () => mistake(trial, window));
    await trial.step("the finding has both accesses, and the schedule that shows it", () => accesses(trial, window));
    await trial.step("it stays while the kernel is the same", () => stays(trial, window));
    await trial.step("an edit makes it old; the next save finds it where it is now", () => moves(window));
    await trial.step("ignored with a reason, the next save does not find it", () => ignore(trial, window));
    await trial.step("watched on request: cancelled, nothing happened", () => cancel(window));
    await trial.step("watched on request: the explanation says what was seen", () => watch(trial, window));
    await trial.step("something is expected: the save tells the difference as mathematics, on the line of the mask", () => expected(trial, window));
  },
};

function settings(window: Workbench, values: object): void {
  mkdirSync(dirname(window.path(SETTINGS)), { recursive: true });
  writeFileSync(window.path(SETTINGS), JSON.stringify(values));
}

async function open(trial: Trial): Promise<Workbench> {
  mkdirSync(dirname(trial.path(SETTINGS)), { recursive: true });
  writeFileSync(trial.path(SETTINGS), JSON.stringify({ "cubridge.check.watch": "save" }));
  const window = await trial.open(KERNEL);
  await window.lens(KERNEL, /attention forward/).waitFor({ timeout: LATER });
  await showProblems(window);
  return window;
}

/** Writes `text` in place of what the line has behind its blanks. */
async function retype(window: Workbench, line: number, text: string): Promise<void> {
  await window.command("View: Focus First Editor Group");
  await window.goTo(line);
  await window.page.keyboard.press("Home"); // before the first character that is no blank
  await window.page.keyboard.press("Shift+End");
  await window.page.keyboard.insertText(text);
}

/** Saves, and waits until the kernel was run. */
async function saved(window: Workbench, file: string): Promise<void> {
  const running = window.page.locator(".statusbar-item:visible", { hasText: `Checking ${file.split("/").at(-1) ?? ""}` }).first();
  await window.save();
  await running.waitFor();
  await running.waitFor({ state: "hidden", timeout: JOB });
}

async function mistake(trial: Trial, window: Workbench): Promise<void> {
  await retype(window, lineOf(window.path(KERNEL), BARRIER), HALVES);
  await saved(window, KERNEL);
  if (!readFileSync(window.path(KERNEL), "utf8").includes(HALVES)) throw new Error("it was typed otherwise");
  await problem(window, RACE).waitFor();
  await trial.picture("found");
}

async function accesses(trial: Trial, window: Workbench): Promise<void> {
  const path = window.path(KERNEL);
  const [line] = await placeOf(window, RACE);
  if (line !== lineOf(path, "Vs[j * kLd<DV> + d] =")) throw new Error(`it is on line ${line}`);
  await problem(window, /schedule (early|late) (forward|reverse)/).waitFor();
  await problem(window, /the other access/).click();
  await window.caretAt(lineOf(path, "o[i] += Ps[r * kLdP + j]"));
  await trial.picture("other-access");
}

async function stays(trial: Trial, window: Workbench): Promise<void> {
  await window.openFile(MASKED);
  await window.lens(MASKED, /attention forward/).waitFor({ timeout: LATER });
  await problem(window, RACE).waitFor();
  await window.openFile(KERNEL);
  await problem(window, RACE).waitFor();
  await trial.picture("stays");
}

async function moves(window: Workbench): Promise<void> {
  const [before] = await placeOf(window, RACE);
  await window.command("View: Focus First Editor Group");
  await window.goTo(1);
  await window.page.keyboard.press("Home");
  await window.page.keyboard.press("Enter");
  await problem(window, RACE).waitFor({ state: "detached", timeout: LATER });
  await saved(window, KERNEL);
  await problem(window, RACE).waitFor();
  const [after] = await placeOf(window, RACE);
  if (after !== before + 1) throw new Error(`it is on line ${after}, and was on line ${before}`);
}

async function ignore(trial: Trial, window: Workbench): Promise<void> {
  await toProblem(window, RACE);
  await quickFix(window, "Ignore CB516 here, with a reason");
  await problem(window, /does not say why/).waitFor({ timeout: LATER });
  await window.page.keyboard.type("the halves have tiles of their own"); // the placeholder is selected
  await problem(window, /does not say why/).waitFor({ state: "detached", timeout: LATER });
  await saved(window, KERNEL);
  await trial.picture("ignored");
  if ((await problem(window, /CB5\d\d|CB8[4-9]\d/).count()) > 0) throw new Error(await problem(window, /CB\d\d\d/).innerText());
}

const WATCHING = /Watching kernel\.cu/;
const SEEN = "Run in the simulator";

async function cancel(window: Workbench): Promise<void> {
  await window.command("CuBridge: Explain Kernel");
  const page = await panel(window.page, "explain", ".paragraph .sentence");
  await page.locator("#watch").click();
  await window.toast(WATCHING).hover();
  await window.toastButton(WATCHING, "Cancel").click();
  await window.toast(WATCHING).waitFor({ state: "detached" });
  if ((await page.locator(".sentence", { hasText: SEEN }).count()) > 0) throw new Error("it was run");
  if ((await window.page.locator(".notification-toast").count()) > 0) throw new Error(await window.page.locator(".notification-toast").first().innerText());
}

async function watch(trial: Trial, window: Workbench): Promise<void> {
  const page = await panel(window.page, "explain", ".paragraph .sentence");
  await page.locator("#watch").click();
  await window.toast(/Watching kernel\.cu: \w/).waitFor(); // a stage
  await page.locator(".sentence", { hasText: SEEN }).waitFor({ timeout: JOB });
  await page.locator("#watch").waitFor({ state: "hidden", timeout: SOON });
  await trial.picture("watched");
  await window.command("View: Focus First Editor Group");
  await window.command("View: Close Editors in Other Groups");
}

async function expected(trial: Trial, window: Workbench): Promise<void> {
  settings(window, { "cubridge.check.watch": "save", "cubridge.check.expect": "causal" });
  await window.openFile(MASKED);
  const line = lineOf(window.path(MASKED), MASK);
  const text = readFileSync(window.path(MASKED), "utf8").split("\n")[line - 1] ?? "";
  await window.goTo(line, text.indexOf(MASK) + "col >".length + 1);
  await window.page.keyboard.type("=");
  await saved(window, MASKED);
  await problem(window, /j < Sk \+ i - Sq; expected .*j <= i \+ \(Sk - Sq\); first differs at b=0 h=0 i=0 j=\d+/).waitFor();
  const [found] = await placeOf(window, /CB882/);
  if (found !== line) throw new Error(`it is on line ${found}`);
  await trial.picture("expected");
}
