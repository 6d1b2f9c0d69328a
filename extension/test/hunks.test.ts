import assert from "node:assert/strict";
import { test } from "node:test";
import { firstHunk } from "../src/hunks";
import type { Edit } from "../src/protocol";

const edit = (from: number, to: number, newText: string): Edit => ({
  range: { start: { line: from, character: 0 }, end: { line: to, character: 0 } },
  newText,
});
const HEADER = edit(0, 0, "// cubridge: spec a.py\n// cubridge: level ir\n");

test("the diff opens at the first hunk below the report, in lines of the adapted text", () => {
  assert.equal(firstHunk([HEADER, edit(10, 11, "x\n"), edit(20, 20, "y\n")]), 12);
});

test("the order of the edits does not matter", () => {
  assert.equal(firstHunk([edit(20, 20, "y\n"), edit(10, 11, "x\n"), HEADER]), 12);
});

test("a replaced header shifts by what it grew", () => {
  assert.equal(firstHunk([edit(0, 3, "// cubridge: spec b.py\n"), edit(10, 10, "x\n")]), 8);
});

test("without another hunk it opens at the top", () => {
  assert.equal(firstHunk([HEADER]), 0);
  assert.equal(firstHunk([]), 0);
});
