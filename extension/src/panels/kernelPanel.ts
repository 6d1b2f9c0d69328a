// A panel about the kernel in the active editor: it asks the server, keeps up with typing, and moves with the cursor.
import * as vscode from "vscode";
import type { ServerManager } from "../client";
import { nameOf, pickKernel } from "../picks";
import type { KernelReply } from "../protocol";
import type { ToHost, ToView } from "../webviews/messages";
import { Panel } from "./panel";
import { Follower, type Source } from "./source";

const AGAIN_MS = 600; // after an answer that was already old when it came

export abstract class KernelPanel<K extends "ir" | "pipeline", Reply extends KernelReply> implements vscode.Disposable {
  protected readonly panel: Panel<K>;
  protected readonly follower: Follower;
  private asked = 0;
  private last: Reply | undefined;
  private again: NodeJS.Timeout | undefined;

  constructor(
    name: K,
    private readonly title: string,
    private readonly command: string,
    protected readonly server: ServerManager,
    private readonly source: Source,
    extensionUri: vscode.Uri,
  ) {
    this.panel = new Panel(name, extensionUri, (message) => this.receive(message));
    this.follower = new Follower({
      active: () => this.panel.isOpen,
      pending: () => { this.panel.post({ type: "pending" }); },
      refresh: () => void this.refresh(),
      cursor: (line) => { this.cursor(line); },
    });
  }

  async show(args: unknown[]): Promise<void> {
    const kernel = pickKernel(args);
    if (!kernel) return;
    const ready = this.panel.isOpen;
    this.follower.kernel = kernel;
    this.panel.show(this.heading(kernel));
    if (ready) await this.refresh(); // a new page asks by itself
  }

  dispose(): void {
    clearTimeout(this.again);
    this.follower.dispose();
    this.panel.dispose();
  }

  protected get reply(): Reply | undefined {
    return this.last;
  }

  /** More fields for the request. */
  protected question(): object {
    return {};
  }

  /** What the page shows for a reply. */
  protected abstract shown(reply: Reply): ToView[K];

  /** Messages of the page beyond those that every such panel has. */
  protected abstract other(message: ToHost[K]): Promise<void>;

  protected async refresh(): Promise<void> {
    const kernel = this.follower.kernel;
    if (!kernel || !this.panel.isOpen) return;
    const turn = ++this.asked;
    clearTimeout(this.again);
    this.panel.title = this.heading(kernel);
    this.panel.post({ type: "pending" });
    let reply: Reply;
    try {
      reply = await this.server.execute<Reply>(this.command, { kernel: kernel.toString(), line: this.follower.line ?? null, ...this.question() });
    } catch (error) {
      if (turn === this.asked) this.problem(error instanceof Error ? error.message : String(error));
      return;
    }
    if (turn !== this.asked) return; // a newer question is on its way
    if (reply.state !== "done") {
      this.problem(reply.message);
      return;
    }
    this.last = reply;
    this.panel.post(this.shown(reply));
    const line = this.follower.line;
    if (line !== undefined) this.panel.post({ type: "cursor", line });
    if (reply.stale) this.again = setTimeout(() => void this.refresh(), AGAIN_MS);
  }

  /** The cursor moved: within the kernel that is shown, or into another one of the file. */
  private cursor(line: number): void {
    this.source.clear();
    const { span, kernels } = this.last ?? {};
    if (span && (kernels ?? 1) > 1 && (line < span[0] || span[1] < line)) void this.refresh();
    else this.panel.post({ type: "cursor", line });
  }

  private heading(kernel: vscode.Uri): string {
    return `${this.title} of ${nameOf(kernel)}`;
  }

  /** What was shown of this kernel before stays, and it is said that it is old. */
  private problem(message: string): void {
    const kept = this.last?.kernel === this.follower.kernel?.toString() ? " Shown is the last reading that was understood." : "";
    this.panel.post({ type: "problem", message: `${message}${kept}` });
  }

  private async receive(message: ToHost[K]): Promise<void> {
    const kernel = this.follower.kernel;
    if (message.type === "ready") await this.refresh();
    else if (message.type === "reveal" && kernel) await this.source.reveal(kernel, message.lines, message.focus);
    else await this.other(message);
  }
}
