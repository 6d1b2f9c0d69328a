// How a kernel is called: what was found and where, what only the user knows is asked, and accepted it becomes a contract.
import * as vscode from "vscode";
import type { ServerManager } from "../client";
import { nameOf, optionsOf, pickKernel } from "../picks";
import type { ContractReply, Question } from "../kernelReplies";
import { requireTrust } from "../trust";
import type { ToHost } from "../webviews/messages";
import { Panel } from "./panel";
import type { Source } from "./source";

interface Subject {
  kernel: vscode.Uri;
  options: { options?: Record<string, unknown> };
  answers: Record<string, string>;
}

export class ContractPanel implements vscode.Disposable {
  private readonly panel: Panel<"contract">;
  private subject: Subject | undefined;
  private reply: ContractReply | undefined;
  private old = false;
  private readonly listening: vscode.Disposable;

  constructor(
    private readonly server: ServerManager,
    private readonly source: Source,
    extensionUri: vscode.Uri,
  ) {
    this.panel = new Panel("contract", extensionUri, (message) => this.receive(message));
    this.listening = vscode.workspace.onDidChangeTextDocument((event) => {
      if (this.old || event.contentChanges.length === 0 || event.document.uri.toString() !== this.subject?.kernel.toString()) return;
      this.old = true;
      this.post();
    });
  }

  async show(args: unknown[]): Promise<void> {
    if (!(await requireTrust("find out how a kernel is called"))) return;
    const kernel = pickKernel(args);
    if (!kernel) return;
    this.subject = { kernel, options: optionsOf(args), answers: {} };
    await this.ask();
  }

  dispose(): void {
    this.listening.dispose();
    this.panel.dispose();
  }

  /** Finds out, asks the user what is open, and shows what is known then. */
  private async ask(): Promise<void> {
    const { subject } = this;
    if (!subject) return;
    let reply = await this.find(subject, {});
    // One at a time: with an answer, what else was open is often found.
    for (let open = newest(reply, subject.answers); reply && open; open = newest(reply, subject.answers)) {
      const answer = await choose(open);
      if (answer === undefined) break; // it stays open, and the panel says so
      subject.answers[keyOf(open)] = answer;
      reply = (await this.find(subject, {})) ?? reply;
    }
    if (reply) this.keep(subject, reply);
  }

  private async find(subject: Subject, more: object): Promise<ContractReply | null> {
    const document = await vscode.workspace.openTextDocument(subject.kernel);
    const reply = await this.server.job<ContractReply>("cubridge.contract", `Finding out how ${nameOf(subject.kernel)} is called`, {
      kernel: subject.kernel.toString(),
      version: document.version,
      answers: subject.answers,
      ...subject.options,
      ...more,
    });
    if (!reply || reply.state === "cancelled") return null;
    if (reply.state === "done") return reply;
    void vscode.window.showErrorMessage(`CuBridge ${reply.message || "gave no result."}`);
    return null;
  }

  private keep(subject: Subject, reply: ContractReply): void {
    this.subject = subject;
    this.reply = reply;
    this.old = false;
    const opened = this.panel.isOpen;
    this.panel.show(`How ${nameOf(subject.kernel)} is called`);
    if (opened) this.post(); // a new page asks by itself
  }

  private post(): void {
    if (this.reply) this.panel.post({ type: "contract", reply: this.reply, old: this.old });
  }

  private async write(): Promise<void> {
    const { subject } = this;
    const reply = subject && (await this.find(subject, { write: true }));
    const written = reply?.result?.written;
    if (!subject || !reply) return;
    this.keep(subject, reply);
    if (written) await vscode.window.showTextDocument(vscode.Uri.file(written), { viewColumn: vscode.ViewColumn.One });
  }

  private async receive(message: ToHost["contract"]): Promise<void> {
    const kernel = this.subject?.kernel;
    if (message.type === "ready") this.post();
    else if (message.type === "answer" && this.subject) {
      this.subject.answers = {}; // one that was of no use may be given anew
      await this.ask();
    }
    else if (message.type === "write") await this.write();
    else if (message.type === "open" && kernel) await vscode.window.showTextDocument(vscode.Uri.joinPath(kernel, "..", "contract.toml"), { viewColumn: vscode.ViewColumn.One });
    else if (message.type === "reveal" && kernel) await this.source.reveal(message.path ? vscode.Uri.file(message.path) : kernel, message.lines, message.focus);
  }
}

const keyOf = (question: Question): string => question.subject || question.what;
const OTHER = "Another answer…";

/** The first question that has no answer yet: one whose answer was of no use is not asked again, the diagnostics say why. */
function newest(reply: ContractReply | null, answers: Record<string, string>): Question | undefined {
  return reply?.result?.questions.find((question) => !(keyOf(question) in answers));
}

/** The user's answer to a question; undefined when there is none. */
async function choose(question: Question): Promise<string | undefined> {
  const picked = await vscode.window.showQuickPick([...question.candidates, OTHER], {
    title: "How Is It Called?",
    placeHolder: question.text,
    ignoreFocusOut: true,
  });
  return picked === OTHER ? vscode.window.showInputBox({ title: question.text, ignoreFocusOut: true }) : picked;
}
