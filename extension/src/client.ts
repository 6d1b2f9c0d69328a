// Starts, restarts and stops the language server; nothing else talks to the language client library.
import { randomUUID } from "node:crypto";
import * as fs from "node:fs";
import * as vscode from "vscode";
import { LanguageClient, State, TransportKind, WorkDoneProgress } from "vscode-languageclient/node";
import type { InitializeParams, LanguageClientOptions, ServerOptions, StaticFeature } from "vscode-languageclient/node";
import { findInterpreter } from "./interpreter";
import { commandLine, install, probe, problem } from "./probe";
import { KERNELS, type StatusItem } from "./statusItem";

export type ServerCommand = (args: unknown[]) => Promise<unknown>;

/** Python for a terminal: the command, and the environment that makes the bundled sources importable. */
export interface Python {
  argv: string[];
  env: Record<string, string>;
  cwd: string;
}

const SETTINGS = ["codeLens", "inlayHints", "arch", "useGpu", "emptyRows", "timeLimit", "memoryLimit"] as const;

export class ServerManager implements vscode.Disposable {
  private client: LanguageClient | undefined;
  private turn: Promise<void> = Promise.resolve();
  /** Intercepted server commands: what a lens or a code action calls runs through the editor's own presentation. */
  readonly commands = new Map<string, ServerCommand>();

  constructor(
    private readonly extensionPath: string,
    private readonly log: vscode.LogOutputChannel,
    private readonly status: StatusItem,
  ) {}

  /** Restarts never overlap: each waits for the one before. */
  restart(): Promise<void> {
    this.turn = this.turn.then(async () => {
      await this.stop();
      await this.start();
    });
    return this.turn;
  }

  async python(): Promise<Python> {
    const { argv } = await findInterpreter();
    const found = await probe(argv, this.extensionPath);
    return { argv, env: this.environment(found.installed), cwd: this.extensionPath };
  }

  /** Sends a command to the server. Rejects with a sentence when it is not running. */
  async execute<T>(command: string, argument: object): Promise<T> {
    return (await this.running()).sendRequest<T>("workspace/executeCommand", { command, arguments: [argument] });
  }

  /** The same for a job: stages and a cancel button in a notification. Null when the user cancelled. */
  async job<T>(command: string, title: string, argument: object): Promise<T | null> {
    const client = await this.running();
    const token = randomUUID();
    const options = { location: vscode.ProgressLocation.Notification, title, cancellable: true };
    return vscode.window.withProgress(options, async (progress, cancel) => {
      let shown = 0;
      const listening = client.onProgress(WorkDoneProgress.type, token, (value) => {
        if (value.kind !== "report") return;
        const now = value.percentage ?? shown;
        progress.report({ message: value.message ?? "", increment: Math.max(0, now - shown) });
        shown = Math.max(shown, now);
      });
      const params = { command, arguments: [{ ...argument, workDoneToken: token }] };
      try {
        return await client.sendRequest<T>("workspace/executeCommand", params, cancel);
      } catch (error) {
        if (cancel.isCancellationRequested) return null;
        throw error;
      } finally {
        listening.dispose();
      }
    });
  }

  private async running(): Promise<LanguageClient> {
    await this.turn;
    if (this.client?.state !== State.Running) throw new Error("The server is not running: see CuBridge: Check Environment.");
    return this.client;
  }

  toEdits(edits: readonly { range: { start: { line: number; character: number }; end: { line: number; character: number } }; newText: string }[]): vscode.TextEdit[] {
    return edits.map(({ range, newText }) =>
      vscode.TextEdit.replace(new vscode.Range(range.start.line, range.start.character, range.end.line, range.end.character), newText),
    );
  }

  dispose(): void {
    void this.stop();
  }

  private environment(installed: boolean): Record<string, string> {
    const sources = [this.extensionPath, process.env.PYTHONPATH].filter(Boolean).join(process.platform === "win32" ? ";" : ":");
    return { PYTHONUTF8: "1", ...(installed ? {} : { PYTHONPATH: sources }) };
  }

