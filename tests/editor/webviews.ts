// The panels from outside: the document of one, and what axe-core says of it.
import { readFileSync } from "node:fs";
import type { Frame, Page } from "playwright-core";
import { until } from "./until";
import { LATER, SOON } from "./workbench";

/** What axe calls serious or critical, people cannot work around. */
const UNBEARABLE = ["serious", "critical"];
/** CuBridge: Check Environment. */
export const ENVIRONMENT: Looked = { body: "body:has(h1:text('CuBridge environment'))", content: "table", rendered: true };
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
  // All frames each time: one may be replaced by another while we wait.
  return until(`a webview with ${which} and ${content}`, LATER, async () => {
    for (const candidate of page.frames()) {
      const found = await candidate.locator(which).count().catch(() => 0); // a frame may go while we look
      if (found > 0 && (await candidate.locator(content).first().isVisible().catch(() => false))) return candidate;
    }
    return null;
  });
}

/** Of a page that the workbench makes from our markdown, its frame and its code blocks are not ours to judge. */
const RENDERED = { rules: { "document-title": { enabled: false }, "html-has-lang": { enabled: false } } };

/** A document of a webview. */
export interface Looked {
  /** Selector of its body. */
  body: string;
  /** Selector of what it holds once it is drawn. */
  content: string;
  /** The workbench made it from markdown. */
  rendered?: boolean;
}

/**
 * What axe finds in the document that somebody could not see, reach or have read to them: one text each. While a theme
 * arrives colours of both are in the page for a moment, or it is made anew: what counts is what stays.
 */
export async function unbearable(page: Page, { body, content, rendered = false }: Looked): Promise<string[]> {
  let found: string[] = [];
  const look = async (): Promise<boolean> => {
    try {
      const frame = await webview(page, body, content);
      found = await judge(frame, rendered);
    } catch (error) {
      if (!/detached|destroyed|navigat/i.test(String(error))) throw error;
      return false; // it was made anew while we looked
    }
    return found.length === 0;
  };
  return until("axe finds nothing", SOON / 3, look).then(() => [], () => (found.length > 0 ? found : [`${body} does not come to rest`]));
}

async function judge(frame: Frame, rendered: boolean): Promise<string[]> {
  await frame.evaluate(AXE);
  // Such a page is transparent: what is seen behind it belongs to the workbench, where axe does not look.
  if (rendered) await frame.evaluate("document.documentElement.style.background = 'var(--vscode-editor-background)'");
  const context = rendered ? '{ exclude: [["pre"]] }' : "document";
  const options = JSON.stringify({ resultTypes: ["violations"], ...(rendered ? RENDERED : {}) });
  const violations = await frame.evaluate<Violation[]>(`axe.run(${context}, ${options}).then((found) => found.violations)`);
  return violations
    .filter((item) => UNBEARABLE.includes(item.impact ?? ""))
    .map((item) => [`${item.id} (${item.impact ?? ""}): ${item.help}`, ...item.nodes.slice(0, 3).map((node) => `    ${node.html}\n    ${node.failureSummary ?? ""}`)].join("\n"));
}

/** Presses Tab until an element with `selector` has the focus. */
export async function tabTo(page: Page, frame: Frame, selector: string, presses = 40): Promise<void> {
  // A page is given the focus some time after it was asked for: a key before that goes to the editor, and types a tab.
  await until("the panel has the focus", SOON, () => frame.evaluate<boolean>("document.hasFocus()"));
  for (let count = 0; count < presses; count++) {
    if (await frame.evaluate(`document.activeElement?.matches(${JSON.stringify(selector)}) ?? false`)) return;
    await page.keyboard.press("Tab");
  }
  throw new Error(`${presses} times Tab do not reach ${selector}`);
}
