// The pipeline as SVG: time runs to the right in program order; a lane per slot of shared memory. No DOM.
import type { Fault, Lane, PipelineReply, PipelineStep, Stretch } from "../protocol";
import { html, type Html } from "./html";

/** Widths by kind, in px: what computes is wide enough for its name; nothing here is measured time. */
const WIDTH: Record<PipelineStep["kind"], number> = {
  copy: 30, commit: 10, wait: 22, barrier: 22, read: 30, product: 74, store: 46, opaque: 60, compute: 74,
};
const NARROW: Record<string, number> = { setup: 34, mask: 46 };
const LANE = 26;
const BAND = 24;
const GAP = 6;

/** Names short enough for a box of its width. */
const SHORT: Record<string, string> = { scores: "S = Q·Kᵀ", softmax: "softmax", mask: "mask", output: "O += P·V", setup: "init", store: "store", load: "load" };

interface Layout {
  reply: PipelineReply;
  x: number[];
  top: Map<string, number>;
  width: number;
  height: number;
}

const COPIES = "copies", SYNC = "sync", COMPUTE = "compute";

export interface LaneTitle { id: string; title: string; hint: string }

/** The lanes from top to bottom, with what is said beside them. */
export function laneTitles(reply: PipelineReply): LaneTitle[] {
  const all = `all ${reply.threads} threads`;
  return [
    { id: COPIES, title: "copies", hint: `issued by ${all}` },
    ...reply.lanes.map((lane) => ({ id: lane.id, title: lane.title, hint: "shared memory" })),
    { id: SYNC, title: "waits, barriers", hint: all },
    { id: COMPUTE, title: "computes", hint: all },
  ];
}

function layout(reply: PipelineReply): Layout {
  const x = [0];
  for (const step of reply.steps) {
    const width = step.kind === "compute" ? (NARROW[step.phase] ?? WIDTH.compute) : WIDTH[step.kind];
    x.push((x[x.length - 1] ?? 0) + width);
  }
  const top = new Map<string, number>();
  laneTitles(reply).forEach((lane, at) => top.set(lane.id, BAND + GAP + at * (LANE + GAP)));
  return { reply, x, top, width: (x[x.length - 1] ?? 0) + 12, height: BAND + GAP + top.size * (LANE + GAP) };
}

export function pipelineSvg(reply: PipelineReply, selected: number): Html {
  const all = layout(reply);
  return html`<svg class="timeline" width="${all.width}" height="${all.height}" viewBox="0 0 ${all.width} ${all.height}" role="group"
    aria-label="Timeline of the first ${reply.tiles} KV tiles; the list below says the same in words">
    <defs><pattern id="inflight" width="7" height="7" patternUnits="userSpaceOnUse" patternTransform="rotate(45)"><rect class="hatch" width="2.5" height="7"/></pattern></defs>
    ${bands(all)}${barriers(all)}${reply.lanes.map((lane) => stretches(all, lane))}
    ${reply.steps.map((step, at) => stepShape(all, step, at, at === selected))}${reads(all)}
    ${reply.faults.map((fault, at) => faultShapes(all, fault, at))}</svg>`;
}

function bands({ reply, x, height }: Layout): Html {
  const parts: { name: string; from: number; to: number }[] = [];
  reply.steps.forEach((step, at) => {
    const name = step.part === "tile" ? `KV tile ${step.tile ?? 0}` : step.part;
    const last = parts[parts.length - 1];
    if (last?.name === name) last.to = at + 1;
    else parts.push({ name, from: at, to: at + 1 });
  });
  return html`${parts.map(({ name, from, to }, at) => {
    const left = x[from] ?? 0, width = (x[to] ?? 0) - left;
    return html`<rect class="band${at % 2 ? " odd" : ""}" x="${left}" y="0" width="${width}" height="${height}"/>
      <text class="band-title" x="${left + 6}" y="16">${width > 50 ? name : ""}</text>`;
  })}`;
}

/** A barrier is for everybody: a line through all lanes. */
function barriers({ reply, x, height }: Layout): Html {
  const lines = reply.steps.map((step, at) => {
    const middle = ((x[at] ?? 0) + (x[at + 1] ?? 0)) / 2;
    return step.kind === "barrier" ? html`<line class="barrier" x1="${middle}" x2="${middle}" y1="${BAND}" y2="${height}"/>` : html``;
  });
  return html`${lines}`;
}

function stretches({ x, top }: Layout, lane: Lane): Html {
  const y = top.get(lane.id) ?? 0;
  return html`${lane.stretches.map((stretch) => {
    const left = x[stretch.from] ?? 0, width = (x[Math.min(stretch.to, x.length - 1)] ?? 0) - left;
    const fill = stretch.state === "inflight" ? html`<rect x="${left}" y="${y}" width="${width}" height="${LANE}" fill="url(#inflight)"/>` : null;
    const named = startsContent(lane, stretch) && width > 14;
    return html`<g class="stretch ${stretch.state}"><rect class="box" x="${left}" y="${y}" width="${width}" height="${LANE}" rx="3"/>${fill}${
      named ? html`<text x="${left + 6}" y="${y + 17}">${stretch.holds}</text>` : null}</g>`;
  })}`;
}

/** The name of what a slot holds is written once, where the copy starts. */
const startsContent = (lane: Lane, stretch: Stretch): boolean =>
  lane.stretches.find((other) => other.written === stretch.written) === stretch;

const laneOf = (step: PipelineStep): string =>
  step.kind === "copy" || step.kind === "commit" ? COPIES : step.kind === "wait" || step.kind === "barrier" ? SYNC : COMPUTE;

