import assert from "node:assert/strict";
import { test } from "node:test";
import type { IrNode, IrTreeReply, JobReply, MaskReply, PipelineReply } from "../src/protocol";
import { exportedReport } from "../src/webviews/exportHtml";
import { html } from "../src/webviews/html";
import { irHead, irRows } from "../src/webviews/irHtml";
import { maskFile } from "../src/webviews/maskFile";
import { maskSvg, maskText, rowSpoken, runs } from "../src/webviews/maskSvg";
import { asList, asText, chart, verdict } from "../src/webviews/pipelineHtml";
import { laneTitles, stepSpoken } from "../src/webviews/pipelineSvg";
import { reportHtml } from "../src/webviews/reportHtml";
import { compareKeys, num } from "../src/webviews/reportTable";
import { TreeModel } from "../src/webviews/treeModel";

const node = (id: string, lines: [number, number] | null, children: IrNode[] = []): IrNode => ({
  id, title: id.slice(id.lastIndexOf("/") + 1), detail: `detail of ${id}`, phase: "softmax", lines, callee: null, children,
});
const roots = (): IrNode[] => [
  node("parameters", null, [node("parameters/0", null)]),
  node("kv_loop", [10, 40], [node("kv_loop/load", [12, 14], [node("kv_loop/load/copy", [13, 13])]), node("kv_loop/mask", [20, 20])]),
  node("epilogue", [41, 50], [node("epilogue/store", [45, 45])]),
];
const model = (): TreeModel => {
  const made = new TreeModel();
  made.update(roots());
  return made;
};
const shown = (tree: TreeModel): string[] => tree.visible().map((row) => row.node.id);

test("whatever a template is given is escaped, but HTML made by it is not", () => {
  assert.equal(html`<p title="${'a"b'}">${"<img src=x onerror=alert(1)>"}${html`<b>${"&"}</b>`}${null}${["<", html`<i></i>`]}</p>`.text,
    '<p title="a&quot;b">&lt;img src=x onerror=alert(1)&gt;<b>&amp;</b>&lt;<i></i></p>');
});

test("the caret on a statement that computes what a node stores leads to that node, a statement of a node's own comes first", () => {
  const made = new TreeModel();
  made.update([{ ...node("exp", [12, 12]), also: [[10, 10], [11, 11]] }, node("max", [11, 11])]);
  assert.ok(made.follow(10));
  assert.equal(made.selected, "exp");
  assert.ok(made.follow(11));
  assert.equal(made.selected, "max");
  assert.ok(!made.follow(13));
});

test("the keyboard walks the tree as the tree pattern says", () => {
  const tree = model();
  assert.deepEqual([tree.selected, tree.entry], [null, "parameters"]);
  assert.deepEqual(shown(tree), ["parameters", "kv_loop", "kv_loop/load", "kv_loop/load/copy", "kv_loop/mask", "epilogue", "epilogue/store"]);
  const walk: [string, string][] = [
    ["Home", "parameters"], ["ArrowRight", "parameters"], ["ArrowRight", "parameters/0"], ["ArrowLeft", "parameters"], ["End", "epilogue/store"],
    ["ArrowUp", "epilogue"], ["Home", "parameters"], ["ArrowUp", "parameters"], ["k", "kv_loop"], ["ArrowDown", "kv_loop/load"],
    ["ArrowLeft", "kv_loop/load"], ["ArrowDown", "kv_loop/mask"], ["ArrowLeft", "kv_loop"],
  ];
  for (const [key, selected] of walk) {
    assert.ok(tree.key(key), key);
    assert.equal(tree.selected, selected, key);
  }
  assert.equal(tree.key("F5"), false);
  assert.equal(tree.key("x"), false);
});

test("following the cursor takes the node with the fewest lines and opens what hides it", () => {
  const tree = model();
  tree.setOpen("kv_loop", false);
  assert.ok(tree.follow(13));
  assert.equal(tree.selected, "kv_loop/load/copy");
  assert.ok(shown(tree).includes("kv_loop/load/copy"));
  assert.equal(tree.follow(13), false);
  assert.ok(tree.follow(30));
  assert.equal(tree.selected, "kv_loop");
  assert.equal(tree.follow(99), false);
});

