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
  level: string;
  sizes: Record<string, number>;
  dtype: string;
  worst_o: number | string;
  tolerance: number;
  passed: boolean;
  counterexample?: { output: string; b: number; h: number; i: number; d: number | null; got: number | string; want: number | string } | null;
}

export interface Compiled {
  instantiation: string;
  arch: string;
  registers: number | null;
  spill_bytes: number | null;
  shared_bytes: number | null;
}

export interface Report {
  level: string;
  applicability: string;
  stages: Stage[];
  cases: Case[];
  compiled: Compiled[];
  empty_rows?: { rows: number; spec: string; policy: string; kept: number } | null;
  device?: { name: string; arch: string; driver: string } | null;
  not_covered?: Record<string, string>;
}

export interface Finding {
  code: string;
  message: string;
  severity: string;
  help?: string;
}

export interface EngineResult {
  level: string;
  applicability: string;
  text?: string | null;
  diff?: string;
  diagnostics: Finding[];
  report?: Report | null;
  bindings?: Record<string, unknown>;
  kernel_name?: string | null;
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

export interface AdaptReply extends JobReply {
  delivered: "reply" | "edit" | "file" | "nothing";
  edits?: Edit[];
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
}

export function isKernelArgument(value: unknown): value is KernelArgument {
  return typeof value === "object" && value !== null && typeof (value as { kernel?: unknown }).kernel === "string";
}
