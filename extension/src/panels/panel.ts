// One webview panel: its page under a strict content policy, typed messages, and its life. No feature is in here.
import { randomBytes } from "node:crypto";
import * as vscode from "vscode";
import type { PanelName, ToHost, ToView } from "../webviews/messages";

export class Panel<K extends PanelName> implements vscode.Disposable {
  private panel: vscode.WebviewPanel | undefined;

  constructor(
    private readonly name: K,
    private readonly extensionUri: vscode.Uri,
    private readonly receive: (message: ToHost[K]) => void | Promise<void>,
  ) {}

  get isOpen(): boolean {
    return this.panel !== undefined;
  }

  get column(): vscode.ViewColumn | undefined {
    return this.panel?.viewColumn;
  }

  /** Opens the panel beside the editor, or brings it to the front; the page answers with `ready`. */
  show(title: string): void {
    if (this.panel) {
      this.panel.title = title;
      this.panel.reveal(undefined, true);
      return;
    }
    const pages = vscode.Uri.joinPath(this.extensionUri, "dist", "webviews");
    const place = { viewColumn: vscode.ViewColumn.Beside, preserveFocus: true };
    this.panel = vscode.window.createWebviewPanel(`cubridge.${this.name}`, title, place, {
      enableScripts: true,
      localResourceRoots: [pages],
    });
    this.panel.onDidDispose(() => { this.panel = undefined; });
    this.panel.webview.onDidReceiveMessage((message: ToHost[K]) => void this.receive(message));
    this.panel.webview.html = page(this.panel.webview, pages, this.name, title);
  }

  set title(title: string) {
    if (this.panel) this.panel.title = title;
  }

  post(message: ToView[K]): void {
    void this.panel?.webview.postMessage(message);
  }

  dispose(): void {
    this.panel?.dispose();
  }
}

function page(webview: vscode.Webview, pages: vscode.Uri, name: PanelName, title: string): string {
  const nonce = randomBytes(18).toString("base64");
  const file = (suffix: string): string => webview.asWebviewUri(vscode.Uri.joinPath(pages, suffix)).toString();
  return `<!DOCTYPE html>
<html lang="en">
<head>
<meta charset="utf-8">
<meta http-equiv="Content-Security-Policy" content="default-src 'none'; style-src ${webview.cspSource}; script-src 'nonce-${nonce}'">
<meta name="viewport" content="width=device-width, initial-scale=1">
<link rel="stylesheet" href="${file("style.css")}">
<title>${title.replace(/[&<]/g, "")}</title>
</head>
<body class="panel-${name}">
<p id="status" role="status" aria-live="polite" hidden></p>
<main id="root"></main>
<script nonce="${nonce}" src="${file(`${name}.js`)}"></script>
</body>
</html>`;
}
