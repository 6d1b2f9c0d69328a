// What the server's commands take and return. Kept in step with docs/lsp-extensions.md by hand; plain JSON.

export interface SpecFile {
  uri: string;
  name: string;
  entry: string;
}

export interface Stage {
  name: string;
  state: "passed" | "failed" | "skipped";
  seconds: number;
  why: string;
}

export interface Case {
  name: string;
  why?: string;
  level: string;
  sizes: Record<string, number>;
  dtype: string;
  layout?: string;
  schedule?: string;
  worst_o: number | string;
  worst_lse?: number | string | null;
  tolerance: number;
  passed: boolean;
  kept_rows?: number;
  reference?: string;
  arch?: string;
  counterexample?: { output: string; b: number; h: number; i: number; d: number | null; got: number | string; want: number | string } | null;
}

export interface Compiled {
  instantiation: string;
  arch: string;
  registers: number | null;
  spill_bytes: number | null;
  shared_bytes: number | null;
  shared_limit?: number | null;
  notes?: string[];
}

/** What one line (from 0) of the kernel did in the simulated launch; bytes are those of all CTAs. */
export interface LineCost {
  line: number;
  text: string;
  instructions: number;
  share: number;
  active: number;
  global_read: number;
  global_write: number;
  shared_read: number;
  shared_write: number;
  wavefronts: number;
  ideal_wavefronts: number;
  bank_ways: number | null;
}

export interface Cost {
  case: string;
  sizes: Record<string, number>;
  ctas: number;
  instructions: number;
  active: number;
  lines: LineCost[];
}

export interface Simulated {
  instantiation: string;
  arch: string;
  cases: string[];
  schedules: string[];
  launches: number;
  bank_conflict_ways: number | null;
  same_as?: string[];
  cost?: Cost | null;
  head_dim?: number;
  values?: Record<string, number>;
}

export interface Report {
  level: string;
  applicability: string;
  stages: Stage[];
  cases: Case[];
  compiled: Compiled[];
  simulated?: Simulated[];
  empty_rows?: { rows: number; spec: string; policy: string; kept: number } | null;
  device?: { name: string; arch: string; driver: string } | null;
  power?: Power[];
  covered?: Record<string, string>;
  not_covered?: Record<string, string>;
  seeds?: number[];
  versions?: Record<string, string>;
}

/** A wrong answer that the grid must reject; `distance` is an error of a row, as `worst_o` of a case. */
export interface Power {
  what: string;
  kind: string;
  case: string;
  distance: number | string;
  rejected: boolean;
}

/** A place in a file, lines and byte columns from 0. */
export interface Place {
  path: string;
  line: number;
  end_line: number;
}

export interface Finding {
  code: string;
  message: string;
  severity: string;
  help?: string | null;
  span?: Place | null;
}

/** A tensor that the kernel takes and the spec does not have; the caller makes it by `built_by` of the drop-in. */
export interface Derived {
  name: string;
  what: string;
  dtype: string;
  shape: string[];
  bytes: number;
  sizes: Record<string, number>;
  built_by: string | null;
}

export interface EngineResult {
  level: string;
  applicability: string;
  text?: string | null;
  diff?: string;
  /** A Python file with what the spec does before and after the attention; null where the kernel alone does it all. */
  drop_in?: string | null;
  derived?: Derived[];
  diagnostics: Finding[];
  report?: Report | null;
  bindings?: Record<string, unknown>;
  /** What a model had to do with it; null where the rules did all of it. */
  proposed?: { model: string; host: string; parts: string[]; rounds: number; attempts: number; prompt_tokens: number; reply_tokens: number } | null;
  kernel_name?: string | null;
  stages?: Stage[];
  kernel?: { path: string; name: string };
}

/** `state`: done | refused | stale | cancelled | failed. */
export interface JobReply {
  state: "done" | "refused" | "stale" | "cancelled" | "failed";
  message: string;
  kernel: string;
  spec: string;
  version: number | null;
  result: EngineResult | null;
}

export interface Position {
  line: number;
  character: number;
}

export interface Edit {
  range: { start: Position; end: Position };
  newText: string;
}

/** A further file that changes with the kernel: `base` is the text that was adapted, `name` is from the kernel's folder. */
export interface ChangedFile {
  uri: string;
  name: string;
  base: string;
  text: string;
  edits: Edit[];
}

export interface AdaptReply extends JobReply {
  delivered: "reply" | "edit" | "file" | "nothing";
  edits?: Edit[];
  files?: ChangedFile[];
  /** Name of the drop-in's file, as the header of the adapted kernel says it; "" when there is none. */
  drop_in_name?: string;
}

