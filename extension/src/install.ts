// Installs what is missing, in a terminal that the user watches.
import * as vscode from "vscode";

const NAME = "install packages";

/** Runs `argv` as a task; true when it succeeded. No shell is between, so nothing has to be quoted. */
export async function runInstall(argv: readonly string[]): Promise<boolean> {
  const [command = "", ...args] = argv;
  const task = new vscode.Task({ type: "cubridge" }, vscode.TaskScope.Workspace, NAME, "CuBridge", new vscode.ProcessExecution(command, args));
  task.presentationOptions = { reveal: vscode.TaskRevealKind.Always, clear: true };
  // Listening comes first: a command that fails at once has ended before executeTask returns.
  return new Promise((resolve, reject) => {
    const listening = vscode.tasks.onDidEndTaskProcess(({ execution, exitCode }) => {
      if (execution.task.name !== NAME || execution.task.source !== "CuBridge") return;
      listening.dispose();
      resolve(exitCode === 0);
    });
    vscode.tasks.executeTask(task).then(undefined, (error: unknown) => {
      listening.dispose();
      reject(error instanceof Error ? error : new Error(String(error)));
    });
  });
}
