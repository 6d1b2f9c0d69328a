// Adapt: run the job, show the result as a diff, apply it on Accept. A stale result is refused, never merged.
import * as vscode from "vscode";
import { type Adaptation, type Adaptations, otherUri, SCHEME } from "./adaptations";
import type { ServerManager } from "./client";
import { dropInTarget, showDropIn, writeDropIn } from "./dropIn";
import { firstHunk } from "./hunks";
import { proposedBy } from "./modelHost";
import { chooseKernel, nameOf, optionsOf, pickSpec } from "./picks";
import type { AdaptReply } from "./protocol";
import type { Reports } from "./panels/reportPanel";
import { requireTrust } from "./trust";

export interface How {
  command: "cubridge.adapt" | "cubridge.askModel";
  consent?: string;
}

export class AdaptCommand {
  constructor(
    private readonly server: ServerManager,
    private readonly adaptations: Adaptations,
    private readonly reports: Reports,
  ) {}

  /** `how`: the server's command; with a model, the host that the user agreed to send to. */
  async run(args: unknown[], how: How = { command: "cubridge.adapt" }): Promise<void> {
    if (!(await requireTrust("adapt a kernel"))) return;
    const kernel = await chooseKernel(args);
    const spec = kernel && (await pickSpec(this.server, kernel, args, "Adapt"));
    if (!kernel || !spec) return;
    const document = await vscode.workspace.openTextDocument(kernel);
    const base = document.getText();
    const title = `Adapting ${nameOf(kernel)} to ${nameOf(spec)}`;
    const reply = await this.server.job<AdaptReply>(how.command, title, {
      kernel: kernel.toString(),
      spec: spec.toString(),
      version: document.version,
      ...optionsOf(args),
      ...(how.consent ? { consent: how.consent } : {}),
    });
    if (!reply || reply.state === "cancelled") return;
    if (reply.state !== "failed") this.reports.keep(`Adaptation of ${nameOf(kernel)} to ${nameOf(spec)}`, reply);
    const adapted = reply.state === "done" ? this.adaptations.add(base, reply) : null;
    if (adapted) await this.show(kernel, spec, adapted, reply);
    else await this.refuse(reply, kernel, spec);
  }

  /** Accept: the edits of the adaptation on the very texts it was made from, in all its files or in none. */
  async accept(uri: vscode.Uri | undefined): Promise<void> {
    const shown = uri?.scheme === SCHEME ? uri : activeAdapted();
    const adaptation = shown && this.adaptations.get(shown);
    if (!shown || !adaptation) {
      void vscode.window.showInformationMessage("CuBridge: there is no adaptation to accept in this editor.");
      return;
    }
    const document = await vscode.workspace.openTextDocument(adaptation.kernel);
    const changed = document.getText() !== adaptation.base ? document.uri : await changedOther(adaptation);
    if (changed) {
      await this.stale(adaptation.kernel, adaptation.spec, nameOf(changed));
      return;
    }
    if (adaptation.result.applicability === "sketch" && !(await confirmSketch(adaptation.result.level))) return;
    const target = await dropInTarget(adaptation, adaptation.kernel);
    if (target === undefined) return;
    const edit = new vscode.WorkspaceEdit();
    const edits = target ? adaptation.edits.map((one) => ({ ...one, newText: target.rename(one.newText) })) : adaptation.edits;
    edit.set(document.uri, this.server.toEdits(edits));
    for (const file of adaptation.others) edit.set(vscode.Uri.parse(file.uri), this.server.toEdits(file.edits));
    if (!(await vscode.workspace.applyEdit(edit))) {
      void vscode.window.showErrorMessage(`CuBridge: the editor refused the change of ${nameOf(document.uri)}.`);
      return;
    }
    await writeDropIn(adaptation, target);
    await this.close(shown);
    await vscode.window.showTextDocument(document);
    if (target) await tellDropIn(`CuBridge: ${nameOf(target.uri)} was written beside the kernel.`, target.uri);
  }

  /** The Python file around the kernel of an adaptation. */
  async openDropIn(uri: vscode.Uri | undefined): Promise<void> {
    const shown = uri?.scheme === SCHEME ? uri : activeAdapted();
    await showDropIn(shown && this.adaptations.get(shown));
  }

  /** Discard: nothing changes. */
  async discard(uri: vscode.Uri | undefined): Promise<void> {
    const shown = uri?.scheme === SCHEME ? uri : activeAdapted();
    if (shown) await this.close(shown);
  }

