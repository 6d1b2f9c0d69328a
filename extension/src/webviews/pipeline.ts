// The pipeline panel in the page: arrows walk in time, Enter and clicks go to the source.
import type { PipelineReply } from "../protocol";
import { html } from "./html";
import type { ToView } from "./messages";
import { asList, asText, chart, legend, pipelineHead, stepCard, verdict } from "./pipelineHtml";
import { connect, element, filled, flagsIn, isIn, onClick, render, status } from "./view";

interface Saved { selected: number }

const root = element("root");
render(
  root,
  html`<header><div id="head"></div><div class="tools" role="toolbar" aria-label="Pipeline"><button id="copy" type="button">Copy as Text</button></div></header>
    <div id="verdict"></div><div id="chart"></div>${legend()}<section id="card" aria-live="polite" aria-label="Selected step"></section>
    <details id="words"><summary>The same as a list</summary><div id="list"></div></details>`,
);
const chartArea = element("chart");
const view = connect<"pipeline", Saved>("pipeline", receive);
let reply: PipelineReply | undefined;
let selected = view.saved?.selected ?? 0;

function receive(message: ToView["pipeline"]): void {
  switch (message.type) {
    case "timeline":
      reply = message.reply;
      selected = Math.min(selected, Math.max(reply.steps.length - 1, 0));
      status(reply.stale ? "This is the reading before the last change." : "", true);
      filled();
      render(element("head"), pipelineHead(reply));
      render(element("verdict"), verdict(reply));
      render(element("list"), asList(reply));
      draw(isIn(chartArea));
      break;
    case "cursor":
      follow(message.line);
      break;
    case "pending":
      status("Reading the kernel again…", true);
      break;
    case "problem":
      status(message.message);
      break;
  }
}

function draw(focus: boolean): void {
  if (!reply) return;
  const scrolled = chartArea.querySelector(".scroll")?.scrollLeft ?? 0;
  render(chartArea, chart(reply, selected));
  render(element("card"), stepCard(reply, selected));
  view.save({ selected });
  const area = chartArea.querySelector(".scroll");
  if (area) area.scrollLeft = scrolled;
  mark(focus);
}

/** Frames the selected step and brings it into view, without drawing anything again. */
function mark(focus: boolean): void {
  for (const step of chartArea.querySelectorAll<SVGElement>(".step")) {
    const chosen = Number(step.dataset.step) === selected;
    step.classList.toggle("selected", chosen);
    step.setAttribute("tabindex", chosen ? "0" : "-1");
    if (!chosen) continue;
    if (focus) step.focus({ preventScroll: true });
    step.scrollIntoView({ block: "nearest", inline: "nearest" });
  }
}

function select(at: number, focus: boolean): void {
  if (!reply?.steps[at]) return;
  selected = at;
  view.save({ selected });
  render(element("card"), stepCard(reply, selected));
  mark(focus);
}

function follow(line: number): void {
  if (!reply) return;
  const covers = (at: number): boolean => {
    const lines = reply?.steps[at]?.lines;
    return lines !== null && lines !== undefined && lines[0] <= line && line <= lines[1];
  };
  for (const step of chartArea.querySelectorAll<SVGElement>(".step")) step.classList.toggle("here", covers(Number(step.dataset.step)));
  const first = reply.steps.findIndex((_, at) => covers(at));
  if (first >= 0 && !covers(selected)) select(first, false);
}

function reveal(focus: boolean): void {
  const lines = reply?.steps[selected]?.lines;
  if (lines) view.post({ type: "reveal", lines, focus });
}

onClick(chartArea, ".step", (step) => {
  select(Number(step.dataset.step), true);
  reveal(false);
});
chartArea.addEventListener("dblclick", () => { reveal(true); });
const STEPS: Record<string, (now: number, last: number) => number> = {
  ArrowRight: (now, last) => Math.min(now + 1, last),
  ArrowLeft: (now) => Math.max(now - 1, 0),
  Home: () => 0,
  End: (_, last) => last,
};
chartArea.addEventListener("keydown", (event) => {
  const move = STEPS[event.key];
  if (move && reply) {
    event.preventDefault();
    select(move(selected, reply.steps.length - 1), true);
    reveal(false);
  } else if (event.key === "Enter" || event.key === " ") {
    event.preventDefault();
    reveal(event.key === "Enter");
  }
});
onClick(root, "[data-go]", (target) => {
  select(Number(target.dataset.go), false);
  reveal(false);
});
onClick(root, "[data-lines]", (target) => {
  const [first, last] = (target.dataset.lines ?? "").split(",").map(Number);
  if (first !== undefined && last !== undefined && !Number.isNaN(last)) view.post({ type: "reveal", lines: [first, last], focus: true });
});
root.addEventListener("change", () => {
  view.post({ type: "flags", flags: flagsIn(root) });
});
element("copy").addEventListener("click", () => { if (reply) view.post({ type: "copy", text: asText(reply) }); });
