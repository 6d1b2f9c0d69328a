// Where the rules end: a model is asked for the first time, its first answer is wrong, the second is shown for review.
import { cpSync, mkdirSync, readFileSync, writeFileSync } from "node:fs";
import { join } from "node:path";
import { ScriptedModel } from "../model";
import { ROOT } from "../sample";
import type { Scenario, Trial } from "../trial";
import { panel } from "../webviews";
import { JOB, lineOf, LATER, type Workbench } from "../workbench";
import { inAllThemes } from "./looks";
import { take } from "./pictures";

const SUITE = join(ROOT, "cubridge_engine", "propose", "suite");
const KERNEL = "ordered_max/kernel.cu";
const SPEC = "softcap.py";
const MODEL = "scripted-1";
const SETTINGS = (trial: Trial): string => join(trial.workspace, ".vscode", "settings.json");
/** The row maximum, that the kernel takes in a way no rule reads, in plain words; and the same with an error. */
const MAXIMUM = [1, 2].map((lanes) => `m_new = fmaxf(m_new, __shfl_xor_sync(0xffffffffu, m_new, ${lanes}));`).join("\n");
const reply = (text: string): string =>
  JSON.stringify({ answer: { kind: "lift", sites: [{ site: "opaque1", text }], bindings: [], head_dim: null, reason: "The maximum of a row over its four lanes." } });

export const model: Scenario = {
  name: "model",
  run: (trial: Trial) => withModel((server) => run(trial, server, (_, name) => trial.picture(name))),
};

/** The same, for the pictures of docs/model.md. */
export const modelPictures: Scenario = {
  name: "model-pictures",
  run: (trial: Trial) => withModel((server) => run(trial, server, (window, name) => take(window, `model-${name}`))),
};

async function withModel(use: (server: ScriptedModel) => Promise<void>): Promise<void> {
  const server = await ScriptedModel.start([reply(MAXIMUM.replaceAll("fmaxf", "fminf")), reply(MAXIMUM)]);
  try {
    await use(server);
  } finally {
    server.stop();
  }
}

async function run(trial: Trial, server: ScriptedModel, picture: (window: Workbench, name: string) => Promise<void>): Promise<void> {
  for (const name of [KERNEL, "ordered_max/contract.toml"]) cpSync(join(SUITE, name), join(trial.workspace, name));
  cpSync(join(SUITE, SPEC), join(trial.workspace, "specs", SPEC));
  mkdirSync(join(trial.workspace, ".vscode"));
  writeFileSync(SETTINGS(trial), "{}"); // a file that is there is watched
  const window = await trial.step("open a kernel", () => trial.open(KERNEL));
  const original = readFileSync(window.path(KERNEL), "utf8");
  await trial.step("no model named: the rules end, and no model is mentioned", async () => {
    await window.goTo(lineOf(window.path(KERNEL), "__global__"));
    await window.lens(KERNEL, "Adapt to…").waitFor({ timeout: LATER });
    await window.command("CuBridge: Adapt Kernel to Spec…");
    await pick(window);
    await window.toast("CB027").waitFor({ timeout: JOB });
    await notOffered(window);
  });
  await trial.picture("rules-end");
  await trial.step("a model is named", async () => {
    const settings = { "cubridge.model.name": MODEL, "cubridge.model.baseUrl": `http://${server.host}/v1` };
    writeFileSync(SETTINGS(trial), JSON.stringify(settings));
    await window.command("Notifications: Clear All Notifications");
  });
  const dialog = window.page.locator(".monaco-dialog-box", { hasText: `Ask a model at ${server.host}?` });
  await trial.step("first use: what leaves the machine, and where to; no is no", async () => {
    await ask(window);
    await dialog.filter({ hasText: "nothing is applied by itself" }).waitFor();
    await picture(window, "first-use");
    await dialog.locator(".monaco-button", { hasText: "Cancel" }).click();
    await dialog.waitFor({ state: "detached" });
    if (server.asked.length > 0) throw new Error("something was sent");
  });
  const diff = window.tab(new RegExp(`adapted to ${SPEC} \\(level simulated, proposed by ${MODEL}\\)`));
  await trial.step("agreed: a wrong answer goes back, the right one is shown as proposed", async () => {
    await ask(window);
    await dialog.locator(".monaco-button", { hasText: "Send" }).click();
    await pick(window);
    await window.outcome(diff, JOB);
    await window.page.locator(".monaco-diff-editor .modified .view-line", { hasText: `begin proposed opaque1 (${MODEL})` }).first().waitFor();
    if (server.asked.length !== 2) throw new Error(`it was asked ${server.asked.length} times`);
  });
  await picture(window, "proposed");
  await trial.step("no path and nothing of the spec's text was sent", () => {
    const sent = server.asked.join("\n");
    for (const secret of [trial.workspace, "import torch"]) if (sent.includes(secret)) throw new Error(`"${secret}" was sent`);
    return Promise.resolve();
  });
  await trial.step("the report says who proposed what", async () => {
    await window.command("CuBridge: Show Last Report");
    await (await panel(window.page, "report", "table")).locator("section", { hasText: "Proposed by a model" }).first().waitFor();
  });
  await inAllThemes(trial, window, "report", { body: "body.panel-report", content: "table" });
  await trial.step("nothing was applied by itself; accepting is the user's step", async () => {
    if (readFileSync(window.path(KERNEL), "utf8") !== original) throw new Error("the kernel was changed");
    await diff.click();
    await window.command("CuBridge: Accept Adaptation");
    await diff.waitFor({ state: "detached" });
    await window.page.locator(".tab.active.dirty", { hasText: "kernel.cu" }).waitFor();
    await window.save();
    if (!readFileSync(window.path(KERNEL), "utf8").includes(`begin proposed opaque1 (${MODEL})`)) throw new Error("it is not marked in the file");
  });
  await trial.step("a hover on the proposed line says so", async () => {
    await window.goTo(lineOf(window.path(KERNEL), "begin proposed opaque1") + 1);
    await window.command("Show or Focus Hover");
    await window.page.locator(".monaco-hover:visible", { hasText: /proposed\sby\sa\smodel/ }).first().waitFor();
  });
  await trial.picture("marked");
}

async function ask(window: Workbench): Promise<void> {
  await window.openFile(KERNEL);
  await window.command("CuBridge: Ask Model to Adapt Kernel…");
}

async function pick(window: Workbench): Promise<void> {
  await window.row(SPEC).waitFor();
  await window.row(SPEC).click();
}

/** The palette has no command that asks a model. */
async function notOffered(window: Workbench): Promise<void> {
  await window.ask("F1", ">CuBridge: Adapt Kernel");
  await window.row("CuBridge: Adapt Kernel to Spec…").waitFor();
  await window.input.fill(">CuBridge: Ask Model");
  await window.row("similar commands").waitFor(); // the list was made anew: no title has these words
  if ((await window.row("Ask Model").count()) > 0) throw new Error("a command asks a model");
  await window.page.keyboard.press("Escape");
}