  /** Save as: the whole adapted kernel in a file of its own. The kernel and the diff stay as they are. */
  async saveAs(uri: vscode.Uri | undefined): Promise<void> {
    const shown = uri?.scheme === SCHEME ? uri : activeAdapted();
    const adaptation = shown && this.adaptations.get(shown);
    if (!adaptation) {
      void vscode.window.showInformationMessage("CuBridge: there is no adaptation to save in this editor.");
      return;
    }
    if (adaptation.others.length) {
      await saveInFolder(adaptation);
      return;
    }
    const extension = nameOf(adaptation.kernel).replace(/^.*\./, "");
    const stem = nameOf(adaptation.kernel).replace(/\.[^.]*$/, "");
    const proposed = `${stem}_${nameOf(adaptation.spec).replace(/\.py$/, "")}.${extension}`;
    const target = await vscode.window.showSaveDialog({
      defaultUri: vscode.Uri.joinPath(adaptation.kernel, "..", proposed),
      filters: { CUDA: ["cu", "cuh"] },
      title: "Save Adapted Kernel",
    });
    if (!target) return;
    const dropIn = await dropInTarget(adaptation, target);
    if (dropIn === undefined) return;
    const text = dropIn ? dropIn.rename(adaptation.text) : adaptation.text;
    await vscode.workspace.fs.writeFile(target, new TextEncoder().encode(text));
    await writeDropIn(adaptation, dropIn);
    const saved = dropIn ? `${nameOf(target)} and ${nameOf(dropIn.uri)} are saved` : `${nameOf(target)} is saved`;
    await tellDropIn(`CuBridge: ${saved}; ${nameOf(adaptation.kernel)} is unchanged.`, dropIn?.uri);
  }

  /** Gives kernel and spec of the adaptation in `uri`, or in the active diff, to `show`. */
  async compare(uri: vscode.Uri | undefined, show: (kernel: vscode.Uri, spec: vscode.Uri) => Promise<void>): Promise<void> {
    const shown = uri?.scheme === SCHEME ? uri : activeAdapted();
    const adaptation = shown && this.adaptations.get(shown);
    if (adaptation) await show(adaptation.kernel, adaptation.spec);
    else void vscode.window.showInformationMessage("CuBridge: there is no adaptation in this editor.");
  }

  private async show(kernel: vscode.Uri, spec: vscode.Uri, adapted: vscode.Uri, reply: AdaptReply): Promise<void> {
    const level = reply.result ? `level ${reply.result.level}` : "";
    const title = `${nameOf(kernel)} ↔ adapted to ${nameOf(spec)} (${level}${proposedBy(reply.result?.proposed?.model)})`;
    const at = new vscode.Position(firstHunk(reply.edits ?? []), 0);
    const options: vscode.TextDocumentShowOptions = { preview: false, selection: new vscode.Range(at, at) };
    const adaptation = this.adaptations.get(adapted);
    for (const file of adaptation?.others ?? []) {
      const beside = `${file.name} ↔ adapted to ${nameOf(spec)} (with ${nameOf(kernel)})`;
      const [now, then] = [vscode.Uri.parse(file.uri), otherUri(file, adapted.query)];
      await vscode.commands.executeCommand("vscode.diff", now, then, beside, { preview: false, preserveFocus: true });
    }
    await vscode.commands.executeCommand("vscode.diff", kernel, adapted, title, options);
    if (!adaptation?.dropIn) return;
    const said = `CuBridge: this kernel is not all: what ${nameOf(spec)} does around it is in ${adaptation.dropIn.name}, which is saved with it.`;
    void vscode.window.showInformationMessage(said, "Open the Drop-in").then((answer) => {
      if (answer) void showDropIn(adaptation);
    });
  }

  private async refuse(reply: AdaptReply, kernel: vscode.Uri, spec: vscode.Uri): Promise<void> {
    if (reply.state === "stale") {
      await this.stale(kernel, spec);
      return;
    }
    // A worker that died leaves neither a report nor a problem in a file: what there is to read is the log.
    const ways = reply.state === "failed" ? ["Show Logs"] : ["Show Report", "Problems"];
    const answer = await vscode.window.showErrorMessage(`CuBridge ${reply.message || "gave no result."}`, ...ways);
    if (answer === "Show Report") this.reports.show();
    else if (answer === "Show Logs") await vscode.commands.executeCommand("cubridge.showLogs");
    else if (answer === "Problems") await vscode.commands.executeCommand("workbench.actions.view.problems");
  }

