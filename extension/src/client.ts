// Starts, restarts and stops the language server; nothing else talks to the language client library.
import { randomUUID } from "node:crypto";
import * as fs from "node:fs";
import * as path from "node:path";
import * as vscode from "vscode";
import { LanguageClient, State, TransportKind, WorkDoneProgress } from "vscode-languageclient/node";
import type { InitializeParams, LanguageClientOptions, ServerOptions, StaticFeature } from "vscode-languageclient/node";
import { rendered } from "./codePages";
import { runInstall } from "./install";
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

const MODEL = ["model.name", "model.baseUrl", "model.rounds", "model.candidates", "model.budgetTokens", "model.budgetSeconds", "model.budgetUsd", "model.price"] as const;
const CHECK = ["check.whileTyping", "check.watch", "check.expect"] as const;
const SETTINGS = ["codeLens", "inlayHints", "arch", "useGpu", "emptyRows", "readSpecs", "timeLimit", "memoryLimit", ...CHECK, ...MODEL] as const;
/** Specs are Python files; the server looks at those that have an attention function, and leaves the others alone. */
const SPECS = [{ scheme: "file", language: "python" }];
/** A contract says itself what is wrong with it, while it is typed. */
const CONTRACTS = [{ scheme: "file", pattern: "**/contract.toml" }];

export class ServerManager implements vscode.Disposable {
  /** What the server's environment has beside ours: a key from the secret storage. */
  secrets: () => Promise<Record<string, string>> = () => Promise.resolve({});
  private client: LanguageClient | undefined;
  private turn: Promise<void> = Promise.resolve();
  /** Intercepted server commands: what a lens or a code action calls runs through the editor's own presentation. */
  readonly commands = new Map<string, ServerCommand>();
  private readonly started = new vscode.EventEmitter<void>();
  /** Fires each time the server is up. */
  readonly onReady = this.started.event;
  private told = "not started";

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

  get extensionFolder(): string {
    return this.extensionPath;
  }

  /** The server in a few words: running, or why not. */
  get state(): string {
    return this.client?.state === State.Running ? "running" : this.told;
  }

  async python(): Promise<Python> {
    const { argv } = await findInterpreter();
    const found = await probe(argv, this.extensionPath);
    return { argv, env: this.environment(found.installed), cwd: this.workingDirectory(found.installed) };
  }

  /** Sends a command to the server. Rejects with a sentence when it is not running. */
  async execute<T>(command: string, argument: object): Promise<T> {
    return (await this.running()).sendRequest<T>("workspace/executeCommand", { command, arguments: [argument] });
  }

  /** The same for a job: stages, from the first moment, and a cancel button in a notification. Null when the user cancelled. */
  async job<T>(command: string, title: string, argument: object): Promise<T | null> {
    const options = { location: vscode.ProgressLocation.Notification, title, cancellable: true };
    return vscode.window.withProgress(options, async (progress, cancel) => {
      let shown = 0;
      progress.report({ message: this.state === "running" ? "asking the server" : "waiting for the server" });
      const told = (message: string, percentage: number | undefined): void => {
        const now = percentage ?? shown;
        progress.report({ message, increment: Math.max(0, now - shown) });
        shown = Math.max(shown, now);
      };
      try {
        return await this.watched<T>(command, argument, told, cancel);
      } catch (error) {
        if (cancel.isCancellationRequested) return null;
        throw error;
      }
    });
  }

  /** Sends a command and passes on the stages that the server reports for it. */
  async watched<T>(
    command: string,
    argument: object,
    told: (message: string, percentage: number | undefined) => void,
    cancel?: vscode.CancellationToken,
  ): Promise<T> {
    const client = await this.running();
    const token = randomUUID();
    const listening = client.onProgress(WorkDoneProgress.type, token, (value) => {
      if (value.kind === "report") told(value.message ?? "", value.percentage);
    });
    const params = { command, arguments: [{ ...argument, workDoneToken: token }] };
    try {
      // An undefined third argument would be taken for a second parameter.
      return await (cancel ? client.sendRequest<T>("workspace/executeCommand", params, cancel) : client.sendRequest<T>("workspace/executeCommand", params));
    } finally {
      listening.dispose();
    }
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
    this.started.dispose();
    void this.stop();
  }

  /**
   * The working directory is on Python's module path: it must be ours, never a folder of the workspace. Nor may it hold
   * the bundled sources when the server is an installed one, which would import an engine of another version from there.
   */
  private workingDirectory(installed: boolean): string {
    return installed ? path.join(this.extensionPath, "dist") : this.extensionPath;
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
      const options: ServerOptions = {
        command,
        args: [...args, "-m", module],
        transport: TransportKind.stdio,
        options: { cwd: this.workingDirectory(found.installed), env: { ...process.env, ...this.environment(found.installed), ...(await this.secrets()) } },
      };
      this.client = new LanguageClient("cubridge", "CuBridge", options, this.clientOptions());
      this.client.registerFeature(DIFF_EDITOR);
      await this.client.start();
      this.status.ready(`Python ${found.version}, ${found.installed ? "installed server" : "bundled server"}`);
      this.log.info("server running");
      this.started.fire();
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
      documentSelector: [...KERNELS, ...SPECS, ...CONTRACTS],
      outputChannel: this.log,
      initializationOptions: { ...settings, trusted: vscode.workspace.isTrusted },
      middleware: {
        executeCommand: (command, args: unknown[], next): vscode.ProviderResult<unknown> => {
          const own = this.commands.get(command);
          return own ? own(args) : (next(command, args) as vscode.ProviderResult<unknown>);
        },
        handleDiagnostics: (uri, found, next) => { next(uri, rendered(found)); },
        provideDiagnostics: async (document, previous, cancel, next) => {
          const report = await next(document, previous, cancel);
          if (report && "items" in report) rendered(report.items);
          return report;
        },
      },
    };
  }

  /** Says what is missing, with the command that installs it. */
  private async explain(reason: string, command: string[] | null): Promise<void> {
    this.told = reason;
    this.status.failed(reason);
    this.log.error(reason);
    if (command) this.log.info(`This installs them: ${commandLine(command)}`);
    const choices = command ? ["Install", "Check Environment"] : ["Show Logs", "Check Environment"];
    // Not awaited: an unanswered notification must not hold up a later restart.
    void vscode.window.showErrorMessage(`CuBridge: ${reason}`, ...choices).then(async (answer) => {
      if (answer === "Install" && command) await this.install(command);
      else if (answer === "Check Environment") await vscode.commands.executeCommand("cubridge.doctor");
      else if (answer === "Show Logs") this.log.show();
    });
    return Promise.resolve();
  }

  private async install(command: readonly string[]): Promise<void> {
    const done = await runInstall(command).catch((error: unknown) => {
      this.log.error(String(error));
      return false;
    });
    if (done) await this.restart();
    else void vscode.window.showErrorMessage("CuBridge: the packages were not installed: the terminal says why.");
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
