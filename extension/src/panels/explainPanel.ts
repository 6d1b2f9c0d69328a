// The explain panel: what a kernel is in sentences with their lines, or how two kernels differ.
import * as vscode from "vscode";
import type { ServerManager } from "../client";
import { kernelFiles, nameOf, optionsOf, pickKernel } from "../picks";
import type { CompareReply, ExplainReply } from "../kernelReplies";
import { requireTrust } from "../trust";
import type { ToHost, ToView } from "../webviews/messages";
import { Panel } from "./panel";
import type { Source } from "./source";

/** What is shown: one kernel, or two. `options`: which kernel of the file. */
interface Subject {
  kernel: vscode.Uri;
  other?: vscode.Uri;
  options: { options?: Record<string, unknown> };
}

export class ExplainPanel implements vscode.Disposable {
  private readonly panel: Panel<"explain">;
  private subject: Subject | undefined;
  private shown: ToView["explain"] | undefined;
  private asked = 0;
  private readonly listening: vscode.Disposable;

  constructor(
    private readonly server: ServerManager,
    private readonly source: Source,
    extensionUri: vscode.Uri,
  ) {
    this.panel = new Panel("explain", extensionUri, (message) => this.receive(message));
    this.listening = vscode.workspace.onDidChangeTextDocument((event) => {
      const changed = event.document.uri.toString();
      const about = [this.subject?.kernel, this.subject?.other].some((uri) => uri?.toString() === changed);
      if (about && this.shown && event.contentChanges.length > 0) this.panel.post({ type: "old" });
    });
  }

  async explain(args: unknown[]): Promise<void> {
    const kernel = pickKernel(args);
    if (kernel) await this.open({ kernel, options: optionsOf(args) });
  }

  /** The kernel in the argument or in the active editor, and one that the user picks; two that are selected in the
   *  explorer are compared at once. */
  async compare(args: unknown[]): Promise<void> {
    const selected = Array.isArray(args[1]) ? args[1].filter((item): item is vscode.Uri => item instanceof vscode.Uri) : [];
    const [first, second] = selected.length === 2 ? selected : [pickKernel(args)];
    const other = first && (second ?? (await this.pickOther(first)));
    if (first && other) await this.open({ kernel: first, other, options: {} });
  }

  dispose(): void {
    this.listening.dispose();
    this.panel.dispose();
  }

  private async pickOther(kernel: vscode.Uri): Promise<vscode.Uri | undefined> {
    return kernelFiles(`Compare ${nameOf(kernel)} with`, "Compare", kernel);
  }

  private async open(subject: Subject): Promise<void> {
    const opened = this.panel.isOpen;
    this.subject = subject;
    this.shown = undefined;
    this.panel.show(subject.other ? `${nameOf(subject.kernel)} ↔ ${nameOf(subject.other)}` : `Explanation of ${nameOf(subject.kernel)}`);
    if (opened) await this.ask(false); // a new page asks by itself
  }

  private async ask(watch: boolean): Promise<void> {
    const { subject } = this;
    if (!subject || (watch && !(await requireTrust("run a kernel in the simulator")))) return;
    const turn = ++this.asked;
    const answer = await (subject.other ? this.comparison(subject, subject.other, turn) : this.explanation(subject, watch, turn)).catch(
      (error: unknown): ToView["explain"] => ({ type: "problem", message: error instanceof Error ? error.message : String(error) }),
    );
    if (turn !== this.asked || !answer) return; // a newer question is on its way, or it was cancelled
    if (answer.type === "explanation" || answer.type === "comparison") this.shown = answer;
    this.panel.post(answer);
  }

  private async explanation(subject: Subject, watch: boolean, turn: number): Promise<ToView["explain"] | null> {
    const question = { kernel: subject.kernel.toString(), watch, ...subject.options };
    const reply = watch
      ? await this.server.job<ExplainReply>("cubridge.explain", `Watching ${nameOf(subject.kernel)}`, question)
      : await this.watched<ExplainReply>("cubridge.explain", question, turn);
    if (!reply || reply.state === "cancelled") return null;
    return reply.state === "done" ? { type: "explanation", reply } : { type: "problem", message: reply.message };
  }

  private async comparison(subject: Subject, other: vscode.Uri, turn: number): Promise<ToView["explain"]> {
    const reply = await this.watched<CompareReply>("cubridge.compare", { kernel: subject.kernel.toString(), other: other.toString() }, turn);
    if (reply.state !== "done") return { type: "problem", message: reply.message };
    return { type: "comparison", reply, a: subject.kernel.fsPath, b: other.fsPath };
  }

  /** Asks the server; its stages are shown in the panel. */
  private watched<T>(command: string, question: object, turn: number): Promise<T> {
    const told = (why: string): void => { if (turn === this.asked) this.panel.post({ type: "pending", why }); };
    this.panel.post({ type: "pending" });
    return this.server.watched<T>(command, question, told);
  }

  private async receive(message: ToHost["explain"]): Promise<void> {
    switch (message.type) {
      case "ready":
        if (this.shown) this.panel.post(this.shown);
        else await this.ask(false);
        break;
      case "again":
        await this.ask(message.watch);
        break;
      case "reveal":
        if (this.subject) await this.source.reveal(message.path ? vscode.Uri.file(message.path) : this.subject.kernel, message.lines, message.focus);
        break;
      case "copy":
        await vscode.env.clipboard.writeText(message.text);
        void vscode.window.setStatusBarMessage("CuBridge: the explanation was copied.", 3000);
        break;
    }
  }
}
