// One language status item on CUDA files: starting, ready, or what is wrong and the click that helps.
import * as vscode from "vscode";

export const KERNELS: { scheme: string; pattern: string }[] = [
  { scheme: "file", pattern: "**/*.cu" },
  { scheme: "file", pattern: "**/*.cuh" },
];

export class StatusItem implements vscode.Disposable {
  private readonly item = vscode.languages.createLanguageStatusItem("cubridge.status", KERNELS);

  constructor() {
    this.item.name = "CuBridge";
    this.starting();
  }

  starting(): void {
    this.show("CuBridge", "starting", vscode.LanguageStatusSeverity.Information, true);
  }

  ready(detail: string): void {
    this.show("CuBridge", detail, vscode.LanguageStatusSeverity.Information, false);
  }

  failed(reason: string): void {
    this.show("CuBridge: not running", reason, vscode.LanguageStatusSeverity.Error, false);
  }

  dispose(): void {
    this.item.dispose();
  }

  private show(text: string, detail: string, severity: vscode.LanguageStatusSeverity, busy: boolean): void {
    this.item.text = text;
    this.item.detail = detail;
    this.item.severity = severity;
    this.item.busy = busy;
    this.item.command =
      severity === vscode.LanguageStatusSeverity.Error
        ? { command: "cubridge.doctor", title: "Check environment" }
        : { command: "cubridge.showLogs", title: "Show logs" };
  }
}
