// The report as Markdown: levels, stages, cases, figures. Pure text, no editor API.
import type { Case, Cost, EngineResult, JobReply, LineCost, Report, Simulated } from "./protocol";

const cell = (value: unknown): string => {
  if (value === null || value === undefined || value === "") return "–";
  const text = typeof value === "object" ? JSON.stringify(value) : typeof value === "number" || typeof value === "boolean" || typeof value === "string" ? String(value) : "?";
  return text.replaceAll("|", "\\|").replaceAll("\n", " ").replaceAll("<", "&lt;");
};

const number = (value: number | string): string => (typeof value === "number" ? value.toExponential(1) : value);

function table(head: string[], rows: unknown[][]): string {
  if (rows.length === 0) return "";
  const line = (cells: unknown[]): string => `| ${cells.map(cell).join(" | ")} |`;
  return [line(head), line(head.map(() => "---")), ...rows.map(line)].join("\n");
}

/** One row per level and dtype: how many cases, the worst error and the tolerance it is held to. */
function summary(cases: readonly Case[]): unknown[][] {
  const groups = new Map<string, Case[]>();
  for (const item of cases) {
    const key = `${item.level} ${item.dtype}`;
    groups.set(key, [...(groups.get(key) ?? []), item]);
  }
  return [...groups.values()].map((group) => {
    const errors = group.map((item) => Number(item.worst_o));
    const worst = errors.some(Number.isNaN) ? "NaN" : number(Math.max(...errors));
    const first = group[0];
    return [first?.level, first?.dtype, group.length, group.filter((item) => !item.passed).length, worst, number(first?.tolerance ?? 0)];
  });
}

function failures(cases: readonly Case[]): string {
  const rows = cases
    .filter((item) => !item.passed)
    .slice(0, 20)
    .map((item) => {
      const at = item.counterexample;
      const place = at ? `${at.output.toUpperCase()}[b=${at.b}, h=${at.h}, i=${at.i}${at.d === null ? "" : `, d=${at.d}`}]` : "";
      const sizes = Object.entries(item.sizes).map(([name, size]) => `${name}=${size}`).join(" ");
      return [item.level, item.name, sizes, item.dtype, number(item.worst_o), place, at?.got, at?.want];
    });
  const head = ["level", "case", "sizes", "dtype", "error", "first wrong element", "got", "want"];
  return rows.length > 0 ? `### Failed cases\n\n${table(head, rows)}` : "";
}

const percent = (share: number, digits: number): string => `${(100 * share).toFixed(digits)} %`;

function bytes(size: number): string {
  if (size === 0) return "";
  if (size < 1024) return `${Number(size.toPrecision(3))} B`;
  return size < 1024 * 1024 ? `${Number((size / 1024).toPrecision(3))} KiB` : `${Number((size / 1024 / 1024).toPrecision(3))} MiB`;
}

function conflicts(cost: LineCost): string {
  if (cost.bank_ways === null) return "";
  return cost.bank_ways > 1 ? `**${cost.bank_ways} ways**, ${cost.wavefronts} wavefronts for ${cost.ideal_wavefronts}` : "none";
}

const TOP_LINES = 8;

/** The lines with the most instructions, and every other one with a bank conflict. */
function costly(cost: Cost): string {
  const ordered = [...cost.lines].sort((a, b) => b.instructions - a.instructions || a.line - b.line);
  const shown = ordered.filter((one, at) => at < TOP_LINES || (one.bank_ways ?? 1) > 1);
  const rows = shown.map((one) => [
    one.line + 1,
    percent(one.share, 1),
    percent(one.active, 0),
    bytes((one.shared_read + one.shared_write) / cost.ctas),
    bytes((one.global_read + one.global_write) / cost.ctas),
    conflicts(one),
    one.text,
  ]);
  const sizes = Object.entries(cost.sizes).map(([name, size]) => `${name}=${size}`).join(" ");
  const launch = `Case ${cost.case} (${sizes}): ${cost.ctas} CTAs, ${cost.instructions} warp instructions, ${percent(cost.active, 0)} of lanes active.`;
  return `### Lines that cost\n\n${launch}\n\n${table(["line", "issued", "lanes", "shared per CTA", "global per CTA", "bank conflicts", "source"], rows)}`;
}

