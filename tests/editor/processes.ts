// Processes that end by themselves. Nothing here blocks: scenarios run side by side in this one process.
import { spawn, type SpawnOptions } from "node:child_process";

export interface Finished {
  /** Exit status; null when a signal ended it. */
  code: number | null;
  stdout: string;
  stderr: string;
}

/** Runs `command` to its end. Rejects when it cannot be started. */
export function finished(command: string, args: readonly string[], how: Pick<SpawnOptions, "cwd" | "env"> = {}): Promise<Finished> {
  return new Promise((resolve, reject) => {
    const child = spawn(command, args, { ...how, stdio: ["ignore", "pipe", "pipe"] });
    const said = { stdout: "", stderr: "" };
    child.stdout.setEncoding("utf8").on("data", (part: string) => { said.stdout += part; });
    child.stderr.setEncoding("utf8").on("data", (part: string) => { said.stderr += part; });
    child.once("error", reject);
    child.once("close", (code) => { resolve({ code, ...said }); });
  });
}
