import assert from "node:assert/strict";
import { execFileSync } from "node:child_process";
import { mkdtempSync, readFileSync, rmSync, writeFileSync } from "node:fs";
import { tmpdir } from "node:os";
import { join } from "node:path";
import { test } from "node:test";
import { commandLine, install, NEEDED, NEEDED_BY_JOBS, NEEDED_TO_COMPILE, probe, problem } from "../src/probe";

const complete = { version: "3.11.7", missing: [] as string[], installed: true };

test("a complete interpreter has no problem", () => {
  assert.equal(problem(complete), null);
});

test("an old Python is named with its version", () => {
  assert.match(problem({ ...complete, version: "3.9.18" }) ?? "", /3\.9\.18 is too old/);
  assert.equal(problem({ ...complete, version: "3.10.0" }), null);
});

test("packages the server needs are a problem, those of jobs are not", () => {
  assert.match(problem({ ...complete, missing: ["pygls", "torch"] }) ?? "", /missing: pygls\.$/);
  assert.equal(problem({ ...complete, missing: ["torch"] }), null);
});

test("the install command pins as pyproject does", () => {
  assert.deepEqual(install({ ...complete, missing: ["tree_sitter_cuda"] }), ["-m", "pip", "install", NEEDED.tree_sitter_cuda]);
});

test("every pin is the one of pyproject", () => {
  const pyproject = readFileSync("pyproject.toml", "utf8");
  for (const pin of Object.values({ ...NEEDED, ...NEEDED_BY_JOBS, ...NEEDED_TO_COMPILE })) assert.ok(pyproject.includes(`"${pin}`), pin);
});

test("an interpreter without packages lacks the compiler too, unless there is an nvcc", async () => {
  const folder = mkdtempSync(join(tmpdir(), "cubridge-probe-"));
  try {
    execFileSync("python3", ["-m", "venv", "--without-pip", folder]);
    const { PATH } = process.env;
    const missing = async (path: string): Promise<string[]> => {
      process.env.PATH = path;
      try {
        return (await probe([join(folder, "bin", "python")], ".")).missing;
      } finally {
        process.env.PATH = PATH;
      }
    };
    assert.ok((await missing("/nowhere")).includes("nvidia-cuda-nvrtc"));
    writeFileSync(join(folder, "nvcc"), "", { mode: 0o755 });
    const lacking = await missing(folder);
    assert.ok(lacking.includes("torch"));
    assert.ok(!lacking.includes("nvidia-cuda-nvrtc"));
  } finally {
    rmSync(folder, { recursive: true, force: true });
  }
});

test("words with spaces and quotes survive the shell", () => {
  assert.equal(commandLine(["/a b/python", "-c", "it's"], "linux"), `'/a b/python' -c 'it'\\''s'`);
  assert.equal(commandLine(["C:\\a b\\python.exe"], "win32"), "& 'C:\\a b\\python.exe'");
});

test("a command that does not exist and one that is no Python are told apart", async () => {
  await assert.rejects(probe(["/no/such/python"], "."), /does not start/);
  await assert.rejects(probe(["echo"], "."), /is not a Python interpreter/);
  await assert.rejects(probe([], "."), /No Python interpreter/);
});
