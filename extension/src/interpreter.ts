// Which Python runs the server: the setting, else the Python extension's choice, else python3.
import * as vscode from "vscode";

interface PythonApi {
  environments: {
    getActiveEnvironmentPath(resource?: vscode.Uri): { path: string };
    resolveEnvironment(path: { path: string }): Promise<{ executable: { uri?: vscode.Uri } } | undefined>;
    onDidChangeActiveEnvironmentPath: vscode.Event<unknown>;
  };
}

export interface Interpreter {
  argv: string[];
  /** Where it came from, for messages and the log. */
  origin: string;
}

async function pythonExtension(): Promise<PythonApi | undefined> {
  const extension = vscode.extensions.getExtension<PythonApi>("ms-python.python");
  if (!extension) return undefined;
  try {
    const api = await extension.activate();
    return typeof api.environments.getActiveEnvironmentPath === "function" ? api : undefined;
  } catch {
    return undefined; // it is optional: without it the next choice is tried
  }
}

export async function findInterpreter(): Promise<Interpreter> {
  const folder = vscode.workspace.workspaceFolders?.[0]?.uri;
  const setting = vscode.workspace.getConfiguration("cubridge", folder).get<string[]>("interpreter", []);
  if (setting.length > 0) return { argv: setting, origin: "the setting cubridge.interpreter" };
  const python = await pythonExtension();
  if (python) {
    const environment = await python.environments.resolveEnvironment(python.environments.getActiveEnvironmentPath(folder));
    const path = environment?.executable.uri?.fsPath;
    if (path) return { argv: [path], origin: "the Python extension" };
  }
  return { argv: [process.platform === "win32" ? "python" : "python3"], origin: "PATH" };
}

/** Calls back when the Python extension's choice changes. */
export async function watchInterpreter(changed: () => void): Promise<vscode.Disposable> {
  const python = await pythonExtension();
  return python?.environments.onDidChangeActiveEnvironmentPath(changed) ?? new vscode.Disposable(() => undefined);
}
