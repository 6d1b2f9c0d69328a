// The pipeline panel as HTML around its picture: head, switches, findings, the selected step, and the list in words.
import type { PipelineReply } from "../protocol";
import { html, switches, type Html } from "./html";
import { laneTitles, pipelineSvg, STATES, stepFacts, stepSpoken } from "./pipelineSvg";

export function pipelineHead(reply: PipelineReply): Html {
  const sizes = ["Sq", "Sk"].map((name) => `${name} = ${reply.sizes[name] ?? "?"}`).join(", ");
  return html`<h1>${reply.name}</h1><p class="summary">First Q tile over ${reply.tiles} KV tiles (${sizes}), in the order of the program; widths are not time. ${switches(reply.flags)}</p>
    ${reply.stopped ? html`<p class="notice">Followed up to here only: ${reply.stopped}.</p>` : null}`;
}

export function verdict(reply: PipelineReply): Html {
  if (reply.faults.length === 0) {
    return html`<p class="verdict good">${reply.stopped ? "No race or missing wait up to there." : "No race and no missing wait in these tiles."}</p>`;
  }
  return html`<ul class="faults" aria-label="Findings">${reply.faults.map((fault) => html`<li class="finding error"><button type="button" class="link" data-lines="${fault.lines?.join(",")}">${
    fault.code}${fault.lines ? html` · line ${fault.lines[0] + 1}` : null}</button> ${fault.message}${fault.at.length > 1 ? ` (${fault.at.length} times here)` : ""}<br><span class="help">${fault.help}</span></li>`)}</ul>`;
}

export function chart(reply: PipelineReply, selected: number): Html {
  const titles = laneTitles(reply).map((lane) => html`<div class="lane-title"><span>${lane.title}</span><small>${lane.hint}</small></div>`);
  return html`<div class="chart"><div class="lane-titles" aria-hidden="true">${titles}</div>
    <div class="scroll" tabindex="-1">${pipelineSvg(reply, selected)}</div></div>`;
}

export function legend(): Html {
  const states = (["inflight", "landed", "visible"] as const).map((state) => html`<li><i class="key ${state}" aria-hidden="true"></i>${STATES[state]}</li>`);
  return html`<ul class="legend" aria-label="Legend">${states}<li><i class="key read" aria-hidden="true"></i>read</li><li><i class="key w" aria-hidden="true">w</i>wait for copies</li><li><i class="key b" aria-hidden="true">b</i>barrier</li><li><i class="key commit" aria-hidden="true"></i>commit</li></ul>`;
}

export function stepCard(reply: PipelineReply, selected: number): Html {
  const step = reply.steps[selected];
  if (!step) return html``;
  return html`<p class="step-title"><b>${step.title}</b> <span class="dim">${stepFacts(reply, selected)}</span></p><pre>${step.detail.join("\n")}</pre>`;
}

/** The same in words: for screen readers, for copying, for whoever prefers it. */
export function asList(reply: PipelineReply): Html {
  return html`<ol class="steps">${reply.steps.map((_, at) => html`<li><button type="button" class="link" data-go="${at}">${stepSpoken(reply, at)}</button>${
    faultsAt(reply, at).map((message) => html` <strong class="error">${message}</strong>`)}</li>`)}</ol>`;
}

function faultsAt(reply: PipelineReply, at: number): string[] {
  return reply.faults.filter((fault) => fault.at.some((place) => place.step === at)).map((fault) => `${fault.code}: ${fault.message}`);
}

export function asText(reply: PipelineReply): string {
  const steps = reply.steps.map((_, at) => [`${at + 1}. ${stepSpoken(reply, at)}`, ...faultsAt(reply, at).map((message) => `   ! ${message}`)].join("\n"));
  return `${reply.name}: pipeline of the first ${reply.tiles} KV tiles\n${steps.join("\n")}\n`;
}
