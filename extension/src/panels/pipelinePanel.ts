// The pipeline panel: copies, stages, waits, barriers and products over the first KV tiles.
import * as vscode from "vscode";
import type { ServerManager } from "../client";
import type { PipelineReply } from "../protocol";
import type { ToHost, ToView } from "../webviews/messages";
import { KernelPanel } from "./kernelPanel";
import type { Source } from "./source";

export class PipelinePanel extends KernelPanel<"pipeline", PipelineReply> {
  private flags: Record<string, number> = {};

  constructor(server: ServerManager, source: Source, extensionUri: vscode.Uri) {
    super("pipeline", "Pipeline", "cubridge.pipeline", server, source, extensionUri);
  }

  protected override question(): object {
    return { flags: this.flags };
  }

  protected override shown(reply: PipelineReply): ToView["pipeline"] {
    return { type: "timeline", reply };
  }

  protected override async other(message: ToHost["pipeline"]): Promise<void> {
    if (message.type === "flags") {
      this.flags = message.flags;
      await this.refresh();
    } else if (message.type === "copy") {
      await vscode.env.clipboard.writeText(message.text);
      void vscode.window.setStatusBarMessage("CuBridge: the pipeline was copied as text.", 3000);
    }
  }
}
