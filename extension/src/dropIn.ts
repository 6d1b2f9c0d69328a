// The drop-in of an adaptation: the Python file around the kernel. Shown beside the diff, written with the kernel, and
// never over another text without asking.
import * as vscode from "vscode";
import { type Adaptation, dropInUri } from "./adaptations";
import { dropInName, renamed } from "./dropInName";
import { nameOf } from "./picks";

/** Where the drop-in goes; `rename` puts the name that it got into the adapted text, whose header tells where it is. */
export interface Target {
  uri: vscode.Uri;
  rename: (text: string) => string;
}

export async function showDropIn(adaptation: Adaptation | undefined): Promise<void> {
  const uri = adaptation && dropInUri(adaptation);
  if (!uri) {
    void vscode.window.showInformationMessage("CuBridge: there is no drop-in to open: the kernel alone does what the spec does, or it was accepted or discarded.");
    return;
  }
  const document = await vscode.workspace.openTextDocument(uri);
  await vscode.window.showTextDocument(document, { viewColumn: vscode.ViewColumn.Beside, preview: true });
}

/** Where to write the drop-in of a kernel that is written to `kernel`: null when there is none, undefined when the user gave up. */
export async function dropInTarget(adaptation: Adaptation, kernel: vscode.Uri): Promise<Target | null | undefined> {
  const { dropIn } = adaptation;
  if (!dropIn) return null;
  const inPlace = kernel.toString() === adaptation.kernel.toString();
  const uri = vscode.Uri.joinPath(kernel, "..", inPlace ? dropIn.name : dropInName(nameOf(kernel)));
  const chosen = (await isOther(uri, dropIn.text)) ? await another(uri) : uri;
  return chosen && { uri: chosen, rename: (text) => renamed(text, dropIn.name, nameOf(chosen)) };
}

export async function writeDropIn(adaptation: Adaptation, target: Target | null): Promise<void> {
  if (target && adaptation.dropIn) await vscode.workspace.fs.writeFile(target.uri, new TextEncoder().encode(adaptation.dropIn.text));
}

/** True when a file with another text is there. */
async function isOther(uri: vscode.Uri, text: string): Promise<boolean> {
  try {
    return new TextDecoder().decode(await vscode.workspace.fs.readFile(uri)) !== text;
  } catch {
    return false;
  }
}

async function another(uri: vscode.Uri): Promise<vscode.Uri | undefined> {
  const answer = await vscode.window.showWarningMessage(
    `Replace ${nameOf(uri)}?`,
    { modal: true, detail: "The kernel comes with a drop-in, and a file of that name with another text is there already." },
    "Replace",
    "Save Drop-in As…",
  );
  if (answer === "Replace") return uri;
  return answer ? vscode.window.showSaveDialog({ defaultUri: uri, filters: { Python: ["py"] }, title: "Save Drop-in" }) : undefined;
}
