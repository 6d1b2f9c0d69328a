// Takes the pictures of findings, explanations and contracts in docs: only on demand, since they are kept in the repository.
import { copyFileSync, cpSync, mkdirSync, readFileSync, writeFileSync } from "node:fs";
import { dirname, join } from "node:path";
import { openFixes, problem, showProblems, toProblem } from "../problems";
import { ROOT } from "../sample";
import { THEMES, wear } from "../themes";
import type { Scenario, Trial } from "../trial";
import { panel } from "../webviews";
import { JOB, LATER, lineOf, type Workbench } from "../workbench";
import { take } from "./pictures";

const KERNEL = "flash_fwd/kernel.cu";
const FOREIGN = "warp_per_row/kernel.cu";
const BARE = "bare/kernel.cu";
const SETTINGS = ".vscode/settings.json";
const SIZE = { width: 1280, height: 760 };

interface Case {
  name: string;
  file: string;
  /** What somebody mistyped, and the code that says so. */
  edits: readonly [string, string][];
  code: RegExp;
  /** What the picture shows at the finding: the menu of quick fixes, or the whole sentence. */
  shows: "fixes" | "hover";
  /** It is found by running the kernel; with what is expected of it. */
  checked?: { expect: string };
}

const CASES: readonly Case[] = [
  { name: "check-barrier", file: KERNEL, edits: [["    cp_async_wait<0>();\n    __syncthreads();", "    cp_async_wait<0>();"]], code: /CB852/, shows: "fixes" },
  { name: "check-wait", file: KERNEL, edits: [["    cp_async_wait<0>();\n", ""]], code: /CB850/, shows: "fixes" },
  { name: "check-units", file: KERNEL, edits: [["exp2_approx(m[r] * scale_log2 - m_scaled[r])", "exp2_approx(m[r] - m_scaled[r])"]], code: /CB862/, shows: "fixes" },
  { name: "check-mask", file: KERNEL, edits: [["col > row + sk - sq", "col >= row + sk - sq"]], code: /CB882/, shows: "hover", checked: { expect: "causal" } },
  {
    name: "check-step",
    file: FOREIGN,
    edits: [["__expf(s - new_max)", "exp2f(s - new_max)"], ["__expf(running_max - new_max)", "exp2f(running_max - new_max)"]],
    code: /CB880/,
    shows: "hover",
    checked: { expect: "" },
  },
];

interface Explained {
  name: string;
  /** Copied here from `from`, where it is not of the sample. */
  file: string;
  from?: string;
  /** The place in the text that the picture shows beside the explanation. */
  place: string;
  /** It is run in the simulator too. */
  watched?: boolean;
}

const EXPLAINED: readonly Explained[] = [
  { name: "explain", file: KERNEL, place: "if (col >= sk" },
  { name: "explain-hopper", file: "hopper/kernel.cu", from: "expert_kernels/flash_fwd_sm90", place: "e[k] = exp2_approx(", watched: true },
  { name: "explain-padded", file: "padded/kernel.cu", from: "tests/lift/kernels/mma_padded.cu", place: "s[n][e] = (j < L" },
];

export const findingPictures: Scenario = {
  name: "finding-pictures",
  async run(trial: Trial): Promise<void> {
    foreign(trial);
    for (const one of CASES) await trial.step(one.name, () => pictured(trial, one));
    for (const one of EXPLAINED) await trial.step(one.name, () => explained(trial, one));
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

async function explained(trial: Trial, { name, file, from, place, watched }: Explained): Promise<void> {
  if (from) cpSync(join(ROOT, from), from.endsWith(".cu") ? trial.path(file) : dirname(trial.path(file)), { recursive: true });
  const window = await open(trial, file);
  await window.command("CuBridge: Explain Kernel");
  const page = await panel(window.page, "explain", ".paragraph .sentence");
  if (watched) {
    await page.locator("button", { hasText: "Watch It Run" }).click();
    await page.locator(".paragraph .sentence", { hasText: "observed" }).first().waitFor({ timeout: JOB });
  }
  await window.command("View: Focus First Editor Group");
  await window.goTo(lineOf(window.path(file), place));
  await take(window, name);
}

/** A kernel that nobody made for the simulator, with its contract. */
function foreign(trial: Trial): void {
  mkdirSync(dirname(trial.path(FOREIGN)), { recursive: true });
  copyFileSync(join(ROOT, "tests", "lift", "kernels", "warp_per_row.cu"), trial.path(FOREIGN));
  const contract = readFileSync(join(ROOT, "tests", "faults", "contracts", "warp_per_row.toml"), "utf8");
  writeFileSync(join(dirname(trial.path(FOREIGN)), "contract.toml"), contract.replace(/source = ".*"/, 'source = "kernel.cu"'));
}

async function pictured(trial: Trial, { name, file, edits, code, shows, checked }: Case): Promise<void> {
  const text = readFileSync(trial.path(file), "utf8");
  const mistyped = edits.reduce((now, [from, to]) => {
    if (!now.includes(from)) throw new Error(`the kernel has no ${from}`);
    return now.replace(from, to);
  }, text);
  writeFileSync(trial.path(file), mistyped);
  mkdirSync(dirname(trial.path(SETTINGS)), { recursive: true });
  writeFileSync(trial.path(SETTINGS), JSON.stringify({ "cubridge.check.expect": checked?.expect ?? "" }));
  const window = await open(trial, file);
  await showProblems(window);
  if (checked) {
    await window.command("View: Focus First Editor Group");
    await window.command("CuBridge: Check Kernel");
    await window.outcome(window.toast(/\d+ findings?/), JOB);
    await window.command("Notifications: Clear All Notifications");
  }
  await problem(window, code).waitFor({ timeout: LATER });
  await toProblem(window, code);
  if (shows === "fixes") {
    await openFixes(window, "Ignore CB8");
  } else {
    await window.command("View: Hide Panel"); // a card is as high as half of the editor
    await window.command("Show or Focus Hover");
    await window.page.locator(".monaco-hover:visible", { hasText: code }).first().waitFor();
  }
  await take(window, name);
  writeFileSync(trial.path(file), text);
}

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
