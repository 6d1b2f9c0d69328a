// The report as HTML: the same for the panel and for the exported file. No DOM, no editor API.
import type { Case, Compiled, Cost, EngineResult, Finding, JobReply, LineCost, Report, Simulated, Stage } from "../protocol";
import { valuesElsewhere } from "../reportText";
import { bytes, html, prose, type Html } from "./html";
import { type Cell, num, table, text, verdict } from "./reportTable";

/** The levels in their order: what earns each, and the stages that have to pass for it. */
const LEVELS: readonly { name: string; means: string; stages: readonly string[] }[] = [
  { name: "lifted", means: "every step of the kernel was understood", stages: ["lift", "read back"] },
  { name: "ir", means: "its program equals the spec on every shape of the grid", stages: ["ir"] },
  { name: "compiled", means: "it compiles for every architecture of the contract", stages: ["compile"] },
  { name: "simulated", means: "its PTX equals the spec, with no race found", stages: ["simulate"] },
  { name: "gpu", means: "it equals the spec on a GPU", stages: ["gpu"] },
];
const MEANS: Record<string, string> = {
  verified: "Executed and equal to the spec: may be applied.",
  unverified: "Nothing contradicts it, but nothing executed it either: review before applying.",
  sketch: "Something failed: to look at only.",
};
const WHOLE_MODULE = "whole module";

export function reportHtml(title: string, reply: JobReply, made: string): Html {
  const { result } = reply;
  return html`<header class="report-head"><h1>${title}</h1><p class="dim">${made}${result?.kernel_name ? html` · <code>${result.kernel_name}</code>` : null}</p></header>
    ${reply.message ? html`<p class="notice error">${reply.message}</p>` : null}${result ? ofResult(result) : null}`;
}

function ofResult(result: EngineResult): Html {
  const { report } = result;
  const stages = report?.stages ?? result.stages ?? [];
  return html`<section class="verdict-card ${result.applicability}"><p><b class="level">${result.level}</b> <span class="badge">${result.applicability}</span></p>
    <p>${MEANS[result.applicability] ?? ""}</p></section>${proposed(result.proposed)}${ladder(result.level, stages)}${findings(result.diagnostics)}${
    dropIn(result)}${report ? ofReport(report, result) : null}${bindings(result)}${timing(stages)}${change(result.diff)}`;
}

/** What a model wrote, where it was asked and what that took: the level above is not its word. */
function proposed(by: EngineResult["proposed"]): Html | null {
  if (!by) return null;
  const attempts = `${by.attempts} attempt${by.attempts === 1 ? "" : "s"}, ${(by.prompt_tokens + by.reply_tokens).toLocaleString("en")} tokens`;
  return html`<section><h2>Proposed by a model</h2><p><b>${by.model}</b> at <code>${by.host}</code> proposed ${by.parts.map(
    (part, at) => html`${at > 0 ? ", " : ""}<code>${part}</code>`)} (${attempts}). Its text is marked in the kernel, and the level is what the verifier found.</p></section>`;
}

function ladder(level: string, stages: readonly Stage[]): Html {
  const reached = LEVELS.findIndex((item) => item.name === level);
  return html`<ol class="ladder" aria-label="Levels of verification">${LEVELS.map((item, at) => {
    const own = stages.filter((stage) => item.stages.includes(stage.name));
    const why = own.find((stage) => stage.state !== "passed")?.why ?? (own.length === 0 && at > reached ? "not reached" : "");
    const failed = own.some((stage) => stage.state === "failed");
    const state = at <= reached ? "passed" : failed ? "failed" : "skipped";
    const word = { passed: "reached", failed: "failed", skipped: "not run" }[state];
    return html`<li class="${state}"><span class="sign" aria-hidden="true">${{ passed: "✓", failed: "✗", skipped: "–" }[state]}</span><b>${item.name}</b> <span class="hidden">${word}</span><small>${
      at <= reached ? item.means : why || "not reached"}</small></li>`;
  })}</ol>`;
}

