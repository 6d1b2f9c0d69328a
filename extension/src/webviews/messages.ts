// What the extension host and its webviews say to each other: the only file that both sides share by contract.
import type { CompareReply, ContractReply, ExplainReply } from "../kernelReplies";
import type { IrTreeReply, JobReply, MaskReply, PipelineReply } from "../protocol";

export type PanelName = "ir" | "pipeline" | "mask" | "report" | "explain" | "contract";

/** First and last line, 0-based. */
export type Lines = readonly [number, number];

/** From a view: it is loaded and wants its state. */
export interface Ready { type: "ready" }
/** From a view: show these lines of the kernel; with `focus` the cursor goes there too. */
export interface Reveal { type: "reveal"; lines: Lines; focus: boolean; path?: string }
/** To a view: nothing can be shown, and why. What was shown before stays, marked. */
export interface Problem { type: "problem"; message: string }
/** To a view: newer content is on its way; `why` it takes a moment. */
export interface Pending { type: "pending"; why?: string }

export interface MaskQuestion { Sq: number; Sk: number; Br: number; Bc: number; b: number; h: number }

export interface ToView {
  ir: { type: "tree"; reply: IrTreeReply } | { type: "cursor"; line: number } | Pending | Problem;
  pipeline: { type: "timeline"; reply: PipelineReply } | { type: "cursor"; line: number } | Pending | Problem;
  mask: { type: "map"; reply: MaskReply; title: string } | Pending | Problem;
  report: { type: "report"; title: string; reply: JobReply; made: string } | Problem;
  /** `old`: the text changed since; `a` and `b` are paths. */
  explain: { type: "explanation"; reply: ExplainReply } | { type: "comparison"; reply: CompareReply; a: string; b: string } | { type: "old" } | Pending | Problem;
  contract: { type: "contract"; reply: ContractReply; old: boolean } | Problem;
}

export interface ToHost {
  ir: Ready | Reveal | { type: "copy" } | { type: "openText" };
  pipeline: Ready | Reveal | { type: "copy"; text: string } | { type: "flags"; flags: Record<string, number> };
  mask: Ready | { type: "ask"; question: MaskQuestion; flags: Record<string, number> } | { type: "copy"; text: string } | { type: "save" };
  report: Ready | Reveal | { type: "copy" } | { type: "export" } | { type: "diff" } | { type: "dropIn" };
  explain: Ready | Reveal | { type: "again"; watch: boolean } | { type: "copy"; text: string };
  contract: Ready | Reveal | { type: "answer" } | { type: "write" } | { type: "open" };
}
