import assert from "node:assert/strict";
import { test } from "node:test";
import { dropInName, renamed } from "../src/dropInName";
import type { EngineResult, JobReply } from "../src/protocol";
import { reportMarkdown } from "../src/reportText";
import { reportHtml } from "../src/webviews/reportHtml";

test("a drop-in is named after the kernel that it is written beside", () => {
  assert.equal(dropInName("flash_fwd_sm80.cu"), "flash_fwd_sm80_drop_in.py");
  assert.equal(dropInName("a.b.cuh"), "a.b_drop_in.py");
});

test("the header of the adapted text names the file that was chosen, and nothing else changes", () => {
  const text = '// cubridge: build t = tiles(q, k)  (of a_drop_in.py; q is [B, H, Sq, D])\nchar* s = "of a_drop_in.py; x";\n';
  const want = '// cubridge: build t = tiles(q, k)  (of b_drop_in.py; q is [B, H, Sq, D])\nchar* s = "of a_drop_in.py; x";\n';
  assert.equal(renamed(text, "a_drop_in.py", "b_drop_in.py"), want);
  assert.equal(renamed(text, "a_drop_in.py", "a_drop_in.py"), text);
  assert.equal(renamed(text, "drop_in.py", "b.py"), text); // a part of the name is not the name
});

const result: EngineResult = {
  level: "simulated",
  applicability: "verified",
  diagnostics: [],
  drop_in: "import torch\n",
  derived: [{ name: "tiles", what: "the KV tiles <each> Q tile visits", dtype: "int32", shape: ["B", "2 + ceil(Sk / 64)"], bytes: 4096, sizes: { B: 1 }, built_by: "build_tiles" }],
};
const reply = (of: Partial<EngineResult>): JobReply => ({ state: "done", message: "", kernel: "file:///k.cu", spec: "file:///s.py", version: 1, result: { ...result, ...of } });

test("the report says that the kernel is not all, opens the drop-in, and lists what is made for the kernel", () => {
  const page = reportHtml("t", reply({}), "now").text;
  for (const words of ["<h2>The drop-in</h2>", "data-drop-in", "2 + ceil(Sk / 64)", "at most 4 KiB", "build_tiles", "&lt;each&gt;"]) assert.ok(page.includes(words), words);
  assert.ok(!reportHtml("t", reply({ drop_in: null, derived: [] }), "now").text.includes("drop-in"));
  assert.ok(!reportHtml("t", reply({ drop_in: null }), "now").text.includes("data-drop-in"));
  const markdown = reportMarkdown("t", reply({}));
  assert.ok(markdown.includes("is in its drop-in") && markdown.includes("| tiles | the KV tiles &lt;each> Q tile visits |"), markdown);
  assert.ok(!reportMarkdown("t", reply({ drop_in: null, derived: [] })).includes("drop-in"));
});
