// The page of a finding's code, rendered: why it matters, an example, how to mend it. A code in the problems links to it.
import * as vscode from "vscode";
import type { ServerManager } from "./client";
import type { CodeList, CodePage } from "./kernelReplies";

export const PAGE_SCHEME = "cubridge-code";

export class CodePages implements vscode.TextDocumentContentProvider, vscode.Disposable {
  private readonly texts = new Map<string, string>();
  private readonly changed = new vscode.EventEmitter<vscode.Uri>();
  readonly onDidChange = this.changed.event;

  constructor(private readonly server: ServerManager) {}

  provideTextDocumentContent(uri: vscode.Uri): string {
    return this.texts.get(uri.path) ?? "";
  }

  /** Of the code in the argument, or of the one that the user picks. */
  async show(given: unknown): Promise<void> {
    const code = typeof given === "string" ? given : await this.pick();
    if (!code) return;
    const page = await this.server.execute<CodePage>("cubridge.codePage", { code });
    if (page.state !== "done") {
      void vscode.window.showInformationMessage(`CuBridge ${page.message}`);
      return;
    }
    const uri = vscode.Uri.from({ scheme: PAGE_SCHEME, path: `${code}.md` });
    this.texts.set(uri.path, page.text);
    this.changed.fire(uri);
    await vscode.commands.executeCommand("markdown.showPreviewToSide", uri);
  }

  dispose(): void {
    this.changed.dispose();
  }

  private async pick(): Promise<string | undefined> {
    const { codes } = await this.server.execute<CodeList>("cubridge.codePage", {});
    const items = codes.map(({ code, title }) => ({ label: code, description: title }));
    const choice = await vscode.window.showQuickPick(items, { title: "Page of a Finding", matchOnDescription: true });
    return choice?.label;
  }
}

/** In place of the file that the server names for every editor: a command that shows the same page rendered. */
export function rendered(diagnostics: vscode.Diagnostic[]): vscode.Diagnostic[] {
  for (const item of diagnostics) {
    if (typeof item.code !== "object") continue;
    const argument = encodeURIComponent(JSON.stringify([String(item.code.value)]));
    item.code = { value: item.code.value, target: vscode.Uri.parse(`command:cubridge.showCodePage?${argument}`) };
  }
  return diagnostics;
}
