import assert from "node:assert/strict";
import { test } from "node:test";
import { commandLine, install, NEEDED, probe, problem } from "../src/probe";

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

test("words with spaces and quotes survive the shell", () => {
  assert.equal(commandLine(["/a b/python", "-c", "it's"], "linux"), `'/a b/python' -c 'it'\\''s'`);
  assert.equal(commandLine(["C:\\a b\\python.exe"], "win32"), "& 'C:\\a b\\python.exe'");
});

test("a command that does not exist and one that is no Python are told apart", async () => {
  await assert.rejects(probe(["/no/such/python"], "."), /does not start/);
  await assert.rejects(probe(["echo"], "."), /is not a Python interpreter/);
  await assert.rejects(probe([], "."), /No Python interpreter/);
});
