// CuIR as read-only text: of a kernel beside it, and before and after an adaptation as a diff.
import * as vscode from "vscode";
import type { ServerManager } from "./client";
import { nameOf, pickKernel } from "./picks";
import type { IrDiffReply, IrReply } from "./protocol";

const SCHEME = "cubridge-ir";

export class IrView implements vscode.TextDocumentContentProvider, vscode.Disposable {
  private readonly texts = new Map<string, string>();
  private readonly changed = new vscode.EventEmitter<vscode.Uri>();
  private readonly registration = vscode.workspace.registerTextDocumentContentProvider(SCHEME, this);
  readonly onDidChange = this.changed.event;

  constructor(private readonly server: ServerManager) {}

  provideTextDocumentContent(uri: vscode.Uri): string {
    return this.texts.get(uri.toString()) ?? "";
  }

  async show(args: unknown[]): Promise<void> {
    const kernel = pickKernel(args);
    if (!kernel) return;
    const reply = await this.server.execute<IrReply>("cubridge.showIr", { kernel: kernel.toString() });
    if (reply.state !== "done") {
      void vscode.window.showInformationMessage(`CuBridge: ${reply.message}`);
      return;
    }
    const document = await this.document(kernel, "", reply.text);
    await vscode.window.showTextDocument(document, { viewColumn: vscode.ViewColumn.Beside, preserveFocus: true, preview: true });
    void vscode.window.setStatusBarMessage(`CuIR of ${nameOf(kernel)}`, 2000);
  }

  /** The program before and after an adaptation, side by side. */
  async compare(kernel: vscode.Uri, spec: vscode.Uri): Promise<void> {
    const reply = await this.server.execute<IrDiffReply>("cubridge.irDiff", { kernel: kernel.toString(), spec: spec.toString() });
    if (reply.state !== "done") {
      void vscode.window.showInformationMessage(`CuBridge: ${reply.message}`);
      return;
    }
    const before = await this.document(kernel, "before", reply.before);
    const after = await this.document(kernel, `adapted to ${nameOf(spec)}`, reply.after);
    const title = `CuIR of ${nameOf(kernel)} ↔ adapted to ${nameOf(spec)}`;
    await vscode.commands.executeCommand("vscode.diff", before.uri, after.uri, title, { preview: true });
  }

  dispose(): void {
    this.registration.dispose();
    this.changed.dispose();
  }

  private async document(kernel: vscode.Uri, query: string, text: string): Promise<vscode.TextDocument> {
    const uri = kernel.with({ scheme: SCHEME, path: `${kernel.path}.cuir`, query });
    this.texts.set(uri.toString(), text);
    this.changed.fire(uri);
    const document = await vscode.workspace.openTextDocument(uri);
    return document.languageId === "cuir" ? document : vscode.languages.setTextDocumentLanguage(document, "cuir");
  }
}
