// Asks a Python interpreter what it has. No editor API here, so that it is tested without an editor.
import { execFile } from "node:child_process";

/** What the server imports before it can answer, and what jobs need besides. The pip names are those of pyproject.toml. */
export const NEEDED: Record<string, string> = {
  pygls: "pygls>=2.1,<3",
  lsprotocol: "lsprotocol>=2025.0.0",
  tree_sitter: "tree-sitter>=0.25,<0.27",
  tree_sitter_cuda: "tree-sitter-cuda==0.21.2",
  numpy: "numpy>=1.26",
};
export const NEEDED_BY_JOBS: Record<string, string> = {
  torch: "torch>=2.9",
  pydantic: "pydantic>=2.7",
  psutil: "psutil>=5.9",
  rich: "rich>=13",
};
/** The compiler of the default back end, by the names of its packages; an nvcc on the PATH does instead. */
export const NEEDED_TO_COMPILE: Record<string, string> = {
  "nvidia-cuda-nvrtc": "nvidia-cuda-nvrtc>=13.0,<13.1",
  "nvidia-cuda-runtime": "nvidia-cuda-runtime>=13.0,<13.1",
  "nvidia-cuda-crt": "nvidia-cuda-crt>=13.0,<13.1",
};
const ALL: Record<string, string> = { ...NEEDED, ...NEEDED_BY_JOBS, ...NEEDED_TO_COMPILE };

export interface Probe {
  version: string;
  /** Names of the tables above that are not there. */
  missing: string[];
  /** The server installed in this interpreter; false: the sources in the extension are used. */
  installed: boolean;
}

const SCRIPT = `
import importlib.metadata as m, importlib.util as u, json, shutil, sys
modules, packages = (names.split(",") for names in sys.argv[1:3])
compilers = sys.platform == "darwin" or shutil.which("nvcc") is not None
installed = {(d.metadata["Name"] or "").lower() for d in m.distributions()}
missing = [n for n in modules if u.find_spec(n) is None] + [n for n in packages if not compilers and n not in installed]
print(json.dumps({"version": "%d.%d.%d" % sys.version_info[:3], "installed": u.find_spec("cubridge_server") is not None,
                  "missing": missing}))
`;

/** Runs `argv` as Python. Rejects with a sentence when it does not start or is no Python. */
export function probe(argv: readonly string[], cwd: string): Promise<Probe> {
  const [command, ...args] = argv;
  const names = [{ ...NEEDED, ...NEEDED_BY_JOBS }, NEEDED_TO_COMPILE].map((table) => Object.keys(table).join(","));
  return new Promise((resolve, reject) => {
    if (!command) {
      reject(new Error("No Python interpreter is configured."));
      return;
    }
    execFile(command, [...args, "-c", SCRIPT, ...names], { cwd, timeout: 20_000 }, (error, stdout, stderr) => {
      if (error) {
        const last = stderr.trim().split("\n").at(-1) ?? "";
        reject(new Error(`${command} does not start: ${last || error.message}`));
        return;
      }
      try {
        resolve(JSON.parse(stdout) as Probe);
      } catch {
        reject(new Error(`${command} is not a Python interpreter.`));
      }
    });
  });
}

/** What is wrong with an interpreter for running the server, or null. */
export function problem(found: Probe): string | null {
  const [major = 0, minor = 0] = found.version.split(".").map(Number);
  if (major < 3 || (major === 3 && minor < 10)) return `Python ${found.version} is too old: CuBridge needs 3.10 or later.`;
  const missing = found.missing.filter((name) => name in NEEDED);
  return missing.length > 0 ? `Python packages are missing: ${missing.join(", ")}.` : null;
}

/** The pip arguments that install everything that is missing. */
export function install(found: Probe): string[] {
  return ["-m", "pip", "install", ...found.missing.map((name) => ALL[name] ?? name)];
}

/** `argv` as one line for a POSIX shell or, on Windows, for PowerShell's call operator. */
export function commandLine(argv: readonly string[], platform: string = process.platform): string {
  const quote = (word: string): string => (/^[\w./:=+@%-]+$/.test(word) ? word : platform === "win32" ? `'${word.replaceAll("'", "''")}'` : `'${word.replaceAll("'", `'\\''`)}'`);
  const line = argv.map(quote).join(" ");
  return platform === "win32" ? `& ${line}` : line;
}
