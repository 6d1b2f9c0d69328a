// Adapted kernels as read-only virtual documents, one per (kernel, spec), each with what Accept needs to know.
import * as vscode from "vscode";
import type { AdaptReply, ChangedFile, Edit, EngineResult } from "./protocol";

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
  /** Further files that change with the kernel. */
  others: ChangedFile[];
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
    const other = this.get(uri)?.others.find((file) => otherUri(file, uri.query).toString() === uri.toString());
    return other?.text ?? this.kept.get(uri.toString())?.text ?? "This adaptation was accepted or discarded.\n";
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
    const adaptation = { kernel, spec, base, text, edits: reply.edits, result: reply.result, dropIn, others: reply.files ?? [] };
    this.kept.set(uri.toString(), adaptation);
    for (const one of shownUris(uri, adaptation)) this.changed.fire(one);
    const beside = dropInUri(adaptation);
    if (beside) this.changed.fire(beside);
    this.mark();
    return uri;
  }

  of(kernel: vscode.Uri, spec: vscode.Uri): Adaptation | undefined {
    return this.get(adaptedUri(kernel, spec));
  }

  /** The adaptation shown at `uri`, which may be that of another file that changes with the kernel. */
  get(uri: vscode.Uri): Adaptation | undefined {
    const key = this.keyOf(uri);
    return key === undefined ? undefined : this.kept.get(key);
  }

  /** Forgets the adaptation shown at `uri`; the URIs of all its documents. */
  remove(uri: vscode.Uri): vscode.Uri[] {
    const key = this.keyOf(uri);
    const adaptation = key === undefined ? undefined : this.kept.get(key);
    if (key === undefined || !adaptation) return [uri];
    this.kept.delete(key);
    this.mark();
    return shownUris(vscode.Uri.parse(key), adaptation);
  }

  private keyOf(uri: vscode.Uri): string | undefined {
    const wanted = uri.toString();
    if (this.kept.has(wanted)) return wanted;
    const owner = [...this.kept].find(([key, item]) => shownUris(vscode.Uri.parse(key), item).some((one) => one.toString() === wanted));
    return owner?.[0];
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

/** The adapted text of another file that changes with the kernel; `query` is that of the kernel's own. */
export const otherUri = (file: Pick<ChangedFile, "uri">, query: string): vscode.Uri =>
  vscode.Uri.parse(file.uri).with({ scheme: SCHEME, query });

const shownUris = (kernel: vscode.Uri, { others }: Adaptation): vscode.Uri[] => [
  kernel,
  ...others.map((file) => otherUri(file, kernel.query)),
];

/** The drop-in as a read-only document beside the kernel. */
export function dropInUri({ kernel, spec, dropIn }: Pick<Adaptation, "kernel" | "spec" | "dropIn">): vscode.Uri | null {
  return dropIn ? vscode.Uri.joinPath(kernel, "..", dropIn.name).with({ scheme: DROP_IN_SCHEME, query: spec.path }) : null;
}
