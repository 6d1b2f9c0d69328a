// A model server of one script, on this machine: it says its replies one after another, the last again and again.
import { createServer, type Server } from "node:http";
import type { AddressInfo } from "node:net";

export class ScriptedModel {
  /** Bodies of the requests that came. */
  readonly asked: string[] = [];

  private constructor(
    private readonly server: Server,
    private readonly replies: string[],
  ) {}

  /** `replies`: what the model answers, as text. */
  static async start(replies: readonly string[]): Promise<ScriptedModel> {
    const server = createServer();
    const model = new ScriptedModel(server, [...replies]);
    server.on("request", (request, response) => {
      let body = "";
      request.on("data", (part: Buffer) => { body += part.toString(); });
      request.on("end", () => {
        model.asked.push(body);
        response.setHeader("Content-Type", "application/json");
        response.end(JSON.stringify(model.answer()));
      });
    });
    await new Promise<void>((resolve) => { server.listen(0, "127.0.0.1", resolve); });
    return model;
  }

  get host(): string {
    return `127.0.0.1:${(this.server.address() as AddressInfo).port}`;
  }

  stop(): void {
    this.server.closeAllConnections();
    this.server.close();
  }

  private answer(): unknown {
    const content = (this.replies.length > 1 ? this.replies.shift() : this.replies[0]) ?? "";
    const choice = { index: 0, message: { role: "assistant", content, refusal: null }, finish_reason: "stop" };
    const usage = { prompt_tokens: 1000, completion_tokens: 100, total_tokens: 1100 };
    return { id: "1", object: "chat.completion", created: Math.floor(Date.now() / 1000), model: "scripted", choices: [choice], usage };
  }
}
