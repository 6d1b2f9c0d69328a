// An explanation of a kernel, and a comparison of two, as HTML: sentences with links to their lines. No DOM, no editor API.
import type { Change, CompareReply, Difference, Equation, Evidence, Explanation, ExplainReply, Fact, LinePair, Sentence } from "../kernelReplies";
import { html, prose, type Html } from "./html";
import { table, type Cell } from "./reportTable";

/** What each word of evidence means, for who hovers it or hears it. */
const EVIDENCE: Record<Evidence, string> = {
  read: "follows from the text",
  executed: "seen when the program that was read was executed",
  observed: "seen when the compiled kernel ran in the simulator",
  contract: "promised by its contract",
};

/** ``88`` or ``88–94``, from 1. */
export const linesText = ([first, last]: LinePair): string => (first === last ? String(first + 1) : `${first + 1}–${last + 1}`);

function links(lines: readonly LinePair[], path = ""): Html | null {
  const buttons = lines.map((pair) => html`<button type="button" class="link" data-path="${path}" data-lines="${pair[0]},${pair[1]}" aria-label="${`line ${linesText(pair)}`}">${linesText(pair)}</button>`);
  return buttons.length > 0 ? html`<span class="lines">${buttons.flatMap((button, at) => (at > 0 ? [", ", button] : [button]))}</span>` : null;
}

const known = (evidence: Evidence): Html => html`<span class="badge evidence ${evidence}" title="${EVIDENCE[evidence]}">${evidence}</span>`;

function told(sentence: Sentence): Html {
  const where = links(sentence.lines);
  const how = sentence.evidence === "read" ? null : html`<span title="${EVIDENCE[sentence.evidence]}">${sentence.evidence}</span>`;
  const mark = how || where ? html` <span class="mark">${how}${how && where ? " · " : null}${where}</span>` : null;
  return html`<span class="sentence">${prose(sentence.text)}${mark}</span> `;
}

function listed(sentences: readonly Sentence[]): Html {
  return html`<ul class="sentences">${sentences.map((sentence) => html`<li>${told(sentence)}</li>`)}</ul>`;
}

export function explanationHtml(reply: ExplainReply): Html {
  const { result } = reply;
  if (!result) return html`<p class="notice error">${reply.message}</p>`;
  const lead = result.sentences.filter((sentence) => sentence.lead);
  const further = result.sentences.filter((sentence) => !sentence.lead);
  return html`<header><h1>${result.kernel_name ?? "Nothing was understood"}</h1><p class="summary">${titleOf(result)}</p></header>
    <p class="paragraph">${lead.map(told)}</p>${equations(result)}${
    further.length > 0 ? html`<section><h2>Further</h2>${listed(further)}</section>` : null}${unknown(result)}${facts(result.facts)}${legend(result)}`;
}

function equations({ equations: all }: Explanation): Html | null {
  return all.length > 0 ? html`<pre class="equations" tabindex="0" aria-label="The function">${aligned(all)}</pre>` : null;
}

/** Its line without its name, which stands above it. */
const titleOf = ({ title, kernel_name: name }: Explanation): string => (name && title.startsWith(`${name}: `) ? title.slice(name.length + 2) : title);

/** The equations with their equal signs below each other. */
function aligned(all: readonly Equation[]): string {
  const width = Math.max(...all.map(({ left }) => left.length));
  return all.map(({ left, text }) => `${left.padEnd(width)} ${left ? "=" : " "} ${text}`).join("\n");
}

function unknown({ unknown: all, understood }: Explanation): Html {
  const assumed = all.filter((sentence) => sentence.topic === "assumed");
  const open = all.filter((sentence) => sentence.topic !== "assumed");
  return html`${open.length > 0 ? html`<section><h2>Not known</h2>${listed(open)}</section>` : understood ? html`<p class="good">Every step of it was understood.</p>` : null}${
    assumed.length > 0 ? html`<section><h2>Assumed</h2>${listed(assumed)}</section>` : null}`;
}

const cell = (content: Html, key: string): Cell => ({ html: content, key });

