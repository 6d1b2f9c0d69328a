// The last report, as a Markdown preview of a virtual document.
import * as vscode from "vscode";
import type { JobReply } from "./protocol";
import { reportMarkdown } from "./reportText";

const SCHEME = "cubridge-report";
const REPORT = vscode.Uri.from({ scheme: SCHEME, path: "/CuBridge report.md" });

export class Reports implements vscode.TextDocumentContentProvider, vscode.Disposable {
  private text = "# No report yet\n\nAdapt or verify a kernel first.\n";
  private readonly changed = new vscode.EventEmitter<vscode.Uri>();
  private readonly registration = vscode.workspace.registerTextDocumentContentProvider(SCHEME, this);
  readonly onDidChange = this.changed.event;

  provideTextDocumentContent(): string {
    return this.text;
  }

  keep(title: string, reply: JobReply): void {
    this.text = reportMarkdown(title, reply);
    this.changed.fire(REPORT);
  }

  async show(): Promise<void> {
    await vscode.commands.executeCommand("markdown.showPreviewToSide", REPORT);
  }

  dispose(): void {
    this.registration.dispose();
    this.changed.dispose();
  }
}
