// Adapted kernels as read-only virtual documents, one per (kernel, spec), each with what Accept needs to know.
import * as vscode from "vscode";
import type { AdaptReply, Edit, EngineResult } from "./protocol";

export const SCHEME = "cubridge-adapted";
export const DROP_IN_SCHEME = "cubridge-drop-in";

export interface Adaptation {
  kernel: vscode.Uri;
  spec: vscode.Uri;
  /** The kernel's text that was adapted: Accept refuses any other. */
  base: string;
  text: string;
  edits: Edit[];
  result: EngineResult;
  /** The Python file around the kernel, where there is one. */
  dropIn: { name: string; text: string } | null;
}

export class Adaptations implements vscode.TextDocumentContentProvider, vscode.Disposable {
  private readonly kept = new Map<string, Adaptation>();
  private readonly changed = new vscode.EventEmitter<vscode.Uri>();
  readonly onDidChange = this.changed.event;

  provideTextDocumentContent(uri: vscode.Uri): string {
    if (uri.scheme === DROP_IN_SCHEME) {
      const owner = [...this.kept.values()].find((item) => dropInUri(item)?.toString() === uri.toString());
      return owner?.dropIn?.text ?? "# This adaptation was accepted or discarded.\n";
    }
    return this.kept.get(uri.toString())?.text ?? "This adaptation was accepted or discarded.\n";
  }

  /** Keeps the adaptation of `reply` under its virtual document's URI; null when the reply carries none. */
  add(base: string, reply: AdaptReply): vscode.Uri | null {
    const text = reply.result?.text;
    if (!reply.result || typeof text !== "string" || !reply.edits) return null;
    const kernel = vscode.Uri.parse(reply.kernel);
    const spec = vscode.Uri.parse(reply.spec);
    const uri = adaptedUri(kernel, spec);
    const made = reply.result.drop_in;
    const dropIn = made && reply.drop_in_name ? { name: reply.drop_in_name, text: made } : null;
    const adaptation = { kernel, spec, base, text, edits: reply.edits, result: reply.result, dropIn };
    this.kept.set(uri.toString(), adaptation);
    this.changed.fire(uri);
    const beside = dropInUri(adaptation);
    if (beside) this.changed.fire(beside);
    this.mark();
    return uri;
  }

  of(kernel: vscode.Uri, spec: vscode.Uri): Adaptation | undefined {
    return this.get(adaptedUri(kernel, spec));
  }

  get(uri: vscode.Uri): Adaptation | undefined {
    return this.kept.get(uri.toString());
  }

  remove(uri: vscode.Uri): void {
    this.kept.delete(uri.toString());
    this.mark();
  }

  /** Which of them have a drop-in: the button of the diff shows only there. */
  private mark(): void {
    const having = [...this.kept].filter(([, item]) => item.dropIn).map(([uri]) => uri);
    void vscode.commands.executeCommand("setContext", "cubridge.dropIns", having);
  }

  dispose(): void {
    this.changed.dispose();
  }
}

const adaptedUri = (kernel: vscode.Uri, spec: vscode.Uri): vscode.Uri => kernel.with({ scheme: SCHEME, query: spec.path });

/** The drop-in as a read-only document beside the kernel. */
export function dropInUri({ kernel, spec, dropIn }: Pick<Adaptation, "kernel" | "spec" | "dropIn">): vscode.Uri | null {
  return dropIn ? vscode.Uri.joinPath(kernel, "..", dropIn.name).with({ scheme: DROP_IN_SCHEME, query: spec.path }) : null;
}
