// What other extensions and the workbench get from the extension, asked by the editor's own API.
import assert from "node:assert/strict";
import * as vscode from "vscode";
import { until } from "../until";

const PATIENCE = 240_000;

interface Manifest {
  contributes: { commands: { command: string }[]; configuration: { properties: Record<string, { default: unknown }> } };
}

const extension = (): vscode.Extension<unknown> => {
  const found = vscode.extensions.getExtension("cubridge.cubridge");
  assert.ok(found, "the extension is not installed");
  return found;
};

const positionOf = (document: vscode.TextDocument, text: string): vscode.Position => {
  const at = document.getText().indexOf(text);
  assert.ok(at >= 0, `the kernel has no ${text}`);
  return document.positionAt(at);
};

describe("CuBridge in the extension host", () => {
  let document: vscode.TextDocument;

  before(async () => {
    const [folder] = vscode.workspace.workspaceFolders ?? [];
    assert.ok(folder);
    document = await vscode.workspace.openTextDocument(vscode.Uri.joinPath(folder.uri, "scalar", "kernel.cu"));
    await vscode.window.showTextDocument(document);
    await until("the extension is active", PATIENCE, () => extension().isActive);
  });

  it("takes CUDA files as they are", () => {
    assert.equal(document.languageId, "cuda-cpp");
  });

  it("registers every command of its manifest", async () => {
    const there = new Set(await vscode.commands.getCommands(true));
    const { contributes } = extension().packageJSON as Manifest;
    assert.deepEqual(contributes.commands.filter((item) => !there.has(item.command)), []);
  });

  it("has a value for every setting of its manifest", () => {
    const { contributes } = extension().packageJSON as Manifest;
    for (const name of Object.keys(contributes.configuration.properties)) {
      assert.notEqual(vscode.workspace.getConfiguration().inspect(name), undefined, name);
    }
  });

  it("gives lenses that say what the kernel computes", async () => {
    const lenses = await until("lenses", PATIENCE, async () => some(await command<vscode.CodeLens[]>("vscode.executeCodeLensProvider", document.uri)));
    const titles = lenses.map((lens) => lens.command?.title ?? "");
    assert.ok(titles.some((title) => /attention forward, tiles 32x32, D = 64/.test(title)), titles.join(" | "));
    assert.ok(titles.includes("Adapt to…"), titles.join(" | "));
  });

  it("hovers with the step of the line", async () => {
    const hovers = await command<vscode.Hover[]>("vscode.executeHoverProvider", document.uri, positionOf(document, "Ps[r * kLdP + part"));
    const text = hovers.flatMap((hover) => hover.contents).map((part) => (part instanceof vscode.MarkdownString ? part.value : "")).join("\n");
    assert.match(text, /exp\(S - m\)/);
  });

  it("hovers with the same step on the line of its mathematics", async () => {
    const hovers = await command<vscode.Hover[]>("vscode.executeHoverProvider", document.uri, positionOf(document, "expf(s[i]"));
    const text = hovers.flatMap((hover) => hover.contents).map((part) => (part instanceof vscode.MarkdownString ? part.value : "")).join("\n");
    assert.match(text, /exp\(S - m\)/);
  });

  it("hints at landmark lines", async () => {
    const whole = new vscode.Range(0, 0, document.lineCount, 0);
    const hints = await until("hints", PATIENCE, async () => some(await command<vscode.InlayHint[]>("vscode.executeInlayHintProvider", document.uri, whole)));
    const labels = hints.map((hint) => (typeof hint.label === "string" ? hint.label : hint.label.map((part) => part.value).join("")));
    assert.ok(labels.some((label) => label.includes("S[32×32] = Q·Kᵀ")), labels.join(" | "));
  });

  it("outlines the phases", async () => {
    const [kernel] = await command<vscode.DocumentSymbol[]>("vscode.executeDocumentSymbolProvider", document.uri);
    assert.deepEqual(kernel?.children.map((child) => child.name), ["prologue", "KV loop", "epilogue"]);
  });

  it("offers to adapt the kernel to each spec, and to the nearest first", async () => {
    const place = positionOf(document, "flash_fwd_scalar(");
    const actions = await command<vscode.CodeAction[]>("vscode.executeCodeActionProvider", document.uri, new vscode.Range(place, place));
    const titles = actions.map((action) => action.title).filter((title) => title.startsWith("Adapt this kernel"));
    assert.ok(titles.some((title) => title.includes("causal_bottom_right.py")), titles.join(" | "));
  });

  it("says one cause once, and what follows from it with it", async () => {
    const editor = await vscode.window.showTextDocument(document);
    const before = document.getText();
    const line = document.lineAt(positionOf(document, "const int tid =").line);
    await editor.edit((edit) => { edit.delete(line.rangeIncludingLineBreak); });
    const found = await until("a diagnostic", PATIENCE, () => some(problems(document.uri)));
    await editor.edit((edit) => { edit.insert(line.range.start, `${line.text}\n`); });
    assert.equal(document.getText(), before);
    await until("no diagnostic", PATIENCE, () => problems(document.uri).length === 0);
    assert.equal(found.length, 1, found.map((item) => `${codeOf(item)} ${item.message}`).join(" | "));
    assert.match(found[0]?.message ?? "", /tid is not declared/);
  });

  it("says what it does not understand while the text is being typed, and takes it back", async () => {
    const editor = await vscode.window.showTextDocument(document);
    const before = document.getText();
    const place = positionOf(document, "__syncthreads();");
    await editor.edit((edit) => { edit.insert(place, "goto out; "); });
    await until("a diagnostic", PATIENCE, () => some(problems(document.uri).filter((item) => /^CB1/.test(codeOf(item)))));
    await editor.edit((edit) => { edit.delete(new vscode.Range(place, place.translate(0, "goto out; ".length))); });
    assert.equal(document.getText(), before);
    await until("no diagnostic", PATIENCE, () => problems(document.uri).length === 0);
  });
});

/** Errors and warnings; a sound kernel may have notes. */
function problems(uri: vscode.Uri): vscode.Diagnostic[] {
  return vscode.languages.getDiagnostics(uri).filter((item) => item.severity <= vscode.DiagnosticSeverity.Warning);
}

function codeOf(diagnostic: vscode.Diagnostic): string {
  const { code } = diagnostic;
  return String(typeof code === "object" ? code.value : code);
}

async function command<T>(name: string, ...args: unknown[]): Promise<T> {
  return vscode.commands.executeCommand<T>(name, ...args);
}

function some<T>(items: T[]): T[] | null {
  return items.length > 0 ? items : null;
}
