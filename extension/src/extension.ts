// The extension: wires features together. Each feature is in a file of its own.
import * as vscode from "vscode";
import { AdaptCommand } from "./adaptCommand";
import { Adaptations, SCHEME } from "./adaptations";
import { ServerManager } from "./client";
import { runDoctor } from "./doctor";
import { watchInterpreter } from "./interpreter";
import { IrView } from "./irView";
import { Reports } from "./report";
import { StatusItem } from "./statusItem";
import { VerifyCommand } from "./verifyCommand";

export async function activate(context: vscode.ExtensionContext): Promise<void> {
  const log = vscode.window.createOutputChannel("CuBridge", { log: true });
  const status = new StatusItem();
  const server = new ServerManager(context.extensionPath, log, status);
  const adaptations = new Adaptations();
  const reports = new Reports();
  const ir = new IrView(server);
  const adapt = new AdaptCommand(server, adaptations, reports);
  const verify = new VerifyCommand(server, reports);

  const shown = <T extends unknown[]>(run: (...args: T) => Promise<void>) => async (...args: T): Promise<void> => {
    try {
      await run(...args);
    } catch (error) {
      const message = error instanceof Error ? error.message : String(error);
      log.error(message);
      void vscode.window.showErrorMessage(`CuBridge: ${message}`, "Show Logs").then((answer) => {
        if (answer) log.show();
      });
    }
  };
  const runAdapt = shown((...args: unknown[]) => adapt.run(args));
  const runVerify = shown((...args: unknown[]) => verify.run(args));
  const runIr = shown((...args: unknown[]) => ir.show(args));

  // What the server's lenses and actions call comes here, to be shown the editor's way.
  server.commands.set("cubridge.adapt", (args) => runAdapt(...args));
  server.commands.set("cubridge.verify", (args) => runVerify(...args));
  server.commands.set("cubridge.showIr", (args) => runIr(...args));

  const commands: Record<string, (...args: never[]) => unknown> = {
    "cubridge.adaptKernel": runAdapt,
    "cubridge.verifyKernel": runVerify,
    "cubridge.showKernelIr": runIr,
    "cubridge.acceptAdaptation": shown((uri?: vscode.Uri) => adapt.accept(uri)),
    "cubridge.discardAdaptation": shown((uri?: vscode.Uri) => adapt.discard(uri)),
    "cubridge.showReport": shown(() => reports.show()),
    "cubridge.restart": () => server.restart(),
    "cubridge.showLogs": () => { log.show(); },
    "cubridge.doctor": () => runDoctor(server),
  };
  for (const [name, run] of Object.entries(commands)) {
    context.subscriptions.push(vscode.commands.registerCommand(name, run as (...args: unknown[]) => unknown));
  }

  const restart = (): void => void server.restart();
  context.subscriptions.push(
    log,
    status,
    server,
    adaptations,
    reports,
    ir,
    vscode.workspace.registerTextDocumentContentProvider(SCHEME, adaptations),
    vscode.workspace.onDidGrantWorkspaceTrust(restart),
    vscode.workspace.onDidChangeConfiguration((event) => {
      if (event.affectsConfiguration("cubridge.interpreter")) restart();
    }),
    await watchInterpreter(restart),
  );
  await server.restart();
}
