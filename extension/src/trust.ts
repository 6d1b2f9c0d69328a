// Without workspace trust only reading works. The server refuses jobs too; this says so where the user is.
import * as vscode from "vscode";

/** True when jobs may run; otherwise explains and offers the trust editor. */
export async function requireTrust(what: string): Promise<boolean> {
  if (vscode.workspace.isTrusted) return true;
  const manage = "Manage Workspace Trust";
  const answer = await vscode.window.showWarningMessage(
    `CuBridge does not ${what} in an untrusted workspace: it would execute the spec and the compiler.`,
    manage,
  );
  if (answer === manage) await vscode.commands.executeCommand("workbench.trust.manage");
  return false;
}
