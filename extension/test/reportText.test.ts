import assert from "node:assert/strict";
import { test } from "node:test";
import type { JobReply, LineCost, Simulated } from "../src/protocol";
import { reportMarkdown } from "../src/reportText";

const reply: JobReply = {
  state: "done",
  message: "",
  kernel: "file:///k.cu",
  spec: "file:///s.py",
  version: 1,
  result: {
    level: "compiled",
    applicability: "unverified",
    diff: "-a\n+b",
    diagnostics: [{ code: "CB309", severity: "note", message: "rows | kept", help: "use exact" }],
    bindings: { causal: 1 },
    report: {
      level: "compiled",
      applicability: "unverified",
      stages: [{ name: "simulate", state: "skipped", seconds: 0, why: "switched off" }],
      cases: [
        { name: "tail", level: "ir", sizes: { B: 1, Sq: 65 }, dtype: "float64", worst_o: 1e-9, tolerance: 1e-6, passed: true },
        {
          name: "gqa",
          level: "ir",
          sizes: { B: 1 },
          dtype: "float64",
          worst_o: 0.5,
          tolerance: 1e-6,
          passed: false,
          counterexample: { output: "o", b: 0, h: 1, i: 2, d: 3, got: 0.25, want: "nan" },
        },
      ],
      compiled: [{ instantiation: "k<half, 64>", arch: "sm_80", registers: 128, spill_bytes: 0, shared_bytes: 40960 }],
    },
  },
};

test("every part of a report is there", () => {
  const text = reportMarkdown("Adaptation of k.cu", reply);
  assert.match(text, /^# Adaptation of k\.cu\n\n\*\*Level compiled\*\*, unverified\./);
  assert.ok(text.includes("`causal = 1`"));
  assert.ok(text.includes("| simulate | skipped | 0.00 | switched off |"));
  assert.ok(text.includes("| ir | float64 | 2 | 1 | 5.0e-1 | 1.0e-6 |"));
  assert.ok(text.includes("O[b=0, h=1, i=2, d=3] | 0.25 | nan |"));
  assert.ok(text.includes("| k&lt;half, 64> | sm_80 | 128 | 0 | 40960 |"));
});

test("a pipe in a message does not break the table", () => {
  assert.ok(reportMarkdown("t", reply).includes("rows \\| kept"));
});

test("a NaN error is not hidden by a maximum", () => {
  assert.ok(reply.result?.report);
  const cases = reply.result.report.cases.map((item) => ({ ...item, worst_o: "nan" }));
  const report = { ...reply.result.report, cases };
  const text = reportMarkdown("t", { ...reply, result: { ...reply.result, report } });
  assert.ok(text.includes("| ir | float64 | 2 | 1 | NaN |"));
});

test("a refusal without a result shows its message", () => {
  assert.ok(reportMarkdown("t", { ...reply, state: "refused", message: "CB301: no", result: null }).includes("**CB301: no**"));
});

test("the lines that cost are the eight with the most instructions, and every one with a conflict", () => {
  assert.ok(reply.result?.report);
  const line = (n: number, more: object): LineCost => ({
    line: n, text: `line ${n + 1}`, instructions: 1000 - n, share: 0.125, active: 0.94, global_read: 0, global_write: 0,
    shared_read: 0, shared_write: 0, wavefronts: 0, ideal_wavefronts: 0, bank_ways: null, ...more,
  });
  const lines = Array.from({ length: 12 }, (_, n) => line(n, {}));
  lines[2] = line(2, { shared_read: 65536, bank_ways: 1, wavefronts: 8, ideal_wavefronts: 8 });
  lines[10] = line(10, { shared_read: 24576, bank_ways: 2, wavefronts: 16, ideal_wavefronts: 8, text: "s[i] | 1" });
  const cost = { case: "rising-max", sizes: { B: 1 }, ctas: 4, instructions: 9000, active: 0.97, lines };
  const one = { instantiation: "k<half>", arch: "sm_80", same_as: ["sm_90"], cases: ["a", "b"], schedules: ["late forward"], launches: 2, bank_conflict_ways: 2, cost };
  const text = reportMarkdown("t", { ...reply, result: { ...reply.result, report: { ...reply.result.report, simulated: [one] } } });
  assert.ok(text.includes("| k&lt;half> | sm_80, sm_90 (same PTX) | 2 | 2 | 2 ways | late forward |"));
  assert.ok(text.includes("Case rising-max (B=1): 4 CTAs, 9000 warp instructions, 97 % of lanes active."));
  assert.ok(text.includes("| 3 | 12.5 % | 94 % | 16 KiB | – | none | line 3 |"));
  assert.ok(text.includes("| 11 | 12.5 % | 94 % | 6 KiB | – | **2 ways**, 16 wavefronts for 8 | s[i] \\| 1 |"));
  assert.ok(text.includes("line 8 |"));
  assert.ok(!text.includes("line 9 |"));
});

test("values that another head dimension needs are said, and those it shares are not", () => {
  assert.ok(reply.result?.report);
  const at = (head_dim: number, scale: number): Simulated => ({
    instantiation: `k<${head_dim}>`, arch: "sm_80", cases: ["a"], schedules: [], launches: 1, bank_conflict_ways: null, head_dim,
    values: { scale, causal: 1 },
  });
  const report = { ...reply.result.report, simulated: [at(64, 0.125), at(128, 0.0625), at(128, 0.0625)] };
  const text = reportMarkdown("t", { ...reply, result: { ...reply.result, report } });
  assert.equal(text.split("At D = 128: scale = 0.0625").length, 2);
  assert.ok(!text.includes("At D = 64"));
  assert.ok(!text.includes("causal = 1\n\nAt D = 128: scale = 0.0625, causal"));
});
