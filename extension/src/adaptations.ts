// Adapted kernels as read-only virtual documents, one per (kernel, spec), each with what Accept needs to know.
import * as vscode from "vscode";
import type { AdaptReply, Edit, EngineResult } from "./protocol";

export const SCHEME = "cubridge-adapted";

export interface Adaptation {
  kernel: vscode.Uri;
  spec: vscode.Uri;
  /** The kernel's text that was adapted: Accept refuses any other. */
  base: string;
  text: string;
  edits: Edit[];
  result: EngineResult;
}

export class Adaptations implements vscode.TextDocumentContentProvider, vscode.Disposable {
  private readonly kept = new Map<string, Adaptation>();
  private readonly changed = new vscode.EventEmitter<vscode.Uri>();
  readonly onDidChange = this.changed.event;

  provideTextDocumentContent(uri: vscode.Uri): string {
    return this.kept.get(uri.toString())?.text ?? "This adaptation was accepted or discarded.\n";
  }

  /** Keeps the adaptation of `reply` under its virtual document's URI; null when the reply carries none. */
  add(base: string, reply: AdaptReply): vscode.Uri | null {
    const text = reply.result?.text;
    if (!reply.result || typeof text !== "string" || !reply.edits) return null;
    const kernel = vscode.Uri.parse(reply.kernel);
    const spec = vscode.Uri.parse(reply.spec);
    const uri = kernel.with({ scheme: SCHEME, query: spec.path });
    this.kept.set(uri.toString(), { kernel, spec, base, text, edits: reply.edits, result: reply.result });
    this.changed.fire(uri);
    return uri;
  }

  get(uri: vscode.Uri): Adaptation | undefined {
    return this.kept.get(uri.toString());
  }

  remove(uri: vscode.Uri): void {
    this.kept.delete(uri.toString());
  }

  dispose(): void {
    this.changed.dispose();
  }
}
