// The panels from outside: the document of one, and what axe-core says of it.
import { readFileSync } from "node:fs";
import type { Frame, Page } from "playwright-core";
import { until } from "./until";
import { LATER } from "./workbench";

/** What axe calls serious or critical, people cannot work around. */
const UNBEARABLE = ["serious", "critical"];
const AXE = readFileSync(require.resolve("axe-core/axe.min.js"), "utf8");

interface Violation {
  id: string;
  impact: string | null;
  help: string;
  nodes: { html: string; failureSummary?: string }[];
}

/** The document of the panel `name` (ir, pipeline, mask, report), once it has `content` (a selector). */
export async function panel(page: Page, name: string, content: string): Promise<Frame> {
  return webview(page, `body.panel-${name}`, content);
}

/** The document of the webview that matches `which`, wherever the workbench has put its frame, once it has `content`. */
export async function webview(page: Page, which: string, content: string): Promise<Frame> {
  const frame = await until(`a webview with ${which}`, LATER, async () => {
    for (const candidate of page.frames()) {
      const count = await candidate.locator(which).count().catch(() => 0); // a frame may go while we look
      if (count > 0) return candidate;
    }
    return null;
  });
  await frame.locator(content).first().waitFor({ timeout: LATER });
  return frame;
}

/** Waits until the panel has the theme's colours: `kind` is vscode-light, vscode-dark or vscode-high-contrast. */
export async function inTheme(frame: Frame, kind: string): Promise<void> {
  await frame.locator(`body[data-vscode-theme-kind="${kind}"]`).waitFor();
}

/** What axe finds that somebody could not see, reach or have read to them: one text each. */
export async function unbearable(frame: Frame): Promise<string[]> {
  await frame.evaluate(AXE);
  const violations = await frame.evaluate<Violation[]>("axe.run(document, { resultTypes: ['violations'] }).then((found) => found.violations)");
  return violations
    .filter((item) => UNBEARABLE.includes(item.impact ?? ""))
    .map((item) => [`${item.id} (${item.impact ?? ""}): ${item.help}`, ...item.nodes.slice(0, 3).map((node) => `    ${node.html}\n    ${node.failureSummary ?? ""}`)].join("\n"));
}

/** Presses Tab until an element with `selector` has the focus. */
export async function tabTo(page: Page, frame: Frame, selector: string, presses = 40): Promise<void> {
  for (let count = 0; count < presses; count++) {
    if (await frame.evaluate(`document.activeElement?.matches(${JSON.stringify(selector)}) ?? false`)) return;
    await page.keyboard.press("Tab");
  }
  throw new Error(`${presses} times Tab do not reach ${selector}`);
}
