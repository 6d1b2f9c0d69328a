// How a kernel is called, as HTML: each fact with where it is from, what is still open, the contract's text. No DOM.
import type { Bound, ContractReply, Question } from "../kernelReplies";
import type { Place } from "../protocol";
import { html, prose, type Html } from "./html";
import { table, type Cell } from "./reportTable";

const cell = (content: Html, key: string): Cell => ({ html: content, key });

export function contractHtml(reply: ContractReply): Html {
  const { result } = reply;
  if (!result) return html`<p class="notice error">${reply.message}</p>`;
  return html`<header><h1>${result.kernel_name ?? "How it is called"}</h1><p class="summary">${state(result)}</p>${
    result.tried ? html`<p class="good">Tried in the simulator: ${result.tried}.</p>` : null}</header>
    ${problems(result)}${open(result.questions)}${facts(result)}${text(result)}`;
}

/** One line that says whether all is known. */
export function state({ contract, questions }: Bound): string {
  if (!contract) return "How it is called was not found out as a whole.";
  return questions.length > 0 ? "It can be called, but for what is open." : "All that calling it takes is known.";
}

function problems({ diagnostics }: Bound): Html | null {
  if (diagnostics.length === 0) return null;
  return html`<ul class="findings">${diagnostics.map((one) => html`<li class="finding ${one.severity}">${link(one.span)}<code>${one.code}</code> ${prose(one.message)}${
    one.help ? html`<br><span class="help">${prose(one.help)}</span>` : null}</li>`)}</ul>`;
}

function link(span: Place | null | undefined): Html | null {
  if (!span) return null;
  return html`<button type="button" class="link" data-path="${span.path}" data-lines="${span.line},${span.end_line}">line ${span.line + 1}</button> `;
}

function open(questions: readonly Question[]): Html | null {
  if (questions.length === 0) return null;
  return html`<section><h2>Open</h2><ul class="sentences">${questions.map((one) => html`<li>${prose(one.text)} ${link(one.span)}</li>`)}</ul>
    <p><button type="button" data-answer>Answer…</button></p></section>`;
}

function facts({ facts: all }: Bound): Html {
  const rows = all.map((one) => [
    cell(html`${one.what}`, one.what),
    cell(html`<code>${one.value}</code>`, one.value),
    cell(html`${one.where || one.source}`, one.source),
    cell(html`${link(one.span)}`, String(one.span?.line ?? "")),
  ]);
  return html`<section><h2>What is known</h2>${table("What is known", ["what", "value", "from", "line"], rows)}</section>`;
}

function text({ contract, exists }: Bound): Html | null {
  if (!contract) return null;
  const write = exists ? html`<button type="button" data-open>Open contract.toml</button>` : html`<button type="button" data-write>Write contract.toml</button>`;
  return html`<section><h2>contract.toml</h2><p>${write}</p><pre class="diff" tabindex="0">${contract}</pre></section>`;
}