  private async start(): Promise<void> {
    this.status.starting();
    const { argv, origin } = await findInterpreter();
    this.log.info(`Python from ${origin}: ${argv.join(" ")}`);
    try {
      const found = await probe(argv, this.extensionPath);
      const wrong = problem(found);
      if (wrong) {
        await this.explain(wrong, found.missing.length > 0 ? [...argv, ...install(found)] : null);
        return;
      }
      if (found.missing.length > 0) this.log.warn(`Adapting and verifying will not work without: ${found.missing.join(", ")}`);
      if (!found.installed && !fs.existsSync(vscode.Uri.joinPath(vscode.Uri.file(this.extensionPath), "server").fsPath)) {
        await this.explain("The package cubridge is not installed.", [...argv, "-m", "pip", "install", "cubridge"]);
        return;
      }
      const [command = "python3", ...args] = argv;
      const module = found.installed ? "cubridge_server" : "server";
      // The working directory is on Python's module path: it must be ours, never a folder of the workspace.
      const options: ServerOptions = {
        command,
        args: [...args, "-m", module],
        transport: TransportKind.stdio,
        options: { cwd: this.extensionPath, env: { ...process.env, ...this.environment(found.installed) } },
      };
      this.client = new LanguageClient("cubridge", "CuBridge", options, this.clientOptions());
      this.client.registerFeature(DIFF_EDITOR);
      await this.client.start();
      this.status.ready(`Python ${found.version}, ${found.installed ? "installed server" : "bundled server"}`);
      this.log.info("server running");
    } catch (error) {
      await this.explain(error instanceof Error ? error.message : String(error), null);
    }
  }

  private async stop(): Promise<void> {
    const client = this.client;
    this.client = undefined;
    if (client && client.state !== State.Stopped) await client.dispose(3000).catch((error: unknown) => { this.log.warn(String(error)); });
  }

  private clientOptions(): LanguageClientOptions {
    const configuration = vscode.workspace.getConfiguration("cubridge");
    const settings = Object.fromEntries(SETTINGS.map((name) => [name, configuration.get(name)]));
    return {
      documentSelector: KERNELS,
      outputChannel: this.log,
      initializationOptions: { ...settings, trusted: vscode.workspace.isTrusted },
      middleware: {
        executeCommand: (command, args: unknown[], next): vscode.ProviderResult<unknown> => {
          const own = this.commands.get(command);
          return own ? own(args) : (next(command, args) as vscode.ProviderResult<unknown>);
        },
      },
    };
  }

  /** Says what is missing, with the command that installs it. */
  private async explain(reason: string, command: string[] | null): Promise<void> {
    this.status.failed(reason);
    this.log.error(reason);
    const choices = command ? ["Install", "Show Logs"] : ["Show Logs"];
    const line = command ? ` Install with: ${commandLine(command)}` : "";
    // Not awaited: an unanswered notification must not hold up a later restart.
    void vscode.window.showErrorMessage(`CuBridge: ${reason}${line}`, ...choices).then((answer) => {
      if (answer === "Install" && command) {
        const terminal = vscode.window.createTerminal({ name: "CuBridge: install" });
        terminal.show();
        terminal.sendText(commandLine(command));
      } else if (answer === "Show Logs") {
        this.log.show();
      }
    });
    return Promise.resolve();
  }
}

/** Tells the server that this client shows an adaptation itself. */
const DIFF_EDITOR: StaticFeature = {
  fillClientCapabilities(capabilities: InitializeParams["capabilities"]): void {
    capabilities.experimental = { ...(capabilities.experimental as object | undefined), cubridgeDiffEditor: true };
  },
  initialize: () => undefined,
  getState: () => ({ kind: "static" }),
  clear: () => undefined,
};