function facts(all: readonly Fact[]): Html | null {
  if (all.length === 0) return null;
  const rows = all.map((fact) => [
    cell(html`${fact.name}`, fact.name),
    cell(prose(fact.value), fact.value),
    cell(known(fact.evidence), fact.evidence),
    cell(html`${links(fact.lines)}`, String(fact.lines[0]?.[0] ?? "")),
  ]);
  return html`<section><h2>How it goes about it</h2>${table("How it goes about it", ["what", "value", "how known", "lines"], rows)}</section>`;
}

function legend({ sentences, facts: rows }: Explanation): Html {
  const used = new Set<Evidence>([...sentences, ...rows].map((item) => item.evidence));
  const words = [...used].map((evidence) => html`<li>${known(evidence)} ${EVIDENCE[evidence]}</li>`);
  return html`<ul class="legend" aria-label="How it is known">${words}</ul>`;
}

/** `a` and `b` are the paths of the two files. */
export function comparisonHtml(reply: CompareReply, a: string, b: string): Html {
  const { result } = reply;
  const names = [a, b].map((path) => path.replace(/^.*[\\/]/, ""));
  if (!result) return html`<p class="notice error">${reply.message}</p>`;
  const verdict = result.same === null ? "warning" : result.same ? "good" : "error";
  const words = { good: "They compute the same.", error: "They compute different functions.", warning: "Whether they compute the same is not known." }[verdict];
  return html`<header><h1>${names[0] ?? ""} ↔ ${names[1] ?? ""}</h1></header>
    <p><span class="verdict"><strong class="${verdict}">${words}</strong> ${prose(result.why)}${result.setting ? html` <span class="dim">(${result.setting})</span>` : null}</span></p>
    ${result.semantic.length > 0 ? html`<section><h2>What they compute</h2><ul class="findings">${result.semantic.map((one) => difference(one, a, b))}</ul></section>` : null}
    <section><h2>How they go about it</h2>${changes(result.orchestration, a, b, names)}</section>`;
}

function difference(one: Difference, a: string, b: string): Html {
  return html`<li class="finding ${one.part === "undecided" ? "warning" : "error"}"><b>${one.part}</b>: ${prose(one.sentence)}
    <br><code>${one.a}</code> ${links(one.a_lines, a)}<br><code>${one.b}</code> ${links(one.b_lines, b)}</li>`;
}

function changes(all: readonly Change[], a: string, b: string, names: readonly string[]): Html {
  if (all.length === 0) return html`<p class="good">They go about it in the same way.</p>`;
  const rows = all.map((one) => [
    cell(html`${one.name}`, one.name),
    cell(html`${prose(one.a || "–")} ${links(one.a_lines, a)}`, one.a),
    cell(html`${prose(one.b || "–")} ${links(one.b_lines, b)}`, one.b),
  ]);
  return table("How they go about it", ["what", names[0] ?? "", names[1] ?? ""], rows);
}

/** The explanation as text, for the clipboard. */
export function explanationText({ result, message }: ExplainReply): string {
  if (!result) return `${message}\n`;
  const line = (one: Sentence): string => `- ${one.text}${one.lines.length > 0 ? ` (line ${one.lines.map(linesText).join(", ")})` : ""}`;
  const lead = result.sentences.filter((one) => one.lead).map((one) => one.text).join(" ");
  const further = result.sentences.filter((one) => !one.lead).map(line);
  const unknowns = result.unknown.map(line);
  const rows = result.facts.map((fact) => `| ${fact.name} | ${fact.value.replaceAll("|", "\\|")} | ${fact.evidence} |`);
  return [
    `# ${result.kernel_name ?? ""}`, result.title, lead,
    ...(result.equations.length > 0 ? [["```", aligned(result.equations), "```"].join("\n")] : []),
    ...(further.length > 0 ? [further.join("\n")] : []),
    ...(unknowns.length > 0 ? [`## Not known\n\n${unknowns.join("\n")}`] : []),
    ...(rows.length > 0 ? [["| what | value | how known |", "| --- | --- | --- |", ...rows].join("\n")] : []),
  ].join("\n\n").concat("\n");
}
