// What a user does and sees in the workbench, each as one call that waits for its own state of the page.
import { readFileSync } from "node:fs";
import { basename, dirname, join } from "node:path";
import type { Browser, Locator, Page } from "playwright-core";
import type { CodeServer } from "./codeServer";
import { until } from "./until";

/** Below 1 while tests are written, above on a slow machine. */
const PATIENCE = Number(process.env.CUBRIDGE_EDITOR_PATIENCE ?? "1");

// Limits only end what has failed; they are for two cores with ten programs that want them.
/** For what only the page does. */
export const SOON = 90_000 * PATIENCE;
/** For starting an extension host or a server. */
export const LATER = 240_000 * PATIENCE;
/** For a job: it compiles and simulates. */
export const JOB = 900_000 * PATIENCE;

const VIEWPORT = { width: 1400, height: 900 };

export class Workbench {
  /** Origins other than the editor's own that the page asked for. */
  readonly foreign = new Set<string>();
  readonly console: string[] = [];

  private constructor(
    readonly page: Page,
    readonly server: CodeServer,
    readonly folder: string,
  ) {}

  /** A page that is listened to and has no address yet. */
  static async blank(browser: Browser, server: CodeServer, folder: string): Promise<Workbench> {
    const context = await browser.newContext({ viewport: VIEWPORT });
    await context.grantPermissions(["clipboard-read", "clipboard-write"], { origin: server.origin });
    const page = await context.newPage();
    page.setDefaultTimeout(SOON);
    const self = new Workbench(page, server, folder);
    page.on("request", (request) => {
      const { origin, protocol } = new URL(request.url());
      // A name that the service worker of webviews answers itself, for files of the extension.
      const inside = origin === server.origin || origin.endsWith(".vscode-resource.vscode-cdn.net");
      if (protocol.startsWith("http") && !inside) self.foreign.add(origin);
    });
    page.on("console", (message) => self.console.push(`${message.type()}: ${message.text()}`));
    page.on("pageerror", (error) => self.console.push(`page error: ${error.message}`));
    return self;
  }

  /** Opens the workspace, with `file` in an editor. */
  async visit(file?: string): Promise<void> {
    await this.page.goto(this.server.address(this.folder, file), { waitUntil: "domcontentloaded" });
    await this.page.locator(".monaco-workbench").waitFor({ timeout: LATER });
    if (file) await this.editor(file).locator(".view-line").first().waitFor({ timeout: LATER });
  }

  async close(): Promise<void> {
    await this.page.context().close();
  }

  /** The text editor of a file of the workspace. */
  editor(file: string): Locator {
    return this.page.locator(`.editor-instance .monaco-editor[data-uri$="/${file}"]`);
  }

  /** A line on the screen that has all of `texts`, injected hints included. */
  line(file: string, ...texts: string[]): Locator {
    // Strings only: the editor's spaces are not those of a regular expression.
    return texts.reduce((lines, text) => lines.filter({ hasText: text }), this.editor(file).locator(".view-line")).first();
  }

  /** A lens on the screen; those above and below it are in the page too, hidden. */
  lens(file: string, text: string | RegExp): Locator {
    return this.editor(file).locator(".codelens-decoration a:visible", { hasText: text }).first();
  }

  tab(text: string | RegExp): Locator {
    return this.page.locator(".tabs-container .tab", { hasText: text });
  }

  toast(text: string | RegExp): Locator {
    return this.page.locator(".notification-toast", { hasText: text }).first();
  }

  toastButton(text: string | RegExp, button: string): Locator {
    return this.toast(text).locator(".monaco-button", { hasText: button });
  }

  /**
   * Waits for `state`. An error that the extension shows meanwhile ends the wait: what was waited for will not come.
   */
  async outcome(state: Locator, timeout: number): Promise<void> {
    const error = this.page.locator(".notification-toast", { has: this.page.locator(".codicon-error") }).first();
    await state.or(error).first().waitFor({ timeout });
    if (!(await state.isVisible())) throw new Error(await error.innerText());
  }

  /** The list of a quick pick or of the command palette. */
  row(text: string | RegExp): Locator {
    return this.page.locator(".quick-input-widget:visible .monaco-list-row", { hasText: text }).first();
  }