function findings(all: readonly Finding[]): Html | null {
  if (all.length === 0) return null;
  return html`<section><h2>Findings</h2><ul class="findings">${all.map((one) => html`<li class="finding ${one.severity}">${place(one)} ${prose(one.message)}${
    one.help ? html`<br><span class="help">${prose(one.help)}</span>` : null}</li>`)}</ul></section>`;
}

function place(one: Finding): Html {
  if (!one.span) return html`<code>${one.code}</code>`;
  return html`<button type="button" class="link" data-path="${one.span.path}" data-lines="${one.span.line},${one.span.end_line}"><code>${one.code}</code> ${
    one.span.path.replace(/^.*[\\/]/, "")}:${one.span.line + 1}</button>`;
}

function ofReport(report: Report, result: EngineResult): Html {
  return html`${whole(report.cases)}${cases(report.cases)}${compiled(report.compiled)}${(report.simulated ?? []).length > 0 ? simulated(report.simulated ?? [], result) : null}${
    power(report)}${emptyRows(report)}${coverage(report)}${origin(report)}`;
}

const isFailed = (item: Case): boolean => !item.passed;

/** How much of its tolerance the worst error uses; not a number counts as infinitely much. */
function used(item: Case): number {
  const errors = [item.worst_o, item.worst_lse ?? 0].map(Number);
  return errors.some(Number.isNaN) ? Infinity : Math.max(...errors) / item.tolerance;
}

function whole(all: readonly Case[]): Html | null {
  const own = all.filter((item) => item.name === WHOLE_MODULE);
  if (own.length === 0) return null;
  const good = !own.some(isFailed);
  return html`<section><h2>The whole module</h2><p class="${good ? "good" : "error"}">With the kernel in its place, the user's whole function ${
    good ? "gives the same result" : "gives another result"}: worst error ${num(Math.max(...own.map((item) => Number(item.worst_o)))).html}, tolerance ${num(own[0]?.tolerance).html}.</p></section>`;
}

/** What is not in the kernel: the Python around it, and the tensors that it makes for it. */
function dropIn(result: EngineResult): Html | null {
  const derived = result.derived ?? [];
  if (!result.drop_in && derived.length === 0) return null;
  const rows = derived.map((one): Cell[] => [
    text(one.name), text(one.what), text(one.dtype), text(one.shape.join(" × ")),
    { html: html`at most ${bytes(one.bytes)}`, key: one.bytes }, text(one.built_by ?? "the caller"),
  ]);
  const open = html`<p>The kernel is not all: what the spec does around it is in a Python file, which is saved with the kernel.</p>
    <p><button type="button" data-drop-in>Open the Drop-in</button></p>`;
  return html`<section><h2>The drop-in</h2>${result.drop_in ? open : null}${
    rows.length > 0 ? table("Tensors made for the kernel", ["name", "what it is", "dtype", "shape", "size", "made by"], rows) : null}</section>`;
}

function cases(all: readonly Case[]): Html | null {
  if (all.length === 0) return null;
  const ordered = [...all].sort((a, b) => Number(a.passed) - Number(b.passed) || used(b) - used(a));
  const failed = all.filter(isFailed).length;
  const sizes = [...new Set(all.flatMap((item) => Object.keys(item.sizes)))];
  const head = ["result", "of tolerance", "level", "case", ...sizes, "dtype", "schedule", "error of O", "error of LSE", "tolerance"];
  const rows = ordered.map((item): Cell[] => [
    verdict(item.passed, item.passed ? "equal" : "differs"),
    usedCell(item),
    text(item.level),
    { html: html`<span title="${item.why ?? ""}">${item.name}</span>`, key: item.name },
    ...sizes.map((size) => num(item.sizes[size])),
    text(item.dtype),
    text([item.schedule, item.arch].filter(Boolean).join(", ")),
    num(item.worst_o),
    num(item.worst_lse),
    num(item.tolerance),
  ]);
  return html`<section><h2>Compared with the spec</h2><p>${all.length - failed} of ${all.length} runs are equal${failed > 0 ? html`, <strong class="error">${failed} differ</strong>` : null}. Errors are relative to the scale of each row.</p>
    ${counterexamples(ordered.filter(isFailed))}${table("Shapes and errors", head, rows, "tall")}</section>`;
}

