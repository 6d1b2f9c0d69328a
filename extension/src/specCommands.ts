// Commands on a spec: what it means, and starting from one of the kernels that come with CuBridge.
import * as vscode from "vscode";
import type { AdaptCommand } from "./adaptCommand";
import type { ServerManager } from "./client";
import { nameOf } from "./picks";
import { type ExpertReply, type ExpertRow, isSpecArgument, type SpecReply } from "./protocol";
import { requireTrust } from "./trust";

export class SpecCommands {
  constructor(
    private readonly server: ServerManager,
    private readonly adapt: AdaptCommand,
  ) {}

  /** Runs the spec to say what it means; the lens over it shows the answer. */
  async read(args: unknown[]): Promise<void> {
    if (!(await requireTrust("read a spec"))) return;
    const spec = specOf(args);
    if (!spec) {
      void vscode.window.showInformationMessage("CuBridge: open the spec (a Python file) first.");
      return;
    }
    const reply = await this.server.job<SpecReply>("cubridge.readSpec", `Reading ${nameOf(spec)}`, { spec: spec.toString() });
    if (!reply || reply.state === "cancelled") return;
    if (reply.means) {
      vscode.window.setStatusBarMessage(`CuBridge: ${nameOf(spec)} means ${reply.means}`, 10_000);
      return;
    }
    const answer = await vscode.window.showErrorMessage(`CuBridge ${reply.message || "could not read the spec."}`, "Problems");
    if (answer) await vscode.commands.executeCommand("workbench.actions.view.problems");
  }

  /** Offers the bundled kernels, copies the chosen one to a folder of the user's, opens it, offers to adapt it. */
  async start(args: unknown[]): Promise<void> {
    if (!(await requireTrust("start from an expert kernel"))) return;
    const spec = specOf(args);
    const rows = await this.server.execute<ExpertRow[]>("cubridge.experts", spec ? { spec: spec.toString() } : {});
    const choice = await vscode.window.showQuickPick(rows.map(itemOf), {
      title: "Start from an Expert Kernel",
      placeHolder: spec ? `Kernels for ${nameOf(spec)}, those that fit its shapes first` : "The kernel to copy into your folder",
      matchOnDescription: true,
      matchOnDetail: true,
    });
    const folder = choice && (await folderFor(spec));
    if (!folder) return;
    const reply = await this.server.execute<ExpertReply>("cubridge.copyExpert", { name: choice.name, folder: folder.toString() });
    if (reply.state !== "done") {
      void vscode.window.showErrorMessage(`CuBridge ${reply.message}`);
      return;
    }
    const kernel = vscode.Uri.parse(reply.kernel);
    await vscode.window.showTextDocument(await vscode.workspace.openTextDocument(kernel));
    const where = vscode.workspace.asRelativePath(kernel);
    const answer = await vscode.window.showInformationMessage(`CuBridge: ${where} is yours to change; its contract is beside it.`, "Adapt to Spec…");
    if (answer) await this.adapt.run([{ kernel: reply.kernel, ...(spec && !choice.unfit ? { spec: spec.toString() } : {}) }]);
  }
}

function specOf(args: unknown[]): vscode.Uri | undefined {
  const [first] = args;
  if (isSpecArgument(first)) return vscode.Uri.parse(first.spec);
  const uri = first instanceof vscode.Uri ? first : vscode.window.activeTextEditor?.document.uri;
  return uri?.scheme === "file" && uri.path.endsWith(".py") ? uri : undefined;
}

function itemOf(row: ExpertRow): vscode.QuickPickItem & { name: string; unfit: string } {
  const facts = [row.dtypes.join(", "), `D = ${row.head_dims.join(", ")}`, `tiles ${row.tiles.join("×")}`, row.gqa ? "GQA" : ""];
  return {
    label: row.unfit ? `$(circle-slash) ${row.name}` : `$(file-code) ${row.name}`,
    description: row.unfit || facts.filter(Boolean).join(" · "),
    detail: row.summary,
    name: row.name,
    unfit: row.unfit,
  };
}

async function folderFor(spec: vscode.Uri | undefined): Promise<vscode.Uri | undefined> {
  if (spec) return vscode.Uri.joinPath(spec, "..");
  const [first] = vscode.workspace.workspaceFolders ?? [];
  if (first) return first.uri;
  const picked = await vscode.window.showOpenDialog({ canSelectFolders: true, canSelectFiles: false, openLabel: "Copy Here" });
  return picked?.[0];
}
