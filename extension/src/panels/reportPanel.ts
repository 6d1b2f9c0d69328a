// The report panel: levels, shapes and errors, figures, findings of the last job; exported as one HTML file.
import * as vscode from "vscode";
import { nameOf } from "../picks";
import type { JobReply } from "../protocol";
import { reportMarkdown } from "../reportText";
import { exportedReport } from "../webviews/exportHtml";
import type { ToHost } from "../webviews/messages";
import { Panel } from "./panel";
import type { Source } from "./source";

interface Kept {
  title: string;
  reply: JobReply;
  made: string;
}

export class Reports implements vscode.Disposable {
  private last: Kept | undefined;
  private readonly panel: Panel<"report">;

  constructor(
    private readonly extensionUri: vscode.Uri,
    private readonly source: Source,
    private readonly compare: (reply: JobReply) => Promise<void>,
    private readonly dropIn: (reply: JobReply) => Promise<void>,
  ) {
    this.panel = new Panel("report", extensionUri, (message) => this.receive(message));
  }

  keep(title: string, reply: JobReply): void {
    this.last = { title, reply, made: new Date().toLocaleString() };
    if (this.panel.isOpen) this.post();
  }

  show(): void {
    const opened = this.panel.isOpen;
    this.panel.show("CuBridge report");
    if (opened) this.post(); // a new page asks by itself
  }

  async export(): Promise<void> {
    const { last } = this;
    if (!last) {
      void vscode.window.showInformationMessage("CuBridge: there is no report yet. Adapt or verify a kernel first.");
      return;
    }
    const folder = vscode.Uri.joinPath(vscode.Uri.parse(last.reply.kernel), "..");
    const name = `${nameOf(vscode.Uri.parse(last.reply.kernel)).replace(/\.cuh?$/i, "")}-report.html`;
    const target = await vscode.window.showSaveDialog({ defaultUri: vscode.Uri.joinPath(folder, name), filters: { HTML: ["html"] } });
    if (!target) return;
    const style = await vscode.workspace.fs.readFile(vscode.Uri.joinPath(this.extensionUri, "dist", "webviews", "report.css"));
    const text = exportedReport(last.title, last.reply, last.made, new TextDecoder().decode(style));
    await vscode.workspace.fs.writeFile(target, new TextEncoder().encode(text));
    const answer = await vscode.window.showInformationMessage(`CuBridge: the report was written to ${nameOf(target)}.`, "Open");
    if (answer) await vscode.env.openExternal(target);
  }

  dispose(): void {
    this.panel.dispose();
  }

  private post(): void {
    const { last } = this;
    if (last) this.panel.post({ type: "report", ...last });
    else this.panel.post({ type: "problem", message: "No report yet: adapt or verify a kernel first." });
  }

  private async receive(message: ToHost["report"]): Promise<void> {
    switch (message.type) {
      case "ready":
        this.post();
        break;
      case "reveal":
        if (message.path) await this.source.reveal(vscode.Uri.file(message.path), message.lines, message.focus);
        break;
      case "copy":
        if (this.last) await vscode.env.clipboard.writeText(reportMarkdown(this.last.title, this.last.reply));
        break;
      case "export":
        await this.export();
        break;
      case "diff":
        if (this.last) await this.compare(this.last.reply);
        break;
      case "dropIn":
        if (this.last) await this.dropIn(this.last.reply);
        break;
    }
  }
}