function usedCell(item: Case): Cell {
  const share = used(item);
  const label = share === Infinity ? "∞" : share > 10 ? "> 1000 %" : share === 0 ? "0" : share < 0.001 ? "< 0.1 %" : `${Number((100 * share).toPrecision(2))} %`;
  // A meter needs no style of its own, which the content policy would refuse.
  return { html: html`<meter min="0" max="1" high="0.9" value="${Math.min(share, 1)}" aria-hidden="true"></meter> ${label}`, key: share };
}

function counterexamples(failed: readonly Case[]): Html | null {
  const rows = failed.slice(0, 20).flatMap((item): Cell[][] => {
    const at = item.counterexample;
    if (!at) return [];
    const where = `${at.output.toUpperCase()}[b=${at.b}, h=${at.h}, i=${at.i}${at.d === null ? "" : `, d=${at.d}`}]`;
    return [[text(item.level), text(item.name), text(where), num(at.got), num(at.want)]];
  });
  return rows.length > 0 ? table("First wrong elements", ["level", "case", "element", "got", "want"], rows) : null;
}

function compiled(all: readonly Compiled[]): Html | null {
  if (all.length === 0) return null;
  const rows = all.map((one): Cell[] => [
    text(one.instantiation), text(one.arch), num(one.registers),
    { html: one.spill_bytes ? html`<strong class="warning">${one.spill_bytes} B</strong>` : html`${one.spill_bytes === 0 ? "none" : "–"}`, key: one.spill_bytes ?? -1 },
    { html: html`${one.shared_bytes === null ? "–" : bytes(one.shared_bytes)}`, key: one.shared_bytes ?? -1 },
    { html: html`${one.shared_limit ? bytes(one.shared_limit) : "–"}`, key: one.shared_limit ?? -1 },
  ]);
  return html`<section><h2>Compiled</h2>${table("Registers and shared memory", ["instantiation", "arch", "registers", "spills", "shared memory", "limit"], rows)}</section>`;
}

const percent = (share: number, digits: number): string => `${(100 * share).toFixed(digits)} %`;
const ways = (value: number | null): Cell => {
  if (value === null) return { html: html`–`, key: 0 };
  return { html: value > 1 ? html`<strong class="warning">${value} ways</strong>` : html`none`, key: value };
};

function simulated(all: readonly Simulated[], result: EngineResult): Html {
  const rows = all.map((one): Cell[] => [
    text(one.instantiation), text([one.arch, ...(one.same_as ?? []).map((arch) => `${arch} (same PTX)`)].join(", ")),
    num(one.cases.length), num(one.launches), ways(one.bank_conflict_ways), text(one.schedules.join(", ")),
  ]);
  return html`<section><h2>In the simulator</h2>${table("Launches", ["instantiation", "arch", "problems", "launches", "bank conflicts", "schedules"], rows)}</section>
    ${all.map((one) => (one.cost ? costly(one.cost, result) : ""))}`;
}

const TOP_LINES = 12;

function costly(cost: Cost, result: EngineResult): Html {
  // After `adapt` the lines are those of a text that is in no file yet.
  const path = typeof result.text === "string" ? undefined : result.kernel?.path;
  const ordered = [...cost.lines].sort((a, b) => b.instructions - a.instructions || a.line - b.line);
  const shown = ordered.filter((one, at) => at < TOP_LINES || (one.bank_ways ?? 1) > 1);
  const sizes = Object.entries(cost.sizes).map(([name, size]) => `${name} = ${size}`).join(", ");
  return html`<section><h2>Lines that cost</h2><p>Case ${cost.case} (${sizes}): ${cost.ctas} CTAs, ${cost.instructions} warp instructions, ${percent(cost.active, 0)} of lanes active. Lines are those of the ${path ? "kernel" : "adapted text"}.</p>
    ${table("Lines that cost", ["line", "issued", "lanes", "shared per CTA", "global per CTA", "bank conflicts", "source"], shown.map((one) => costRow(one, cost, path)))}</section>`;
}

