// Which kernel and which spec a command is about: from its argument, the active editor, or the user.
import * as vscode from "vscode";
import type { ServerManager } from "./client";
import { isKernelArgument, isSpecArgument, type SpecFile } from "./protocol";

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

/** The same, and for the lens over a spec one of the kernels of the workspace. */
export async function chooseKernel(args: unknown[]): Promise<vscode.Uri | undefined> {
  const [first] = args;
  const fromSpec = isSpecArgument(first) && !isKernelArgument(first);
  return fromSpec ? kernelOfWorkspace(vscode.Uri.parse(first.spec)) : pickKernel(args);
}

async function kernelOfWorkspace(spec: vscode.Uri): Promise<vscode.Uri | undefined> {
  return kernelFiles(`Adapt a Kernel to ${nameOf(spec)}`, "Adapt");
}

/** The user's choice among the CUDA files of the workspace, without the one at `but`, or of any other file. */
export async function kernelFiles(title: string, verb: string, but?: vscode.Uri): Promise<vscode.Uri | undefined> {
  const found = await vscode.workspace.findFiles("**/*.{cu,cuh}", "**/{node_modules,.venv,venv,build,dist}/**", 500);
  const items = found
    .filter((uri) => uri.toString() !== but?.toString())
    .map((uri) => ({ label: nameOf(uri), description: vscode.workspace.asRelativePath(vscode.Uri.joinPath(uri, "..")), uri }));
  const browse = { label: "$(folder-opened) Choose a file…", uri: undefined };
  const choice = await vscode.window.showQuickPick<{ label: string; uri: vscode.Uri | undefined }>([...items, browse], {
    title,
    placeHolder: items.length > 0 ? "The CUDA kernel" : "No kernel found in the workspace; CuBridge: Start from an Expert Kernel copies one",
    matchOnDescription: true,
  });
  if (choice !== browse) return choice?.uri;
  const picked = await vscode.window.showOpenDialog({ filters: { CUDA: ["cu", "cuh"] }, openLabel: verb });
  return picked?.[0];
}

/** Options that came with the argument: which kernel of a file is meant. */
export function optionsOf(args: unknown[]): { options?: Record<string, unknown> } {
  const [first] = args;
  return isKernelArgument(first) && first.options ? { options: first.options } : {};
}

/** The spec named in the argument, or the user's choice among those of the workspace. */
export async function pickSpec(server: ServerManager, kernel: vscode.Uri, args: unknown[], verb: string): Promise<vscode.Uri | undefined> {
  const [first] = args;
  if (isSpecArgument(first)) return vscode.Uri.parse(first.spec);
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
