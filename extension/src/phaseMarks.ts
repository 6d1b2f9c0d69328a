// Marks lines by phase of attention: a bar at the left edge and a mark in the overview ruler. Toggled by command.
import * as vscode from "vscode";
import type { ServerManager } from "./client";
import { isKernel } from "./panels/source";
import type { PhasesReply } from "./protocol";

const SETTING = "phaseMarks";
const SETTLE_MS = 400;
/** The phases of the server, each with a colour of package.json's contributes.colors. */
const PHASES = ["setup", "load", "sync", "scores", "mask", "softmax", "output", "store"] as const;

export class PhaseMarks implements vscode.Disposable {
  private readonly marks = new Map(PHASES.map((phase) => [phase as string, markOf(phase)]));
  private readonly listeners: vscode.Disposable[];
  private timer: NodeJS.Timeout | undefined;

  constructor(private readonly server: ServerManager) {
    this.listeners = [
      vscode.window.onDidChangeVisibleTextEditors(() => { this.later(0); }),
      vscode.workspace.onDidChangeTextDocument((event) => {
        if (isKernel(event.document.uri) && event.contentChanges.length > 0) this.later(SETTLE_MS);
      }),
      vscode.workspace.onDidChangeConfiguration((event) => {
        if (event.affectsConfiguration(`cubridge.${SETTING}`)) this.later(0);
      }),
      server.onReady(() => { this.later(0); }),
    ];
  }

  /** The command: turns the marks on or off for this user. */
  async toggle(): Promise<void> {
    const configuration = vscode.workspace.getConfiguration("cubridge");
    await configuration.update(SETTING, !configuration.get<boolean>(SETTING), vscode.ConfigurationTarget.Global);
  }

  dispose(): void {
    clearTimeout(this.timer);
    for (const item of [...this.listeners, ...this.marks.values()]) item.dispose();
  }

  private later(ms: number): void {
    clearTimeout(this.timer);
    this.timer = setTimeout(() => { void this.refresh(); }, ms);
  }

  private async refresh(): Promise<void> {
    const editors = vscode.window.visibleTextEditors.filter((editor) => isKernel(editor.document.uri));
    await Promise.all(editors.map((editor) => this.paint(editor)));
  }

  private async paint(editor: vscode.TextEditor): Promise<void> {
    const { document } = editor;
    const wanted = vscode.workspace.getConfiguration("cubridge", document.uri).get<boolean>(SETTING);
    const reply = wanted ? await this.ask(document.uri) : null;
    // Lines of another version would be wrong ones; the change that made it asks again.
    if (reply && reply.version !== document.version) return;
    for (const [phase, mark] of this.marks) {
      const found = (reply?.marks ?? []).filter((item) => item.phase === phase);
      const name = reply?.legend[phase] ?? phase;
      const said = (title: string): string => (title === name ? name : `${name}: ${title}`);
      editor.setDecorations(mark, found.map((item) => ({ range: new vscode.Range(item.first, 0, item.last, 0), hoverMessage: said(item.title) })));
    }
  }

  private async ask(uri: vscode.Uri): Promise<PhasesReply | null> {
    try {
      return await this.server.execute<PhasesReply>("cubridge.phases", { kernel: uri.toString() });
    } catch {
      return null; // the server is not running: it says so itself, and there is nothing to mark
    }
  }
}

function markOf(phase: string): vscode.TextEditorDecorationType {
  const color = new vscode.ThemeColor(`cubridge.phase.${phase}`);
  return vscode.window.createTextEditorDecorationType({
    isWholeLine: true,
    borderStyle: "solid",
    borderWidth: "0 0 0 3px",
    borderColor: color,
    overviewRulerColor: color,
    overviewRulerLane: vscode.OverviewRulerLane.Left,
  });
}