function simulated(all: readonly Simulated[]): string[] {
  if (all.length === 0) return [];
  const rows = all.map((one) => [
    one.instantiation,
    [one.arch, ...(one.same_as ?? []).map((arch) => `${arch} (same PTX)`)].join(", "),
    one.cases.length,
    one.launches,
    one.bank_conflict_ways === null ? "" : one.bank_conflict_ways > 1 ? `${one.bank_conflict_ways} ways` : "none",
    one.schedules.join(", "),
  ]);
  const ran = `### In the simulator\n\n${table(["instantiation", "arch", "problems", "launches", "bank conflicts", "schedules"], rows)}`;
  return [ran, ...all.flatMap((one) => (one.cost ? [costly(one.cost)] : []))];
}

function ofReport(report: Report): string[] {
  const sections = [table(["stage", "state", "seconds", "why"], report.stages.map((s) => [s.name, s.state, s.seconds.toFixed(2), s.why]))];
  const rows = summary(report.cases);
  if (rows.length > 0) sections.push(`### Compared with the spec\n\n${table(["level", "dtype", "cases", "failed", "worst error", "tolerance"], rows)}`);
  sections.push(failures(report.cases));
  if (report.compiled.length > 0) {
    const compiled = report.compiled.map((c) => [c.instantiation, c.arch, c.registers, c.spill_bytes, c.shared_bytes]);
    sections.push(`### Compiled\n\n${table(["instantiation", "arch", "registers", "spill bytes", "shared bytes"], compiled)}`);
  }
  sections.push(...simulated(report.simulated ?? []));
  if (report.empty_rows && report.empty_rows.rows > 0) {
    const empty = report.empty_rows;
    sections.push(`Rows without a key: ${empty.rows} on the grid; the spec gives ${empty.spec}, policy ${empty.policy}, kept ${empty.kept}.`);
  }
  const open = Object.entries(report.not_covered ?? {});
  if (open.length > 0) sections.push(`### Not covered\n\n${open.map(([what, why]) => `- ${cell(what)}: ${cell(why)}`).join("\n")}`);
  return sections;
}

/** What a launch needs otherwise at other head dimensions than the spec's own: a scale, as a rule. */
export function valuesElsewhere(result: EngineResult): string[] {
  const all = result.report?.simulated ?? [];
  const own = all[0]?.values ?? {};
  const lines = all.map((one) => {
    const other = Object.entries(one.values ?? {}).filter(([name, value]) => value !== own[name]);
    return other.length > 0 ? `At D = ${one.head_dim}: ${other.map(([name, value]) => `${name} = ${value}`).join(", ")}` : "";
  });
  return [...new Set(lines.filter(Boolean))];
}

/** Who proposed which parts, and what asking took. */
function proposedLine(by: NonNullable<EngineResult["proposed"]>): string {
  const took = `${by.attempts} attempt${by.attempts === 1 ? "" : "s"}, ${by.prompt_tokens + by.reply_tokens} tokens`;
  return `**Proposed by ${cell(by.model)}** at ${cell(by.host)}: ${by.parts.map((part) => `\`${cell(part)}\``).join(", ")} (${took}). The level is what the verifier found.`;
}

function ofResult(result: EngineResult): string[] {
  const sections = [`**Level ${result.level}**, ${result.applicability}.`];
  const bindings = Object.entries(result.bindings ?? {});
  if (bindings.length > 0) sections.push(`Bindings: ${bindings.map(([name, value]) => `\`${name} = ${cell(value)}\``).join(", ")}`);
  for (const line of valuesElsewhere(result)) sections.push(cell(line));
  if (result.proposed) sections.push(proposedLine(result.proposed));
  if (result.drop_in) sections.push("What the spec does around the kernel is in its drop-in, a Python file that is saved with the kernel.");
  const made = (result.derived ?? []).map((one) => [one.name, one.what, one.dtype, one.shape.join(" × "), bytes(one.bytes), one.built_by]);
  sections.push(table(["tensor", "what it is", "dtype", "shape", "at most", "made by"], made));
  if (result.report) sections.push(...ofReport(result.report));
  if (result.diagnostics.length > 0) {
    const rows = result.diagnostics.map((d) => [d.code, d.severity, d.message, d.help]);
    sections.push(`### Findings\n\n${table(["code", "severity", "what", "way out"], rows)}`);
  }
  if (result.diff) sections.push(`### Change\n\n\`\`\`\`diff\n${result.diff}\n\`\`\`\``);
  return sections;
}

export function reportMarkdown(title: string, reply: JobReply): string {
  const sections = [`# ${title}`, reply.message ? `**${cell(reply.message)}**` : "", ...(reply.result ? ofResult(reply.result) : [])];
  return `${sections.filter(Boolean).join("\n\n")}\n`;
}