test("expansion and selection survive new content, and fall back to the nearest ancestor", () => {
  const tree = model();
  tree.select("kv_loop/load/copy");
  tree.setOpen("epilogue", false);
  const moved = roots();
  moved[1] = node("kv_loop", [30, 60], [node("kv_loop/load", [32, 34]), node("kv_loop/mask", [40, 40])]);
  tree.update(moved);
  assert.equal(tree.selected, "kv_loop/load");
  assert.ok(!shown(tree).includes("epilogue/store"));
  const again = new TreeModel(tree.save());
  again.update(moved);
  assert.deepEqual([again.selected, shown(again)], [tree.selected, shown(tree)]);
});

test("closing a node takes a selection inside along", () => {
  const tree = model();
  tree.select("kv_loop/load/copy");
  tree.setOpen("kv_loop", false);
  assert.equal(tree.selected, "kv_loop");
});

test("rows say level, state and place; exactly one can be reached with Tab", () => {
  const tree = model();
  const text = irRows(tree).text;
  assert.equal(text.match(/tabindex="0"/g)?.length, 1);
  assert.equal(text.match(/role="treeitem"/g)?.length, 7);
  assert.match(text, /data-id="kv_loop\/load"[^>]*aria-level="2" aria-posinset="1" aria-setsize="2" aria-expanded="true"/s);
  assert.match(text, /line <\/span>21</);
  assert.ok(!text.includes("style="));
  const reply: IrTreeReply = { state: "done", message: "", kernel: "", version: 1, stale: false, name: "<k>", summary: "s", level: "lifted", text: "", roots: roots() };
  assert.match(irHead(reply).text, /&lt;k&gt;/);
});

const step = (more: Partial<PipelineReply["steps"][number]>): PipelineReply["steps"][number] => ({
  kind: "compute", phase: "softmax", title: "online softmax", detail: ["row x"], part: "tile", tile: 0, lines: [7, 9], touches: [], ...more,
});
const pipeline = (): PipelineReply => ({
  state: "done", message: "", kernel: "file:///k.cu", version: 1, stale: false, name: "k", sizes: { Sq: 64, Sk: 256 }, flags: { causal: 0 }, tiles: 4, threads: 128, stopped: "",
  steps: [
    step({ kind: "copy", phase: "load", title: "K tile → Ks, async", part: "prologue", tile: null, touches: ["Ks[0]"] }),
    step({ kind: "wait", phase: "sync", title: "wait: all copies landed" }),
    step({ kind: "barrier", phase: "sync", title: "barrier" }),
    step({ kind: "product", phase: "scores", title: "S = Q·Kᵀ", touches: ["Ks[0]"], lines: [20, 20] }),
    step({}),
  ],
  lanes: [{ id: "Ks[0]", buffer: "Ks", title: "Ks", stretches: [
    { state: "inflight", from: 0, to: 1, holds: "K 0", written: 0 },
    { state: "landed", from: 1, to: 2, holds: "K 0", written: 0 },
    { state: "visible", from: 2, to: 5, holds: "K 0", written: 0 },
  ] }],
  faults: [],
});

test("a step is told in one sentence", () => {
  const reply = pipeline();
  assert.equal(stepSpoken(reply, 0), "K 0; K tile → Ks, async; prologue; K 0 into Ks[0]; line 8");
  assert.equal(stepSpoken(reply, 3), "S = Q·Kᵀ; KV tile 0; reads K 0 in Ks[0] (visible to all); line 21");
  assert.equal(stepSpoken(reply, 99), "");
});