  /** Runs the command with exactly this title, with the keyboard alone. */
  async command(title: string): Promise<void> {
    const typed = `>${title}`;
    await this.ask("F1", typed);
    const label = ".quick-input-widget:visible .monaco-list-row .label-name";
    const focused = this.page.locator(".quick-input-widget:visible .monaco-list-row.focused .label-name").first();
    const named = this.page.locator(label).getByText(title, { exact: true });
    // A longer title may come first: recently used ones do. The list is made anew while commands register.
    await until(`the palette has "${title}" in focus`, SOON, async () => {
      if ((await focused.innerText({ timeout: 1000 }).catch(() => "")) === title) return true;
      if ((await this.input.count()) === 0) await this.ask("F1", typed);
      else if ((await named.count()) > 0) await this.page.keyboard.press("ArrowDown");
      return false;
    });
    await this.enter(typed);
  }

  /** Where a quick pick, a dialog or the command palette takes its text. */
  get input(): Locator {
    return this.page.locator(".quick-input-widget:visible input.input");
  }

  /**
   * Opens the palette with `key` and types into it. A panel that takes the focus when it is ready closes the palette again,
   * and then a user presses the key a second time.
   */
  async ask(key: "F1" | "Control+g" | "Control+p", text: string): Promise<void> {
    await until(`${key} opens the palette for ${text}`, SOON, async () => {
      if ((await this.input.count()) === 0) await this.page.keyboard.press(key);
      return this.input.fill(text, { timeout: 3000 }).then(
        () => true,
        () => false,
      );
    });
  }

  /** Presses Enter in the palette, and waits until it is gone or asks something else. */
  private async enter(typed: string): Promise<void> {
    await this.page.keyboard.press("Enter");
    await until(`the palette takes ${typed}`, SOON, async () => {
      if ((await this.input.count()) === 0) return true;
      const value = await this.input.inputValue({ timeout: 1000 }).catch(() => null); // it went between the two questions
      return value !== typed;
    });
  }

  /** Puts the caret on a line, and a column of it (both from 1), of the active editor. */
  async goTo(line: number, column = 1): Promise<void> {
    const place = column === 1 ? `:${line}` : `:${line}:${column}`;
    await this.ask("Control+g", place);
    await this.enter(place);
    await this.caretAt(line);
    await this.page.locator(".editor-instance .monaco-editor.focused").first().waitFor(); // it takes keys again
  }

  async caretAt(line: number): Promise<void> {
    const place = this.page.locator("#status\\.editor\\.selection", { hasText: new RegExp(`^Ln ${line}\\b`) });
    await place.waitFor();
  }

  /** The caret has come to `line`, or to one of the `lines` after it. */
  async caretOn(line: number, lines: number): Promise<void> {
    const allowed = Array.from({ length: lines }, (_, index) => line + index).join("|");
    await this.page.locator("#status\\.editor\\.selection", { hasText: new RegExp(`^Ln (${allowed})\\b`) }).waitFor();
  }

  /** Opens a file of the workspace, with the keyboard alone. */
  async openFile(file: string): Promise<void> {
    await this.ask("Control+p", file);
    // What was opened last stands first while the files are being searched: it may have the same name in another folder.
    const focused = this.page.locator(".quick-input-widget:visible .monaco-list-row.focused", { hasText: basename(file) });
    const folder = dirname(file);
    await (folder === "." ? focused : focused.filter({ hasText: folder })).waitFor();
    await this.enter(file);
    await this.editor(file).locator(".view-line").first().waitFor();
  }

  /** Focus into the editor, as a click on its tab and the keyboard give it. */
  async focusEditor(): Promise<void> {
    await this.command("View: Focus Active Editor Group");
    await this.page.locator(".editor-instance .monaco-editor.focused").first().waitFor();
  }

  async save(): Promise<void> {
    await this.page.keyboard.press("Control+s");
    // Every group has an active tab; what was saved is in the active group.
    await this.page.locator(".editor-group-container.active .tab.active:not(.dirty)").first().waitFor();
  }

  path(file: string): string {
    return join(this.folder, file);
  }
}

/** Whether `what` comes within a moment: for what a user would ask for once more. */
export async function appears(what: Locator): Promise<boolean> {
  return what.waitFor({ timeout: 5000 }).then(
    () => true,
    () => false,
  );
}

/** The line (from 1) of a file that has `text` first. */
export function lineOf(path: string, text: string): number {
  const found = readFileSync(path, "utf8").split("\n").findIndex((line) => line.includes(text));
  if (found < 0) throw new Error(`${path} has no line with ${text}`);
  return found + 1;
}
