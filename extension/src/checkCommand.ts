// Check: run the kernel in the simulator to find what reading cannot; what it finds are diagnostics.
import * as vscode from "vscode";
import type { ServerManager } from "./client";
import { nameOf, optionsOf, pickKernel } from "./picks";
import type { CheckReply } from "./kernelReplies";
import { requireTrust } from "./trust";

export class CheckCommand {
  constructor(private readonly server: ServerManager) {}

  async run(args: unknown[]): Promise<void> {
    if (!(await requireTrust("run a kernel in the simulator"))) return;
    const kernel = pickKernel(args);
    if (!kernel) return;
    const document = await vscode.workspace.openTextDocument(kernel);
    const reply = await this.server.job<CheckReply>("cubridge.check", `Checking ${nameOf(kernel)}`, {
      kernel: kernel.toString(),
      version: document.version,
      watch: true,
      ...optionsOf(args),
    });
    if (reply && reply.state !== "cancelled") await tell(reply);
  }
}

async function tell(reply: CheckReply): Promise<void> {
  if (reply.state === "failed") {
    const logs = await vscode.window.showErrorMessage(`CuBridge ${reply.message || "gave no result."}`, "Show Logs");
    if (logs) await vscode.commands.executeCommand("cubridge.showLogs");
    return;
  }
  const found = reply.result?.findings?.length ?? 0;
  const answer =
    reply.state !== "done"
      ? await vscode.window.showErrorMessage(`CuBridge ${reply.message || "gave no result."}`, "Problems")
      : found > 0
        ? await vscode.window.showWarningMessage(`CuBridge: ${reply.sentence}.`, "Problems")
        : await vscode.window.showInformationMessage(`CuBridge: ${reply.sentence}.`);
  if (answer) await vscode.commands.executeCommand("workbench.actions.view.problems");
}