function stepShape({ x, top, reply }: Layout, step: PipelineStep, at: number, selected: boolean): Html {
  const left = x[at] ?? 0, width = (x[at + 1] ?? 0) - left, y = top.get(laneOf(step)) ?? 0;
  const attributes = html`class="step ${step.kind} phase-${step.phase}" data-step="${at}" role="button" tabindex="${selected ? 0 : -1}" aria-label="${stepSpoken(reply, at)}"`;
  const middle = left + width / 2;
  // A whole column can be clicked on its lane, also where the shape is small.
  const target = html`<rect class="target" x="${left}" y="${y}" width="${width}" height="${LANE}"/>`;
  switch (step.kind) {
    case "commit":
      return html`<g ${attributes}>${target}<line class="tick" x1="${middle}" x2="${middle}" y1="${y + 3}" y2="${y + LANE - 3}"/></g>`;
    case "wait":
      return html`<g ${attributes}>${target}<path class="shape" d="M${middle} ${y + 3} l10 10 l-10 10 l-10 -10 z"/><text class="small" x="${middle}" y="${y + 17}">w</text></g>`;
    case "barrier":
      return html`<g ${attributes}>${target}<rect class="shape" x="${middle - 9}" y="${y + 4}" width="18" height="18" rx="9"/><text class="small" x="${middle}" y="${y + 17}">b</text></g>`;
    default:
      return html`<g ${attributes}><rect class="shape" x="${left + 1.5}" y="${y}" width="${width - 3}" height="${LANE}" rx="3"/><text class="label" x="${middle}" y="${y + 17}">${shortName(step, reply, at)}</text></g>`;
  }
}

function shortName(step: PipelineStep, reply: PipelineReply, at: number): string {
  if (step.kind === "copy") return contentAt(reply, at) ?? "copy";
  if (step.kind === "read" || step.kind === "wait" || step.kind === "barrier" || step.kind === "commit") return step.kind;
  return SHORT[step.phase] ?? step.phase;
}

/** What a copy brings: "K 2". */
function contentAt(reply: PipelineReply, at: number): string | undefined {
  for (const lane of reply.lanes) for (const stretch of lane.stretches) if (stretch.written === at) return stretch.holds;
  return undefined;
}

/** A dot on the lane of every slot that a step reads. */
function reads({ reply, x, top }: Layout): Html {
  const dots = reply.steps.flatMap((step, at) => {
    if (step.kind === "copy") return [];
    const middle = ((x[at] ?? 0) + (x[at + 1] ?? 0)) / 2;
    return step.touches.map((lane) => html`<circle class="read" cx="${middle}" cy="${(top.get(lane) ?? 0) + LANE / 2}" r="4"/>`);
  });
  return html`${dots}`;
}

/** A frame around the place, a sign above it, and a line to the access it collides with. */
function faultShapes({ x, top, height }: Layout, fault: Fault, at: number): Html {
  return html`${fault.at.map((place) => {
    const left = x[place.step] ?? 0, width = (x[place.step + 1] ?? 0) - left;
    const y = place.lane === null ? BAND : (top.get(place.lane) ?? BAND);
    const middle = left + width / 2, sign = width < 50 ? left + width + 10 : left + width - 10; // beside a box that has no room for it
    const from = place.other === null ? null : ((x[place.other] ?? 0) + (x[place.other + 1] ?? 0)) / 2;
    const line = from === null ? null : html`<path class="fault-line" d="M${from} ${y + LANE / 2} L${middle} ${y + LANE / 2}"/>`;
    return html`<g class="fault" data-fault="${at}" role="img" aria-label="${fault.code}: ${fault.message}">${line}
      <rect class="fault-box" x="${left + 1}" y="${y - 2}" width="${Math.max(width - 2, 8)}" height="${place.lane === null ? height - y : LANE + 4}" rx="3"/>
      <path class="fault-sign" d="M${sign} ${y + 6} l8 14 h-16 z"/><text class="fault-mark" x="${sign}" y="${y + 18}">!</text><title>${fault.code}: ${fault.message}</title></g>`;
  })}`;
}

/** A step in one sentence, its name on the picture first. */
export function stepSpoken(reply: PipelineReply, at: number): string {
  const step = reply.steps[at];
  if (!step) return "";
  const name = shortName(step, reply, at);
  return [name, step.title === name ? "" : step.title, stepFacts(reply, at)].filter(Boolean).join("; ");
}

/** When a step is, what it moves or reads, where it is in the text. */
export function stepFacts(reply: PipelineReply, at: number): string {
  const step = reply.steps[at];
  if (!step) return "";
  const when = step.part === "tile" ? `KV tile ${step.tile ?? 0}` : step.part;
  const held = step.kind === "copy" ? "" : step.touches.map((id) => holding(reply, id, at)).filter(Boolean).join(", ");
  const content = step.kind === "copy" ? contentAt(reply, at) : undefined;
  const place = step.lines ? `line ${step.lines[0] + 1}` : "no line of its own";
  return [when, content && `${content} into ${step.touches.join(", ")}`, held && `reads ${held}`, place].filter(Boolean).join("; ");
}

/** What a slot holds at a step: "K 0 in Ks[0] (visible)". */
function holding(reply: PipelineReply, id: string, at: number): string {
  const stretch = reply.lanes.find((lane) => lane.id === id)?.stretches.find((one) => one.from <= at && at < one.to);
  return stretch ? `${stretch.holds} in ${id} (${STATES[stretch.state]})` : `${id}, which holds nothing`;
}

export const STATES: Record<Stretch["state"], string> = { inflight: "in flight", landed: "landed", visible: "visible to all" };
