import assert from "node:assert/strict";
import { test } from "node:test";
import type { CompareReply, Comparison, Explanation, ExplainReply } from "../src/kernelReplies";
import { comparisonHtml, explanationHtml, explanationText, linesText } from "../src/webviews/explainHtml";

const explanation: Explanation = {
  kernel_name: "flash_fwd",
  understood: true,
  title: "causal GQA attention forward",
  equations: [{ part: "score", left: "S", text: "scale·Q·Kᵀ", line: 3 }, { part: "mask", left: "", text: "where j <= i", line: null }],
  sentences: [
    { topic: "function", text: "It computes `causal` attention.", evidence: "read", lines: [[9, 9]], lead: true },
    { topic: "tails", text: "Rows beyond Sq are not stored.", evidence: "executed", lines: [[19, 24], [30, 30]], lead: false },
  ],
  facts: [{ key: "tiles", name: "tiles", value: "Br = 64, Bc = 64 <of D>", evidence: "contract", lines: [] }],
  unknown: [],
  diagnostics: [],
  watched: false,
};
const reply = (changed: Partial<Explanation> = {}): ExplainReply => ({
  state: "done", message: "", kernel: "file:///k.cu", version: 1, result: { ...explanation, ...changed },
});

test("lines are counted from 1", () => {
  assert.deepEqual([linesText([0, 0]), linesText([9, 11])], ["1", "10–12"]);
});

test("each sentence has its evidence and leads to its lines", () => {
  const text = explanationHtml(reply()).text;
  assert.match(text, /<p class="paragraph"><span class="sentence">It computes <code>causal<\/code> attention\. <span class="mark"><span class="lines"><button[^>]*data-lines="9,9"[^>]*>10<\/button>/);
  assert.match(text, /Rows beyond Sq are not stored\. <span class="mark"><span title="seen[^>]*>executed<\/span> · <span class="lines"><button[^>]*data-lines="19,24"[^>]*>20–25<\/button>, <button[^>]*data-lines="30,30"/);
  assert.match(text, /Br = 64, Bc = 64 &lt;of D&gt;/);
  assert.match(text, /Every step of it was understood/);
  assert.match(text, /S = scale·Q·Kᵀ\n {4}where j &lt;= i<\/pre>/);
  // What is known by no sentence is not in the legend.
  assert.doesNotMatch(text, /observed/);
});

test("what is not known is said, and then nothing claims that all was understood", () => {
  const gap = { topic: "unknown", text: "One statement was not understood.", evidence: "read" as const, lines: [[4, 4] as [number, number]], lead: false };
  const text = explanationHtml(reply({ unknown: [gap] })).text;
  assert.match(text, /<h2>Not known<\/h2>.*One statement was not understood/s);
  assert.doesNotMatch(text, /Every step/);
  assert.match(explanationText(reply({ unknown: [gap] })), /## Not known\n\n- One statement was not understood\. \(line 5\)/);
});

test("a comparison keeps what is computed and how it is done apart, and leads into either file", () => {
  const result: Comparison = {
    same: false, why: "They were executed on the same inputs.", setting: "causal = 1", diagnostics: [],
    semantic: [{ part: "mask", sentence: "A masks j < i.", a: "j < i", b: "j <= i", a_lines: [[3, 3]], b_lines: [[5, 6]] }],
    orchestration: [{ key: "stages", name: "stages", a: "2", b: "", a_lines: [], b_lines: [] }],
  };
  const compared = (changed: Partial<Comparison>): string => {
    const all: CompareReply = { state: "done", message: "", kernel: "", version: null, result: { ...result, ...changed } };
    return comparisonHtml(all, "/w/a.cu", "/w/b.cu").text;
  };
  const text = compared({});
  assert.match(text, /different functions.*causal = 1.*What they compute.*<b>mask<\/b>: A masks j &lt; i\..*data-path="\/w\/a\.cu" data-lines="3,3".*data-path="\/w\/b\.cu" data-lines="5,6".*How they go about it.*stages/s);
  assert.match(compared({ same: true, semantic: [], orchestration: [] }), /They compute the same\..*in the same way/s);
  assert.match(compared({ same: null, semantic: [] }), /Whether they compute the same is not known/);
});

test("a refusal is said in place of an explanation", () => {
  const refused: ExplainReply = { state: "refused", message: "CB101: no kernel", kernel: "", version: null, result: null };
  assert.match(explanationHtml(refused).text, /CB101: no kernel/);
  assert.equal(explanationText(refused), "CB101: no kernel\n");
});
