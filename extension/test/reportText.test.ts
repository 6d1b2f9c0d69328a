import assert from "node:assert/strict";
import { test } from "node:test";
import type { JobReply } from "../src/protocol";
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
  assert.ok(text.includes("o[b=0, h=1, i=2, d=3] | 0.25 | nan |"));
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