function costRow(one: LineCost, cost: Cost, path: string | undefined): Cell[] {
  const size = (total: number): Cell => ({ html: html`${total ? bytes(total / cost.ctas) : "–"}`, key: total });
  return [
    path ? { html: html`<button type="button" class="link" data-path="${path}" data-lines="${one.line},${one.line}">${one.line + 1}</button>`, key: one.line } : num(one.line + 1),
    { html: html`<meter min="0" max="1" value="${one.share}" aria-hidden="true"></meter> ${percent(one.share, 1)}`, key: one.share },
    { html: html`${percent(one.active, 0)}`, key: one.active },
    size(one.shared_read + one.shared_write),
    size(one.global_read + one.global_write),
    ways(one.bank_ways),
    { html: html`<code>${one.text.trim()}</code>`, key: one.text },
  ];
}

function power(report: Report): Html | null {
  const all = report.power ?? [];
  if (all.length === 0) return null;
  const rows = all.map((one): Cell[] => [
    verdict(one.rejected, one.rejected ? "rejected" : "not told apart"),
    text(one.what), text(one.case), num(one.distance),
  ]);
  return html`<section><h2>Wrong answers that these shapes reject</h2>${table("Power of the grid", ["result", "wrong answer", "best case", "its error"], rows)}</section>`;
}

function emptyRows(report: Report): Html | null {
  const empty = report.empty_rows;
  if (!empty || empty.rows === 0) return null;
  return html`<p>Rows without a key: ${empty.rows} on the grid; the spec gives ${empty.spec} there, the policy is <code>${empty.policy}</code>: ${empty.kept === 0 ? "the kernel gives the same" : html`in ${empty.kept} of the compared rows, all runs together, the kernel's own value stays`}.</p>`;
}

function coverage(report: Report): Html | null {
  const covered = Object.entries(report.covered ?? {}), open = Object.entries(report.not_covered ?? {});
  if (covered.length + open.length === 0) return null;
  const rows = [
    ...open.map(([what, why]): Cell[] => [verdict(false, "not met"), text(what), text(why)]),
    ...covered.map(([what, by]): Cell[] => [verdict(true, "met"), text(what), text(by)]),
  ];
  return html`<section><h2>Conditions of this spec</h2>${table("Covered conditions", ["result", "condition", "by, or why not"], rows)}</section>`;
}

function origin(report: Report): Html | null {
  const facts = [
    report.device ? `device: ${report.device.name} (${report.device.arch}, driver ${report.device.driver})` : "",
    (report.seeds ?? []).length > 0 ? `seeds: ${(report.seeds ?? []).join(", ")}` : "",
    ...Object.entries(report.versions ?? {}).map(([name, version]) => `${name} ${version}`),
  ].filter(Boolean);
  return facts.length > 0 ? html`<p class="dim">${facts.join(" · ")}</p>` : null;
}

function bindings(result: EngineResult): Html | null {
  const all = Object.entries(result.bindings ?? {});
  if (all.length === 0) return null;
  return html`<p>The kernel takes ${all.map(([name, value], at) => html`${at > 0 ? ", " : ""}<code>${name} = ${String(value)}</code>`)}.${valuesElsewhere(result).map((line) => html` ${line}.`)}</p>`;
}

function timing(stages: readonly Stage[]): Html | null {
  if (stages.length === 0) return null;
  const rows = stages.map((stage): Cell[] => [text(stage.name), text(stage.state), { html: html`${stage.seconds.toFixed(2)} s`, key: stage.seconds }, text(stage.why)]);
  return html`<details><summary>Stages</summary>${table("Stages", ["stage", "state", "time", "why"], rows)}</details>`;
}

function change(diff: string | undefined): Html | null {
  if (!diff) return null;
  const kind = (line: string): string => (/^(\+\+\+|---|@@)/.test(line) ? "meta" : line.startsWith("+") ? "added" : line.startsWith("-") ? "removed" : "same");
  return html`<details><summary>Change</summary><pre class="diff">${diff.split("\n").map((line) => html`<span class="${kind(line)}">${line}</span>`)}</pre></details>`;
}
