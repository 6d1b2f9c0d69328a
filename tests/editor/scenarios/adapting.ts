// Adapting by lens and by keyboard: the diff, its four ways out, and the file on disk against the command line's.
import { readFileSync } from "node:fs";
import type { Scenario, Trial } from "../trial";
import { JOB, lineOf, LATER, SOON, type Workbench } from "../workbench";
import { until } from "../until";
import { panel } from "../webviews";
import { inAllThemes } from "./looks";

const KERNEL = "scalar/kernel.cu";
const SPEC = "causal_bottom_right.py";
const PROPOSED = "scalar/kernel_causal_bottom_right.cu";
const EXPORTED = "scalar/kernel-report.html";
const DIFF = new RegExp(`kernel\\.cu ↔ adapted to ${SPEC}`);

export const adapting: Scenario = {
  name: "adapting",
  async run(trial: Trial): Promise<void> {
    const window = await trial.step("open a kernel", () => trial.open(KERNEL));
    const original = readFileSync(window.path(KERNEL), "utf8");
    const wanted = await trial.step("the command line adapts", async () => {
      await trial.cubridge("adapt", window.path(KERNEL), window.path(`specs/${SPEC}`), "-o", window.path("wanted.cu"));
      return readFileSync(window.path("wanted.cu"), "utf8");
    });
    await trial.step("lens: pick a spec", () => adaptByLens(trial, window));
    await trial.step("the diff", async () => {
      await window.outcome(window.tab(DIFF), JOB);
      await window.page.locator(".monaco-diff-editor .modified .view-line").first().waitFor();
    });
    await trial.picture("diff");
    await trial.step("CuIR before and after", async () => {
      await window.command("CuBridge: Compare CuIR Before and After Adaptation");
      const changed = window.page.locator(".monaco-diff-editor .modified .view-line", { hasText: "mask" }).first();
      await changed.waitFor({ timeout: LATER });
      await trial.picture("cuir-diff");
      await window.command("View: Close Editor");
    });
    await trial.step("save the adapted kernel as a new file", () => saveAs(window, wanted));
    await trial.step("discard", async () => {
      await window.tab(DIFF).click();
      await window.command("CuBridge: Discard Adaptation");
      await window.tab(DIFF).waitFor({ state: "detached" });
      same("the kernel after a discard", readFileSync(window.path(KERNEL), "utf8"), original);
    });
    await trial.step("by the keyboard alone, to the diff", () => adaptByKeyboard(window));
    await trial.step("accept, save", () => accept(window));
    await trial.picture("accepted");
    await trial.step("the file on disk is the command line's", () => {
      same("the accepted kernel", readFileSync(window.path(KERNEL), "utf8"), wanted);
      return Promise.resolve();
    });
    await trial.step("undo is one step", async () => {
      await window.focusEditor();
      await window.page.keyboard.press("Control+z");
      await window.save();
      // The tab may not have shown yet that it is to be saved.
      await until("the kernel on disk is as before", SOON, () => readFileSync(window.path(KERNEL), "utf8") === original);
      await window.page.keyboard.press("Control+y");
      await window.save();
    });
    await trial.step("verify what was accepted", () => verify(window));
    await trial.step("the lens has the new level", async () => {
      await window.lens(KERNEL, /(simulated|gpu): equals causal_bottom_right\.py/).waitFor();
    });
    await trial.picture("verified");
    await trial.step("report panel", async () => {
      await window.toastButton("kernel.cu equals", "Show Report").click();
      await panel(window.page, "report", "table");
    });
    await inAllThemes(trial, window, "report", { body: "body.panel-report", content: "table" });
    await trial.step("export the report", () => exported(window));
  },
};

async function adaptByLens(trial: Trial, window: Workbench): Promise<void> {
  await window.goTo(lineOf(window.path(KERNEL), "__global__"));
  const lens = window.lens(KERNEL, "Adapt to…");
  await lens.waitFor({ timeout: LATER });
  await lens.click();
  await window.row(SPEC).waitFor();
  await trial.picture("pick");
  await window.row(SPEC).click();
  await window.toast(new RegExp(`Adapting kernel\\.cu to ${SPEC}: \\w`)).waitFor(); // a stage from the first moment
  await trial.picture("progress");
}

async function adaptByKeyboard(window: Workbench): Promise<void> {
  await window.openFile(KERNEL);
  await window.command("CuBridge: Adapt Kernel to Spec…");
  await window.row(SPEC).waitFor();
  await window.page.keyboard.type("causal");
  await window.page.keyboard.press("Enter");
  await window.outcome(window.tab(DIFF), JOB);
}

async function accept(window: Workbench): Promise<void> {
  await window.command("CuBridge: Accept Adaptation");
  await window.tab(DIFF).waitFor({ state: "detached" });
  await window.page.locator(".tab.active.dirty", { hasText: "kernel.cu" }).waitFor();
  await window.save();
}

async function saveAs(window: Workbench, wanted: string): Promise<void> {
  await window.command("CuBridge: Save Adaptation As…");
  same("the kernel saved as a new file", await takeProposal(window, PROPOSED), wanted);
}

async function exported(window: Workbench): Promise<void> {
  await window.command("CuBridge: Export Last Report as HTML…");
  const text = await takeProposal(window, EXPORTED);
  if (!/level[^]*simulated|level[^]*gpu/.test(text)) throw new Error(`${EXPORTED} names no level`);
  if (/<script|<link/.test(text)) throw new Error(`${EXPORTED} needs more than itself`);
}

/** Takes the name that the dialog proposes, some time after it opened; what is in the file then. */
async function takeProposal(window: Workbench, file: string): Promise<string> {
  await until(`the dialog proposes ${file}`, SOON, async () => (await window.input.inputValue({ timeout: 1000 }).catch(() => "")) === window.path(file));
  await window.page.keyboard.press("Enter");
  return until(`${file} on disk`, LATER, () => read(window.path(file)));
}

async function verify(window: Workbench): Promise<void> {
  await window.command("CuBridge: Verify Kernel Against Spec…");
  await window.row(SPEC).waitFor();
  await window.row(SPEC).click();
  await window.outcome(window.toast(/kernel\.cu equals causal_bottom_right\.py, level (simulated|gpu)/), JOB);
}

function read(path: string): string | null {
  try {
    return readFileSync(path, "utf8") || null;
  } catch {
    return null;
  }
}

function same(what: string, got: string, want: string): void {
  if (got === want) return;
  const [ours, theirs] = [got.split("\n"), want.split("\n")];
  const at = ours.findIndex((line, index) => line !== theirs[index]);
  throw new Error(`${what} differs in line ${at + 1}: ${JSON.stringify(ours[at])} instead of ${JSON.stringify(theirs[at])}`);
}
