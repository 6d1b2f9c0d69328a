import assert from "node:assert/strict";
import { test } from "node:test";
import { type Check, failedPage, page } from "../src/doctorPage";

const check = (name: string, ok: boolean, required: boolean, fix = `install ${name}`): Check => ({ name, ok, required, detail: ok ? "1.0" : "not found", fix });

test("everything there: says so, and what it goes without", () => {
  const text = page("/venv/bin/python", "running", [check("torch", true, true), check("GPU", false, false)], null);
  assert.match(text, /\*\*Everything required is there\.\*\*/);
  assert.match(text, /\| ✓ \| torch \| 1\.0 \|/);
  assert.match(text, /\| – \| GPU \| not found \|/);
  assert.match(text, /Not required:\n\n- GPU: install GPU/);
});

test("what is missing has the one command that installs it all", () => {
  const text = page("python3", "not started", [check("torch", false, true), check("numpy", false, true)], "python3 -m pip install torch numpy");
  assert.match(text, /\*\*Missing: torch, numpy\.\*\*/);
  assert.equal(text.split("```sh").length, 2);
  assert.match(text, /```sh\npython3 -m pip install torch numpy\n```/);
});

test("without such a command each missing thing has its own", () => {
  const text = page("python3", "running", [check("NVRTC", false, true, "pip install nvrtc")], null);
  assert.match(text, /For NVRTC:\n\n```sh\npip install nvrtc\n```/);
});

test("a table cell cannot break the table", () => {
  const text = page("python3", "running", [{ ...check("x", true, true), detail: "a|b\nc" }], null);
  assert.match(text, /\| ✓ \| x \| a\\\|b c \|/);
});

test("a command is shown as it has to be typed, whatever markdown makes of its signs", () => {
  const text = page("python3", "packages are missing: tree_sitter.", [check("NVRTC", false, false, "pip install 'a==13.0.*' 'b==13.0.*'")], null);
  assert.match(text, /- NVRTC: pip install 'a==13\.0\.\\\*' 'b==13\.0\.\\\*'/);
  assert.match(text, /Server: packages are missing: tree\\_sitter\.\n/);
});

test("an interpreter that does not start gives the reason and what to set", () => {
  const text = failedPage("nowhere", "nowhere does not start: ENOENT");
  assert.match(text, /\*\*nowhere does not start: ENOENT\*\*/);
  assert.match(text, /cubridge\.interpreter/);
});
