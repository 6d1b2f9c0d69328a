// The kernel's editor as the panels see it: which kernel is looked at, and showing lines of it.
import * as vscode from "vscode";
import type { Lines } from "../webviews/messages";

export const isKernel = (uri: vscode.Uri): boolean => uri.scheme === "file" && /\.cuh?$/i.test(uri.path);

/** Marks lines of the source that a panel speaks of, and scrolls them into view. */
export class Source implements vscode.Disposable {
  private readonly mark = vscode.window.createTextEditorDecorationType({
    backgroundColor: new vscode.ThemeColor("editor.rangeHighlightBackground"),
    isWholeLine: true,
    overviewRulerColor: new vscode.ThemeColor("editorOverviewRuler.rangeHighlightForeground"),
    overviewRulerLane: vscode.OverviewRulerLane.Full,
  });

  /** Shows `lines` of `uri`; with `focus` the cursor moves there, else the panel keeps the focus. */
  async reveal(uri: vscode.Uri, lines: Lines, focus: boolean): Promise<void> {
    const open = vscode.window.visibleTextEditors.find((editor) => editor.document.uri.toString() === uri.toString());
    const options = { viewColumn: open?.viewColumn ?? vscode.ViewColumn.One, preserveFocus: !focus };
    // A visible editor is left as it is, unless it shall have the focus: showing it again would flicker.
    const editor = open && !focus ? open : await vscode.window.showTextDocument(await vscode.workspace.openTextDocument(uri), options);
    const last = Math.min(lines[1], editor.document.lineCount - 1);
    const range = new vscode.Range(Math.min(lines[0], last), 0, last, editor.document.lineAt(last).text.length);
    if (focus) editor.selection = new vscode.Selection(range.start, range.start);
    editor.setDecorations(this.mark, [range]);
    editor.revealRange(range, vscode.TextEditorRevealType.InCenterIfOutsideViewport);
  }

  /** Takes the mark away. */
  clear(): void {
    for (const editor of vscode.window.visibleTextEditors) editor.setDecorations(this.mark, []);
  }

  dispose(): void {
    this.mark.dispose();
  }
}

const SETTLE_MS = 150;

/** Follows the kernel in the active editor: calls back when another one is looked at, when it changes, when the cursor
 *  moves. */
export class Follower implements vscode.Disposable {
  private uri: vscode.Uri | undefined;
  private timer: NodeJS.Timeout | undefined;
  private readonly listeners: vscode.Disposable[];

  constructor(private readonly told: { active: () => boolean; pending: () => void; refresh: () => void; cursor: (line: number) => void }) {
    this.listeners = [
      vscode.window.onDidChangeActiveTextEditor((editor) => {
        if (!editor || !isKernel(editor.document.uri) || editor.document.uri.toString() === this.uri?.toString()) return;
        if (!this.told.active()) return;
        this.uri = editor.document.uri;
        this.told.refresh();
      }),
      vscode.workspace.onDidChangeTextDocument((event) => {
        if (event.document.uri.toString() !== this.uri?.toString() || event.contentChanges.length === 0) return;
        if (!this.told.active()) return;
        this.told.pending();
        clearTimeout(this.timer);
        this.timer = setTimeout(() => { this.told.refresh(); }, SETTLE_MS);
      }),
      vscode.window.onDidChangeTextEditorSelection((event) => {
        // A selection that nobody made by hand is our own `reveal`, or another feature's.
        if (event.kind === undefined || event.textEditor.document.uri.toString() !== this.uri?.toString()) return;
        if (this.told.active()) this.told.cursor(event.selections[0]?.active.line ?? 0);
      }),
    ];
  }

  get kernel(): vscode.Uri | undefined {
    return this.uri;
  }

  set kernel(uri: vscode.Uri | undefined) {
    this.uri = uri;
  }

  /** Line of the cursor in the kernel's editor. */
  get line(): number | undefined {
    const open = vscode.window.visibleTextEditors.find((editor) => editor.document.uri.toString() === this.uri?.toString());
    return open?.selection.active.line;
  }

  dispose(): void {
    clearTimeout(this.timer);
    for (const listener of this.listeners) listener.dispose();
  }
}