export interface IrReply {
  state: "done" | "refused";
  message: string;
  kernel: string;
  text: string;
  stale: boolean;
}

/** The argument of every command on a kernel. */
export interface KernelArgument {
  kernel: string;
  spec?: string;
  version?: number;
  options?: Record<string, unknown>;
}

/** The argument of a command that starts from a spec: without a kernel the user is asked for one. */
export interface SpecArgument {
  spec: string;
}

export function isSpecArgument(value: unknown): value is SpecArgument {
  return typeof value === "object" && value !== null && typeof (value as { spec?: unknown }).spec === "string";
}

/** `means` is what the lens says, "" when the spec was refused. */
export interface SpecReply {
  state: "done" | "refused" | "stale" | "cancelled" | "failed";
  message: string;
  spec: string;
  means: string;
}

/** A bundled kernel; `unfit` says why it does not fit the spec, "" when it does. */
export interface ExpertRow {
  name: string;
  summary: string;
  dtypes: string[];
  head_dims: number[];
  tiles: number[];
  gqa: boolean;
  unfit: string;
}

export interface ExpertReply {
  state: "done" | "refused" | "cancelled";
  message: string;
  kernel: string;
}

/** Lines (0-based, inclusive) of each phase; `legend` gives a phase its name. */
export interface PhasesReply {
  version: number | null;
  legend: Record<string, string>;
  marks: { phase: string; title: string; first: number; last: number }[];
}

export function isKernelArgument(value: unknown): value is KernelArgument {
  return typeof value === "object" && value !== null && typeof (value as { kernel?: unknown }).kernel === "string";
}

/** What every answer about the open kernel has; `stale` when the text changed since it was read, `span` being its first
 *  and last line and `kernels` how many the file has. */
export interface KernelReply {
  state: "done" | "refused";
  message: string;
  kernel: string;
  version: number | null;
  stale: boolean;
  span?: [number, number] | null;
  kernels?: number;
}

/** A node of the lifted program; `lines` are first and last line, 0-based. */
export interface IrNode {
  id: string;
  title: string;
  detail: string;
  phase: string;
  lines: [number, number] | null;
  callee: [number, number] | null;
  /** Further statements that compute what the node stores. */
  also?: [number, number][];
  children: IrNode[];
}

export interface IrTreeReply extends KernelReply {
  name: string;
  summary: string;
  level: string;
  text: string;
  roots: IrNode[];
}

/** CuIR of a kernel, and of the same kernel adapted: without line numbers, so that only the program differs. */
export interface IrDiffReply {
  state: "done" | "refused";
  message: string;
  kernel: string;
  before: string;
  after: string;
}

/** Something drawn over time: an operation, or neighbouring ones of one phase. */
export interface PipelineStep {
  kind: "copy" | "commit" | "wait" | "barrier" | "read" | "product" | "store" | "opaque" | "compute";
  phase: string;
  title: string;
  detail: string[];
  part: "prologue" | "tile" | "epilogue";
  tile: number | null;
  lines: [number, number] | null;
  touches: string[];
}

/** A time, from step to step, in which a slot of shared memory is in one state. */
export interface Stretch {
  state: "inflight" | "landed" | "visible";
  from: number;
  to: number;
  holds: string;
  written: number;
}

export interface Lane {
  id: string;
  buffer: string;
  title: string;
  stretches: Stretch[];
}

/** A race or a missing wait; `at` has every step where it happens, `other` being the step it collides with. */
export interface Fault {
  code: string;
  message: string;
  help: string;
  lines: [number, number] | null;
  at: { step: number; lane: string | null; other: number | null }[];
}

export interface PipelineReply extends KernelReply {
  name: string;
  sizes: Record<string, number>;
  flags: Record<string, number>;
  tiles: number;
  threads: number;
  stopped: string;
  steps: PipelineStep[];
  lanes: Lane[];
  faults: Fault[];
}

/** Which tiles of a mask are empty, full or partial. A cell of `cells` is E, F or P and stands for `tiles_per_cell`
 *  tiles in each direction; `ranges` are, per row of cells, the first key that a kernel's loop visits and the one behind
 *  the last: of a spec, which has no loop, there are none. */
export interface MaskReply {
  state: "done" | "refused" | "cancelled" | "failed";
  message: string;
  name: string;
  definition: string;
  sizes: { Sq: number; Sk: number; Br: number; Bc: number; b: number; h: number };
  flags: Record<string, number>;
  tiles_per_cell: number;
  cells: string[];
  ranges: [number, number][];
  counts: { empty: number; full: number; partial: number };
  density: number;
  notes: string[];
}
