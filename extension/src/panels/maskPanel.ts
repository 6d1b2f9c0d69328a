// The mask panel: which tiles of a kernel's or a spec's mask are empty, full or partial, for chosen lengths.
import * as vscode from "vscode";
import type { ServerManager } from "../client";
import { nameOf, pickKernel } from "../picks";
import { isKernelArgument, type MaskReply } from "../protocol";
import { requireTrust } from "../trust";
import { maskFile } from "../webviews/maskFile";
import type { MaskQuestion, ToHost } from "../webviews/messages";
import { Panel } from "./panel";

/** What the worker says it is doing, in more words where they are few. */
const STAGES: Record<string, string> = { spec: "the spec is run and traced" };
const isSpec = (uri: vscode.Uri): boolean => uri.path.endsWith(".py");

export class MaskPanel implements vscode.Disposable {
  private readonly panel: Panel<"mask">;
  private subject: vscode.Uri | undefined;
  private asking: { sizes?: MaskQuestion; flags?: Record<string, number> } = {};
  private last: MaskReply | undefined;
  private asked = 0;

  constructor(
    private readonly server: ServerManager,
    extensionUri: vscode.Uri,
  ) {
    this.panel = new Panel("mask", extensionUri, (message) => this.receive(message));
  }

  /** The mask of the kernel or of the spec that is in the argument or in the active editor. */
  async show(args: unknown[]): Promise<void> {
    const subject = specOf(args) ?? pickKernel(args);
    if (!subject || (isSpec(subject) && !(await requireTrust("read a spec")))) return;
    const opened = this.panel.isOpen;
    if (subject.toString() !== this.subject?.toString()) this.asking = {};
    this.subject = subject;
    this.panel.show(`Mask of ${nameOf(subject)}`);
    if (opened) await this.ask(); // a new page asks by itself
  }

  dispose(): void {
    this.panel.dispose();
  }

  private async ask(): Promise<void> {
    const { subject } = this;
    if (!subject) return;
    const turn = ++this.asked;
    this.panel.post({ type: "pending" });
    const about = isSpec(subject) ? { spec: subject.toString() } : { kernel: subject.toString() };
    const waiting = (why: string): void => { if (turn === this.asked) this.panel.post({ type: "pending", why: STAGES[why] ?? why }); };
    const reply = await this.server
      .watched<MaskReply>("cubridge.maskMap", { ...about, ...this.asking }, waiting)
      .catch((error: unknown) => ({ state: "failed" as const, message: error instanceof Error ? error.message : String(error) }));
    if (turn !== this.asked) return; // a newer question is on its way
    if (reply.state !== "done") {
      this.panel.post({ type: "problem", message: reply.message });
      return;
    }
    this.last = reply;
    this.panel.post({ type: "map", reply, title: nameOf(subject) });
  }

  private async receive(message: ToHost["mask"]): Promise<void> {
    switch (message.type) {
      case "ready":
        await this.ask();
        break;
      case "ask":
        this.asking = { sizes: message.question, flags: message.flags };
        await this.ask();
        break;
      case "copy":
        await vscode.env.clipboard.writeText(message.text);
        void vscode.window.setStatusBarMessage("CuBridge: the mask was copied as text.", 3000);
        break;
      case "save":
        await this.save();
        break;
    }
  }

  private async save(): Promise<void> {
    const { subject, last } = this;
    if (!subject || !last) return;
    const name = nameOf(subject).replace(/\.(cuh?|py)$/i, "");
    const defaultUri = vscode.Uri.joinPath(subject, "..", `${name}-mask.svg`);
    const target = await vscode.window.showSaveDialog({ defaultUri, filters: { SVG: ["svg"] } });
    if (target) await vscode.workspace.fs.writeFile(target, new TextEncoder().encode(maskFile(last)));
  }
}

function specOf(args: unknown[]): vscode.Uri | undefined {
  const [first] = args;
  if (isKernelArgument(first)) return undefined;
  if (typeof first === "object" && first !== null && typeof (first as { spec?: unknown }).spec === "string") {
    return vscode.Uri.parse((first as { spec: string }).spec);
  }
  const uri = first instanceof vscode.Uri ? first : vscode.window.activeTextEditor?.document.uri;
  return uri && isSpec(uri) ? uri : undefined;
}
