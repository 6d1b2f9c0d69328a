// The IR panel: the lifted program as a tree by phase, beside the source.
import * as vscode from "vscode";
import type { ServerManager } from "../client";
import type { IrView } from "../irView";
import type { IrTreeReply } from "../protocol";
import type { ToHost, ToView } from "../webviews/messages";
import { KernelPanel } from "./kernelPanel";
import type { Source } from "./source";

export class IrPanel extends KernelPanel<"ir", IrTreeReply> {
  constructor(server: ServerManager, source: Source, extensionUri: vscode.Uri, private readonly text: IrView) {
    super("ir", "CuIR", "cubridge.irTree", server, source, extensionUri);
  }

  protected override shown(reply: IrTreeReply): ToView["ir"] {
    return { type: "tree", reply };
  }

  protected override async other(message: ToHost["ir"]): Promise<void> {
    const { reply } = this;
    if (!reply) return;
    if (message.type === "copy") {
      await vscode.env.clipboard.writeText(reply.text);
      void vscode.window.setStatusBarMessage("CuBridge: the CuIR was copied.", 3000);
    } else if (message.type === "openText") {
      await this.text.show([{ kernel: reply.kernel }]);
    }
  }
}