test("the chart has a lane per slot and a button per step, and the list says the same", () => {
  const reply = pipeline();
  assert.deepEqual(laneTitles(reply).map((lane) => lane.title), ["copies", "Ks", "waits, barriers", "computes"]);
  const text = chart(reply, 3).text;
  assert.equal(text.match(/class="step /g)?.length, 5);
  assert.equal(text.match(/tabindex="0"/g)?.length, 1);
  assert.equal(text.match(/class="stretch /g)?.length, 3);
  assert.equal(text.match(/<circle class="read"/g)?.length, 1);
  assert.equal(asList(reply).text.match(/<li>/g)?.length, 5);
  assert.match(verdict(reply).text, /No race and no missing wait in these tiles/);
});

test("a program that could not be followed to its end is not called sound", () => {
  assert.match(verdict({ ...pipeline(), stopped: "the schedule depends on lengths" }).text, /No race or missing wait up to there/);
});

test("a fault is drawn at its step and lane, and told in the list", () => {
  const reply = pipeline();
  reply.faults = [{ code: "CB502", message: "Ks is read too early", help: "wait", lines: [20, 20], at: [{ step: 3, lane: "Ks[0]", other: 0 }, { step: 4, lane: null, other: null }] }];
  const text = chart(reply, 0).text;
  assert.equal(text.match(/class="fault-box"/g)?.length, 2);
  assert.equal(text.match(/class="fault-line"/g)?.length, 1);
  assert.match(verdict(reply).text, /data-lines="20,20".*line 21.*2 times here/s);
  assert.match(asText(reply), /4\. S = Q·Kᵀ.*\n {3}! CB502: Ks is read too early\n/);
});

const mask = (): MaskReply => ({
  state: "done", message: "", name: "k", definition: "j <= i", sizes: { Sq: 96, Sk: 96, Br: 32, Bc: 32, b: 0, h: 0 }, flags: {},
  tiles_per_cell: 1, cells: ["PEE", "FPE", "FFP"], ranges: [[0, 32], [0, 64], [0, 96]], counts: { empty: 3, full: 3, partial: 3 }, density: 0.5, notes: [],
});

test("cells of one kind are drawn together where tiles are small", () => {
  assert.deepEqual(runs("FFPE"), [{ kind: "F", from: 0, to: 2 }, { kind: "P", from: 2, to: 3 }, { kind: "E", from: 3, to: 4 }]);
  const wide = { ...mask(), cells: Array.from({ length: 128 }, () => "F".repeat(128)), ranges: [] };
  assert.equal(maskSvg(wide, 0).text.match(/class="full"/g)?.length, 128);
  assert.equal(maskSvg(mask(), -1).text.match(/class="full"/g)?.length, 3);
});

test("a row of the map in words", () => {
  assert.equal(rowSpoken(mask(), 1), "Queries 32 to 63: keys 0 to 63 visited; 1 full, 1 partial, 1 empty");
  assert.equal(rowSpoken({ ...mask(), ranges: [] }, 2), "Queries 64 to 95: 2 full, 1 partial");
  assert.equal(rowSpoken({ ...mask(), ranges: [[0, 0], [0, 0], [0, 0]] }, 0), "Queries 0 to 31: no key visited; 1 partial, 2 empty");
  assert.match(maskText(mask()), /\n▒··\n█▒·\n██▒\n/);
});

test("the map's file stands alone", () => {
  const text = maskFile(mask());
  assert.match(text, /^<svg xmlns="http:\/\/www\.w3\.org\/2000\/svg"/);
  assert.match(text, /<style>[^<]+<\/style>/);
  assert.ok(!text.includes("var(--"));
});

const report = (): JobReply => ({
  state: "done", message: "", kernel: "file:///k.cu", spec: "file:///s.py", version: 1,
  result: {
    level: "compiled", applicability: "unverified", diff: "--- a\n+++ b\n-old <x>\n+new", kernel_name: "k<1>",
    diagnostics: [{ code: "CB709", severity: "note", message: "a <b> in it", help: "do & so", span: { path: "/w/s.py", line: 4, end_line: 4 } }],
    report: {
      level: "compiled", applicability: "unverified",
      stages: [{ name: "ir", state: "passed", seconds: 1, why: "" }, { name: "simulate", state: "skipped", seconds: 0, why: "switched off" }, { name: "gpu", state: "failed", seconds: 0, why: "device lost" }],
      cases: [
        { name: "tail", level: "ir", sizes: { B: 1, Sq: 65 }, dtype: "float64", worst_o: 1e-9, worst_lse: 5e-7, tolerance: 1e-6, passed: true },
        { name: "gqa", level: "ir", sizes: { B: 1, Sq: 7 }, dtype: "float64", worst_o: "nan", tolerance: 1e-6, passed: false, counterexample: { output: "o", b: 0, h: 1, i: 2, d: 3, got: 0.25, want: "nan" } },
        { name: "whole module", level: "ir", sizes: { B: 1 }, dtype: "float16", worst_o: 2e-3, tolerance: 4e-3, passed: true },
      ],
      compiled: [{ instantiation: "k<half>", arch: "sm_80", registers: 128, spill_bytes: 16, shared_bytes: 40960, shared_limit: 166912 }],
      not_covered: { saturated: "no case" },
      power: [{ what: "an all-zero output", kind: "output", case: "tail", distance: 1, rejected: false }],
    },
  },
});

test("the report shows levels with why, failed cases first, and what is short", () => {
  const text = reportHtml("Adaptation <1>", report(), "today").text;
  assert.ok(text.includes("Adaptation &lt;1&gt;"));
  assert.match(text, /<li class="passed">.*<b>ir<\/b>/s);
  assert.match(text, /<li class="skipped">.*<b>simulated<\/b>.*switched off/s);
  assert.match(text, /<li class="failed">.*<b>gpu<\/b>.*device lost/s);
  assert.ok(text.indexOf("gqa") < text.indexOf("tail"));
  assert.match(text, /1 differ/);
  assert.match(text, /O\[b=0, h=1, i=2, d=3\]/);
  assert.match(text, /The whole module.*gives the same result: worst error 2\.0e-3/s);
  assert.match(text, /16 B/);
  assert.match(text, /not met/);
  assert.match(text, /not told apart/);
  assert.match(text, /a &lt;b&gt; in it/);
  assert.match(text, /data-path="\/w\/s\.py" data-lines="4,4"/);
  assert.match(text, /<span class="removed">-old &lt;x&gt;/);
});

test("the share of the tolerance counts the error of LSE too, and a NaN is beyond it", () => {
  const text = reportHtml("t", report(), "").text;
  assert.match(text, /data-key="Infinity"><meter[^>]*value="1"[^>]*><\/meter> ∞/);
  assert.match(text, /> 50 %</);
});

test("what a model proposed is said with its name, its host and its parts", () => {
  const asked = report();
  assert.ok(!reportHtml("t", asked, "").text.includes("Proposed by a model"));
  if (asked.result) asked.result.proposed = { model: "m<1>", host: "h:1", parts: ["opaque1"], rounds: 2, attempts: 2, prompt_tokens: 2000, reply_tokens: 200 };
  assert.match(reportHtml("t", asked, "").text, /Proposed by a model.*m&lt;1&gt;.*<code>h:1<\/code>.*<code>opaque1<\/code>.*2 attempts, 2,200 tokens/s);
});

test("a level is not shown as reached beyond the one that was", () => {
  const low = report();
  if (low.result) low.result.level = "none";
  assert.ok(!reportHtml("t", low, "").text.includes('<li class="passed">'));
});

test("the exported report needs nothing else and has nothing to press", () => {
  const text = exportedReport("t <x>", report(), "today", "body { margin: 0 }");
  assert.match(text, /^<!DOCTYPE html>/);
  assert.ok(!/<button|<script|https?:\/\/|vscode/.test(text));
  assert.ok(text.includes("<title>t &lt;x&gt;</title>"));
  assert.match(text, /<code>CB709<\/code> s\.py:5/);
  assert.ok(text.includes("<details open>"));
});

test("columns sort by number where there are numbers, and what is no number comes last", () => {
  assert.deepEqual(["10", "9", "Infinity", "-Infinity", "b", "a"].sort(compareKeys), ["-Infinity", "9", "10", "Infinity", "a", "b"]);
  assert.deepEqual([num(0.025), num(1e-7), num("nan"), num(null), num(128)].map((cell) => cell.html.text), ["0.025", "1.0e-7", "nan", "–", "128"]);
});
