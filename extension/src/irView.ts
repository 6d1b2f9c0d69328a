// The CuIR of a kernel as a read-only text beside it.
import * as vscode from "vscode";
import type { ServerManager } from "./client";
import { nameOf, pickKernel } from "./picks";
import type { IrReply } from "./protocol";

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
    const uri = kernel.with({ scheme: SCHEME, path: `${kernel.path}.cuir` });
    this.texts.set(uri.toString(), reply.text);
    this.changed.fire(uri);
    const document = await vscode.workspace.openTextDocument(uri);
    await vscode.window.showTextDocument(document, { viewColumn: vscode.ViewColumn.Beside, preserveFocus: true, preview: true });
    await vscode.languages.setTextDocumentLanguage(document, "cuir");
    void vscode.window.setStatusBarMessage(`CuIR of ${nameOf(kernel)}`, 2000);
  }

  dispose(): void {
    this.registration.dispose();
    this.changed.dispose();
  }
}
