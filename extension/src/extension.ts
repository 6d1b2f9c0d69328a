// The extension: wires features together. Each feature is in a file of its own.
import * as vscode from "vscode";
import { AdaptCommand } from "./adaptCommand";
import { Adaptations, DROP_IN_SCHEME, SCHEME } from "./adaptations";
import { CheckCommand } from "./checkCommand";
import { ServerManager } from "./client";
import { CodePages, PAGE_SCHEME } from "./codePages";
import { Doctor, DOCTOR_SCHEME } from "./doctor";
import { showDropIn } from "./dropIn";
import { watchInterpreter } from "./interpreter";
import { IrView } from "./irView";
import { ContractPanel } from "./panels/contractPanel";
import { ExplainPanel } from "./panels/explainPanel";
import { IrPanel } from "./panels/irPanel";
import { MaskPanel } from "./panels/maskPanel";
import { PipelinePanel } from "./panels/pipelinePanel";
import { Reports } from "./panels/reportPanel";
import { Source } from "./panels/source";
import { ModelCommand } from "./modelCommand";
import { PhaseMarks } from "./phaseMarks";
import { SpecCommands } from "./specCommands";
import { StatusItem } from "./statusItem";
import { VerifyCommand } from "./verifyCommand";

export async function activate(context: vscode.ExtensionContext): Promise<void> {
  const log = vscode.window.createOutputChannel("CuBridge", { log: true });
  const status = new StatusItem();
  const server = new ServerManager(context.extensionPath, log, status);
  const adaptations = new Adaptations();
  const ir = new IrView(server);
  const source = new Source();
  const irPanel = new IrPanel(server, source, context.extensionUri, ir);
  const pipeline = new PipelinePanel(server, source, context.extensionUri);
  const mask = new MaskPanel(server, context.extensionUri);
  const explain = new ExplainPanel(server, source, context.extensionUri);
  const contract = new ContractPanel(server, source, context.extensionUri);
  const compare = (of: { kernel: string; spec: string }): Promise<void> => ir.compare(vscode.Uri.parse(of.kernel), vscode.Uri.parse(of.spec));
  const dropIn = (of: { kernel: string; spec: string }): Promise<void> => showDropIn(adaptations.of(vscode.Uri.parse(of.kernel), vscode.Uri.parse(of.spec)));
  const reports = new Reports(context.extensionUri, source, compare, dropIn);
  const adapt = new AdaptCommand(server, adaptations, reports);
  const verify = new VerifyCommand(server, reports);
  const specs = new SpecCommands(server, adapt);
  const check = new CheckCommand(server);
  const pages = new CodePages(server);
  const doctor = new Doctor(server);
  const model = new ModelCommand(context, adapt, () => server.restart());
  server.secrets = () => model.environment();
  const marks = new PhaseMarks(server);

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
  const runModel = shown((...args: unknown[]) => model.ask(args));
  const runVerify = shown((...args: unknown[]) => verify.run(args));
  const runIr = shown((...args: unknown[]) => irPanel.show(args));

  const runCheck = shown((...args: unknown[]) => check.run(args));
  const runExplain = shown((...args: unknown[]) => explain.explain(args));
  const readSpec = shown((...args: unknown[]) => specs.read(args));
  const start = shown((...args: unknown[]) => specs.start(args));

  // What the server's lenses and actions call comes here, to be shown the editor's way.
  server.commands.set("cubridge.adapt", (args) => runAdapt(...args));
  server.commands.set("cubridge.askModel", (args) => runModel(...args));
  server.commands.set("cubridge.verify", (args) => runVerify(...args));
  server.commands.set("cubridge.check", (args) => runCheck(...args));
  server.commands.set("cubridge.explain", (args) => runExplain(...args));
  server.commands.set("cubridge.showIr", (args) => runIr(...args));
  server.commands.set("cubridge.readSpec", (args) => readSpec(...args));
  server.commands.set("cubridge.copyExpert", (args) => start(...args));

  const commands: Record<string, (...args: never[]) => unknown> = {
    "cubridge.adaptKernel": runAdapt,
    "cubridge.verifyKernel": runVerify,
    "cubridge.askModelForKernel": runModel,
    "cubridge.setModelKey": shown(() => model.setKey()),
    "cubridge.showKernelIr": runIr,
    "cubridge.showKernelIrText": shown((...args: unknown[]) => ir.show(args)),
    "cubridge.compareIr": shown((uri?: vscode.Uri) => adapt.compare(uri, (kernel, spec) => ir.compare(kernel, spec))),
    "cubridge.showPipeline": shown((...args: unknown[]) => pipeline.show(args)),
    "cubridge.showMask": shown((...args: unknown[]) => mask.show(args)),
    "cubridge.exportReport": shown(() => reports.export()),
    "cubridge.acceptAdaptation": shown((uri?: vscode.Uri) => adapt.accept(uri)),
    "cubridge.discardAdaptation": shown((uri?: vscode.Uri) => adapt.discard(uri)),
    "cubridge.saveAdaptation": shown((uri?: vscode.Uri) => adapt.saveAs(uri)),
    "cubridge.openDropIn": shown((uri?: vscode.Uri) => adapt.openDropIn(uri)),
    "cubridge.showReport": () => { reports.show(); },
    "cubridge.checkKernel": runCheck,
    "cubridge.explainKernel": runExplain,
    "cubridge.compareKernels": shown((...args: unknown[]) => explain.compare(args)),
    "cubridge.showContract": shown((...args: unknown[]) => contract.show(args)),
    "cubridge.showCodePage": shown((code?: unknown) => pages.show(code)),
    "cubridge.restart": () => server.restart(),
    "cubridge.showLogs": () => { log.show(); },
    "cubridge.doctor": shown(() => doctor.run()),
    "cubridge.readSpecFile": readSpec,
    "cubridge.startFromExpert": start,
    "cubridge.togglePhaseMarks": shown(() => marks.toggle()),
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
    source,
    irPanel,
    pipeline,
    mask,
    explain,
    contract,
    doctor,
    pages,
    marks,
    vscode.workspace.registerTextDocumentContentProvider(PAGE_SCHEME, pages),
    vscode.workspace.registerTextDocumentContentProvider(DOCTOR_SCHEME, doctor),
    vscode.workspace.registerTextDocumentContentProvider(SCHEME, adaptations),
    vscode.workspace.registerTextDocumentContentProvider(DROP_IN_SCHEME, adaptations),
    vscode.workspace.onDidGrantWorkspaceTrust(restart),
    vscode.workspace.onDidChangeConfiguration((event) => {
      if (event.affectsConfiguration("cubridge.interpreter")) restart();
    }),
    await watchInterpreter(restart),
  );
  await server.restart();
}
