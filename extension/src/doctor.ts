// CuBridge: Check Environment — the command line's doctor, in a terminal, with the interpreter that runs the server.
import * as vscode from "vscode";
import type { ServerManager } from "./client";
import { commandLine } from "./probe";

export async function runDoctor(server: ServerManager): Promise<void> {
  try {
    const python = await server.python();
    const terminal = vscode.window.createTerminal({ name: "CuBridge: doctor", env: python.env, cwd: python.cwd });
    terminal.show();
    terminal.sendText(commandLine([...python.argv, "-m", "cubridge_engine.cli.main", "doctor"]));
  } catch (error) {
    void vscode.window.showErrorMessage(
      `CuBridge: ${error instanceof Error ? error.message : String(error)} Set cubridge.interpreter to a Python 3.10 or later.`,
    );
  }
}
