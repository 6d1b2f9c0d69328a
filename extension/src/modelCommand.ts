// Where the rules end: ask a model. Nothing here shows until cubridge.model.name is set.
import * as vscode from "vscode";
import type { AdaptCommand } from "./adaptCommand";
import { consentText, hostOf } from "./modelHost";
import { requireTrust } from "./trust";

const KEY = "cubridge.model.key";
const AGREED = "cubridge.model.agreedHosts";
/** Read by the server from its environment: keys are never in settings, messages or logs. */
const VARIABLE = "CUBRIDGE_MODEL_API_KEY";

export class ModelCommand {
  constructor(
    private readonly context: vscode.ExtensionContext,
    private readonly adapt: AdaptCommand,
    private readonly restart: () => Promise<void>,
  ) {}

  /** The key, for the environment of the server; one that is there already comes first. */
  async environment(): Promise<Record<string, string>> {
    if (process.env[VARIABLE]) return {};
    const key = await this.context.secrets.get(KEY);
    return key ? { [VARIABLE]: key } : {};
  }

  /** Adapt with the model. The first use of a host says what leaves this machine, and asks. */
  async ask(args: unknown[]): Promise<void> {
    if (!(await requireTrust("ask a model"))) return;
    const settings = vscode.workspace.getConfiguration("cubridge.model");
    const model = settings.get("name", "").trim();
    const host = hostOf(settings.get("baseUrl", ""));
    if (!model || !host) {
      await this.configure(model ? "The address of the model server (cubridge.model.baseUrl) is none." : "No model is named in cubridge.model.name.");
      return;
    }
    if (await this.agreed(model, host)) await this.adapt.run(args, { command: "cubridge.askModel", consent: host });
  }

  /** Keep a key in the editor's secret storage; an empty one removes it. */
  async setKey(): Promise<void> {
    const key = await vscode.window.showInputBox({
      title: "Model Key",
      prompt: `Kept in the secret storage of this editor, given to the CuBridge server as ${VARIABLE}. Empty: forget it.`,
      password: true,
      ignoreFocusOut: true,
    });
    if (key === undefined) return;
    if (key) await this.context.secrets.store(KEY, key);
    else await this.context.secrets.delete(KEY);
    await this.restart();
  }

  private async agreed(model: string, host: string): Promise<boolean> {
    const before = this.context.globalState.get<string[]>(AGREED, []);
    if (before.includes(host)) return true;
    const send = "Send";
    const answer = await vscode.window.showWarningMessage(`Ask a model at ${host}?`, { modal: true, detail: consentText(model, host) }, send);
    if (answer !== send) return false;
    await this.context.globalState.update(AGREED, [...before, host]);
    return true;
  }

  private async configure(why: string): Promise<void> {
    const open = "Open Settings";
    const answer = await vscode.window.showInformationMessage(`CuBridge: ${why}`, open);
    if (answer === open) await vscode.commands.executeCommand("workbench.action.openSettings", "cubridge.model");
  }
}
