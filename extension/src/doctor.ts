// CuBridge: Check Environment — a page that says what is there, what is missing, and the one command that mends it.
import { execFile } from "node:child_process";
import * as vscode from "vscode";
import type { Python, ServerManager } from "./client";
import { type Check, failedPage, page } from "./doctorPage";
import { findInterpreter } from "./interpreter";
import { commandLine, install, type Probe, probe } from "./probe";

export const DOCTOR_SCHEME = "cubridge-environment";
const PAGE = vscode.Uri.parse(`${DOCTOR_SCHEME}:CuBridge environment.md`);

export class Doctor implements vscode.TextDocumentContentProvider, vscode.Disposable {
  private readonly changed = new vscode.EventEmitter<vscode.Uri>();
  private text = "";
  readonly onDidChange = this.changed.event;

  constructor(private readonly server: ServerManager) {}

  provideTextDocumentContent(): string {
    return this.text;
  }

  async run(): Promise<void> {
    this.text = await this.look();
    this.changed.fire(PAGE);
    await vscode.commands.executeCommand("markdown.showPreview", PAGE);
  }

  dispose(): void {
    this.changed.dispose();
  }

  private async look(): Promise<string> {
    const { argv, origin } = await findInterpreter();
    const line = `${commandLine(argv)} (from ${origin})`;
    let found: Probe;
    try {
      found = await probe(argv, this.server.extensionFolder);
    } catch (error) {
      return failedPage(line, error instanceof Error ? error.message : String(error));
    }
    const mend = found.missing.length > 0 ? commandLine([...argv, ...install(found)]) : null;
    try {
      return page(line, this.server.state, await checks(await this.server.python()), mend);
    } catch (error) {
      // Without its packages the engine cannot look; the interpreter itself was asked what it lacks.
      if (mend) return page(line, this.server.state, found.missing.map(lacking), mend);
      return failedPage(line, error instanceof Error ? error.message : String(error));
    }
  }
}

const lacking = (name: string): Check => ({ name, ok: false, required: true, detail: "not installed", fix: "" });

/** The command line's doctor, as data. It exits with 3 when something is missing, and prints the same. */
function checks(python: Python): Promise<Check[]> {
  const [command = "python3", ...args] = python.argv;
  const options = { cwd: python.cwd, env: { ...process.env, ...python.env }, timeout: 60_000 };
  return new Promise((resolve, reject) => {
    execFile(command, [...args, "-m", "cubridge_engine.cli.main", "doctor", "--format", "json"], options, (_error, stdout, stderr) => {
      try {
        resolve((JSON.parse(stdout) as { checks: Check[] }).checks);
      } catch {
        reject(new Error(stderr.trim().split("\n").at(-1) ?? "The engine did not answer."));
      }
    });
  });
}
