// What the server's commands on a kernel without a spec return: check, explain, compare, contract. See protocol.ts.
import type { Finding, Place } from "./protocol";

/** What a job on a kernel without a spec gives. */
interface OwnReply<Result> {
  state: "done" | "refused" | "stale" | "cancelled" | "failed";
  message: string;
  kernel: string;
  version: number | null;
  result: Result | null;
}

/** `sentence` says how much was found. */
export interface CheckReply extends OwnReply<{ findings?: Finding[] }> {
  sentence: string;
}

export interface CodePage {
  state: "done" | "refused";
  message: string;
  text: string;
}

/** First and last line, 0-based. */
export type LinePair = [number, number];
/** How a sentence is known: read from the text, seen when its CuIR was executed, seen in the simulator, promised. */
export type Evidence = "read" | "executed" | "observed" | "contract";

/** One thing that is known, or not, of a kernel. `lead`: it belongs into the paragraph. */
export interface Sentence {
  topic: string;
  text: string;
  evidence: Evidence;
  lines: LinePair[];
  lead: boolean;
}

/** A row of the table of an explanation. */
export interface Fact {
  key: string;
  name: string;
  value: string;
  evidence: Evidence;
  lines: LinePair[];
}

/** An equation: `left` = `text`, or a continuation where `left` is empty; `line` from 0. */
export interface Equation {
  part: string;
  left: string;
  text: string;
  line: number | null;
}

/** `understood`: its function is stated; `watched`: it was run in the simulator. */
export interface Explanation {
  kernel_name: string | null;
  understood: boolean;
  title: string;
  equations: Equation[];
  sentences: Sentence[];
  facts: Fact[];
  unknown: Sentence[];
  diagnostics: Finding[];
  watched: boolean;
}

export type ExplainReply = OwnReply<Explanation>;

/** A part of the function that is another one in the two kernels. */
export interface Difference {
  part: string;
  sentence: string;
  a: string;
  b: string;
  a_lines: LinePair[];
  b_lines: LinePair[];
}

/** A difference in how the two go about it. */
export interface Change {
  key: string;
  name: string;
  a: string;
  b: string;
  a_lines: LinePair[];
  b_lines: LinePair[];
}

/** Two kernels compared; `same` is null where that could not be decided, and `why` says why. */
export interface Comparison {
  same: boolean | null;
  why: string;
  setting: string;
  semantic: Difference[];
  orchestration: Change[];
  diagnostics: Finding[];
}

export type CompareReply = OwnReply<Comparison>;

/** One thing about how a kernel is called, and where it is from. */
export interface BoundFact {
  what: string;
  value: string;
  source: string;
  where: string;
  span: Place | null;
}

/** What only the user knows; an answer is given under `subject`, or under `what` where that is empty. */
export interface Question {
  what: string;
  subject: string;
  text: string;
  candidates: string[];
  span: Place | null;
}

/** How a kernel is called. `contract` is the text of its contract.toml, null while that is not known as a whole; `exists`: one
 *  is there; `written`: its path, when it was written now; `tried`: what a run in the simulator computed with it. */
export interface Bound {
  kernel_name: string | null;
  tried: string;
  facts: BoundFact[];
  questions: Question[];
  contract: string | null;
  exists: boolean;
  written: string | null;
  diagnostics: Finding[];
}

export type ContractReply = OwnReply<Bound>;

/** The codes that have a page. */
export interface CodeList {
  codes: { code: string; title: string }[];
}
