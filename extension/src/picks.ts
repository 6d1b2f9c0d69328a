// Which kernel and which spec a command is about: from its argument, the active editor, or the user.
import * as vscode from "vscode";
import type { ServerManager } from "./client";
import { isKernelArgument, type SpecFile } from "./protocol";

export const nameOf = (uri: vscode.Uri): string => uri.path.slice(uri.path.lastIndexOf("/") + 1);

/** From a lens or code action (argument object), the explorer (a URI), or the active editor. */
export function pickKernel(args: unknown[]): vscode.Uri | undefined {
  const [first] = args;
  if (isKernelArgument(first)) return vscode.Uri.parse(first.kernel);
  const uri = first instanceof vscode.Uri ? first : vscode.window.activeTextEditor?.document.uri;
  if (uri && /\.cuh?$/i.test(uri.path)) return uri;
  void vscode.window.showInformationMessage("CuBridge: open the kernel (.cu or .cuh) first.");
  return undefined;
}

/** Saves both files, which jobs read from disk. False when the editor could not. */
export async function save(kernel: vscode.TextDocument, spec: vscode.Uri): Promise<boolean> {
  const open = vscode.workspace.textDocuments.find((document) => document.uri.toString() === spec.toString());
  for (const document of [kernel, ...(open ? [open] : [])]) {
    if (document.isDirty && !(await document.save())) {
      void vscode.window.showErrorMessage(`CuBridge: ${nameOf(document.uri)} could not be saved, and jobs read it from disk.`);
      return false;
    }
  }
  return true;
}

/** The spec named in the argument, or the user's choice among those of the workspace. */
export async function pickSpec(server: ServerManager, kernel: vscode.Uri, args: unknown[], verb: string): Promise<vscode.Uri | undefined> {
  const [first] = args;
  if (isKernelArgument(first) && first.spec) return vscode.Uri.parse(first.spec);
  const specs = await server.execute<SpecFile[]>("cubridge.specs", { kernel: kernel.toString() });
  const browse = { label: "$(folder-opened) Choose a file…", uri: undefined };
  const items = specs.map((spec) => {
    const uri = vscode.Uri.parse(spec.uri);
    return { label: spec.name, description: vscode.workspace.asRelativePath(vscode.Uri.joinPath(uri, "..")), uri };
  });
  const choice = await vscode.window.showQuickPick<{ label: string; uri: vscode.Uri | undefined }>([...items, browse], {
    title: `${verb} ${nameOf(kernel)}`,
    placeHolder: items.length > 0 ? "The PyTorch spec" : "No spec found in the workspace: a Python file with def attention(q, k, v)",
    matchOnDescription: true,
  });
  if (choice !== browse) return choice?.uri;
  const picked = await vscode.window.showOpenDialog({ filters: { Python: ["py"] }, openLabel: "Use as Spec" });
  return picked?.[0];
}