  private async stale(kernel: vscode.Uri, spec: vscode.Uri, changed = nameOf(kernel)): Promise<void> {
    const again = "Adapt Again";
    const answer = await vscode.window.showWarningMessage(
      `CuBridge: ${changed} changed since it was adapted, so this adaptation is refused.`,
      again,
    );
    if (answer === again) await this.run([{ kernel: kernel.toString(), spec: spec.toString() }]);
  }

  private async close(adapted: vscode.Uri): Promise<void> {
    const shown = new Set(this.adaptations.remove(adapted).map((uri) => uri.toString()));
    const tabs = vscode.window.tabGroups.all.flatMap((group) => group.tabs);
    await vscode.window.tabGroups.close(
      tabs.filter((tab) => tab.input instanceof vscode.TabInputTextDiff && shown.has(tab.input.modified.toString())),
    );
  }
}

/** The first of the other files that no longer has the text that was adapted. */
async function changedOther({ others }: Adaptation): Promise<vscode.Uri | undefined> {
  for (const file of others) {
    const uri = vscode.Uri.parse(file.uri);
    if ((await vscode.workspace.openTextDocument(uri)).getText() !== file.base) return uri;
  }
  return undefined;
}

/** All files of an adaptation below a folder, by their names from the nearest folder that holds them; none over another. */
async function saveInFolder(adaptation: Adaptation): Promise<void> {
  const [folder] = (await vscode.window.showOpenDialog({
    canSelectFolders: true,
    canSelectFiles: false,
    openLabel: "Save Here",
    title: "Save Adapted Kernel and Headers In",
  })) ?? [undefined];
  if (!folder) return;
  const dropIn = await dropInTarget(adaptation, vscode.Uri.joinPath(folder, nameOf(adaptation.kernel)));
  if (dropIn === undefined) return;
  const ups = adaptation.others.map((file) => file.name.split("/").filter((part) => part === "..").length);
  const root = vscode.Uri.joinPath(adaptation.kernel, "..", ...Array<string>(Math.max(...ups)).fill("..")).path;
  const own = dropIn ? dropIn.rename(adaptation.text) : adaptation.text;
  const texts = [{ uri: adaptation.kernel, text: own }, ...adaptation.others.map((file) => ({ uri: vscode.Uri.parse(file.uri), text: file.text }))];
  const targets = texts.map(({ uri, text }) => ({ at: vscode.Uri.joinPath(folder, uri.path.slice(root.length)), text }));
  for (const { at } of targets) {
    if (await exists(at)) {
      void vscode.window.showErrorMessage(`CuBridge: ${at.fsPath} exists already; nothing was saved. Choose an empty folder.`);
      return;
    }
  }
  for (const { at, text } of targets) await vscode.workspace.fs.writeFile(at, new TextEncoder().encode(text));
  await writeDropIn(adaptation, dropIn);
  const saved = targets.map(({ at }) => nameOf(at)).join(", ");
  await tellDropIn(`CuBridge: ${saved} are saved in ${folder.fsPath}; headers that stay as they are were not copied.`, dropIn?.uri);
}

async function exists(uri: vscode.Uri): Promise<boolean> {
  try {
    await vscode.workspace.fs.stat(uri);
    return true;
  } catch {
    return false;
  }
}

function activeAdapted(): vscode.Uri | undefined {
  const input = vscode.window.tabGroups.activeTabGroup.activeTab?.input;
  return input instanceof vscode.TabInputTextDiff && input.modified.scheme === SCHEME ? input.modified : undefined;
}

async function tellDropIn(message: string, dropIn: vscode.Uri | undefined): Promise<void> {
  const answer = await vscode.window.showInformationMessage(message, ...(dropIn ? ["Open the Drop-in"] : []));
  if (answer && dropIn) await vscode.window.showTextDocument(dropIn, { viewColumn: vscode.ViewColumn.Beside });
}

async function confirmSketch(level: string): Promise<boolean> {
  const answer = await vscode.window.showWarningMessage(
    "Accept an adaptation that is not verified?",
    { modal: true, detail: `It reached level ${level} only. See the report for what did not run and why.` },
    "Accept",
  );
  return answer === "Accept";
}
