// Verify: run the job; what it finds are diagnostics in both files, and a report.
import * as vscode from "vscode";
import type { ServerManager } from "./client";
import { chooseKernel, nameOf, optionsOf, pickSpec } from "./picks";
import type { JobReply } from "./protocol";
import type { Reports } from "./panels/reportPanel";
import { requireTrust } from "./trust";

export class VerifyCommand {
  constructor(
    private readonly server: ServerManager,
    private readonly reports: Reports,
  ) {}

  async run(args: unknown[]): Promise<void> {
    if (!(await requireTrust("verify a kernel"))) return;
    const kernel = await chooseKernel(args);
    const spec = kernel && (await pickSpec(this.server, kernel, args, "Verify"));
    if (!kernel || !spec) return;
    const document = await vscode.workspace.openTextDocument(kernel);
    const title = `Verifying ${nameOf(kernel)} against ${nameOf(spec)}`;
    const reply = await this.server.job<JobReply>("cubridge.verify", title, {
      kernel: kernel.toString(),
      spec: spec.toString(),
      version: document.version,
      ...optionsOf(args),
    });
    if (!reply || reply.state === "cancelled") return;
    if (reply.state === "failed") {
      const logs = await vscode.window.showErrorMessage(`CuBridge ${reply.message || "gave no result."}`, "Show Logs");
      if (logs) await vscode.commands.executeCommand("cubridge.showLogs");
      return;
    }
    this.reports.keep(`Verification of ${nameOf(kernel)} against ${nameOf(spec)}`, reply);
    const done = reply.state === "done" && reply.result;
    const answer = done
      ? await vscode.window.showInformationMessage(
          `CuBridge: ${nameOf(kernel)} equals ${nameOf(spec)}, level ${done.level}.`,
          "Show Report",
        )
      : await vscode.window.showErrorMessage(`CuBridge ${reply.message || "gave no result."}`, "Show Report");
    if (answer === "Show Report") this.reports.show();
  }
}
