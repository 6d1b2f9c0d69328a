// The tile map of a mask as SVG, and the same in words. No DOM.
import type { MaskReply } from "../protocol";
import { html, switches, type Html } from "./html";

const SIDE = 560; // px of the longer side
const LEFT = 52, TOP = 22;
const CAPTION = 300; // room for the words below a small map
const KINDS: Record<string, string> = { F: "full", P: "partial" };
const WORDS: Record<string, string> = { E: "empty", F: "full", P: "partial" };

/** Neighbouring cells of one kind: a few rectangles instead of thousands. */
export function runs(cells: string): { kind: string; from: number; to: number }[] {
  const found: { kind: string; from: number; to: number }[] = [];
  for (let at = 0; at < cells.length; at++) {
    const kind = cells[at] ?? "E";
    const last = found[found.length - 1];
    if (last?.kind === kind) last.to = at + 1;
    else found.push({ kind, from: at, to: at + 1 });
  }
  return found;
}

export function maskSvg(reply: MaskReply, selected: number): Html {
  const rows = reply.cells.length, columns = reply.cells[0]?.length ?? 0;
  const cell = Math.min(28, SIDE / Math.max(rows, columns, 1));
  const width = columns * cell, height = rows * cell;
  const whole = LEFT + Math.max(width, CAPTION) + 8;
  return html`<svg class="map" width="${whole}" height="${TOP + height + 22}" viewBox="0 0 ${whole} ${TOP + height + 22}" role="group"
    aria-label="Tile map, ${rows} by ${columns}; the table below says the same in words">
    <g transform="translate(${LEFT} ${TOP})">${reply.cells.map((line, at) => cellRow(line, at, cell))}<rect class="frame" width="${width}" height="${height}"/>
    ${visited(reply, cell)}${reply.cells.map((_, at) => target(reply, at, width, cell, selected))}</g>
    ${axes(reply, width, height, cell)}</svg>`;
}

function cellRow(line: string, at: number, cell: number): Html {
  const gap = cell > 6 ? 0.75 : 0; // seams between tiles, where there is room for them
  const shapes = runs(line).flatMap(({ kind, from, to }) => {
    const name = KINDS[kind];
    if (!name) return [];
    // Wide cells stay separate, so that tiles can be counted.
    const pieces = gap > 0 ? Array.from({ length: to - from }, (_, n) => [from + n, 1] as const) : [[from, to - from] as const];
    return pieces.map(([x, length]) => html`<rect class="${name}" x="${round(x * cell + gap)}" y="${round(at * cell + gap)}" width="${round(length * cell - 2 * gap)}" height="${round(cell - 2 * gap)}"/>`);
  });
  return html`${shapes}`;
}

/** The outline of what the loop over KV tiles visits: down along the last keys, back up along the first. */
function visited(reply: MaskReply, cell: number): Html {
  if (reply.ranges.length === 0) return html``;
  const perKey = cell / (reply.sizes.Bc * reply.tiles_per_cell);
  const side = (key: number, at: number): string => `${round(key * perKey)} ${round(at * cell)} ${round(key * perKey)} ${round((at + 1) * cell)}`;
  const down = reply.ranges.map(([, behind], at) => side(behind, at));
  const up = reply.ranges.map(([first], at) => side(first, at).split(" ")).reverse().map(([x, top, , bottom]) => `${x} ${bottom} ${x} ${top}`);
  return html`<polygon class="range" points="${[...down, ...up].join(" ")}"/>`;
}

function target(reply: MaskReply, at: number, width: number, cell: number, chosen: number): Html {
  const selected = at === chosen, focusable = at === Math.max(chosen, 0);
  return html`<rect class="row${selected ? " selected" : ""}" data-row="${at}" role="button" tabindex="${focusable ? 0 : -1}" aria-label="${rowSpoken(reply, at)}" y="${round(at * cell)}" width="${width}" height="${round(cell)}"><title>${rowSpoken(reply, at)}</title></rect>`;
}

function axes(reply: MaskReply, width: number, height: number, cell: number): Html {
  const { Sq, Sk, Br, Bc } = reply.sizes;
  // Ticks at every so many cells, a power of two, so that round lengths stay round.
  const spaced = (room: number): number => 2 ** Math.max(0, Math.ceil(Math.log2(room / cell)));
  const across = spaced(44), along = spaced(16);
  const ticks: Html[] = [];
  for (let at = 0; at * cell < width; at += across) ticks.push(html`<text x="${round(LEFT + at * cell)}" y="${TOP - 7}">${at * Bc * reply.tiles_per_cell}</text>`);
  for (let at = 0; at * cell < height; at += along) ticks.push(html`<text x="${LEFT - 7}" y="${round(TOP + at * cell + 11)}" text-anchor="end">${at * Br * reply.tiles_per_cell}</text>`);
  return html`${ticks}<text x="${LEFT}" y="${TOP + height + 16}">keys 0 … ${Sk} to the right, queries 0 … ${Sq} down</text>`;
}

const round = (value: number): number => Number(value.toFixed(2));

/** "Queries 128 to 191: keys 0 to 191 visited; 2 full, 1 partial, 5 empty". */
export function rowSpoken(reply: MaskReply, at: number): string {
  const { Br, Sq } = reply.sizes;
  const first = at * Br * reply.tiles_per_cell, last = Math.min(first + Br * reply.tiles_per_cell, Sq) - 1;
  const cells = reply.cells[at] ?? "";
  const counts = ["F", "P", "E"].map((kind) => [kind, cells.split(kind).length - 1] as const);
  const range = reply.ranges[at];
  const keys = range ? (range[1] > range[0] ? `keys ${range[0]} to ${range[1] - 1} visited; ` : "no key visited; ") : "";
  return `Queries ${first} to ${last}: ${keys}${counts.filter(([, n]) => n > 0).map(([kind, n]) => `${n} ${WORDS[kind] ?? ""}`).join(", ")}`;
}

export function maskSummary(reply: MaskReply): Html {
  const { empty, full, partial } = reply.counts;
  const total = Math.max(empty + full + partial, 1);
  const share = (n: number): string => `${n} (${Math.round((100 * n) / total)} %)`;
  return html`<h1>${reply.name}</h1><p class="summary"><code>${reply.definition}</code>${switches(reply.flags)}</p>
    <p>${Number((100 * reply.density).toPrecision(3))} % of the scores are attended. ${total} tiles: ${share(full)} full, ${share(partial)} partial, ${share(empty)} empty.${
      reply.tiles_per_cell > 1 ? ` A cell stands for ${reply.tiles_per_cell} × ${reply.tiles_per_cell} tiles.` : ""}</p>
    ${reply.notes.map((note) => html`<p class="notice">${note}</p>`)}`;
}

export function maskList(reply: MaskReply): Html {
  return html`<ol class="steps">${reply.cells.map((_, at) => html`<li><button type="button" class="link" data-row="${at}">${rowSpoken(reply, at)}</button></li>`)}</ol>`;
}

export function maskText(reply: MaskReply): string {
  const { counts } = reply;
  const head = `${reply.name}: ${reply.definition}\ndensity ${reply.density}; ${counts.full} full, ${counts.partial} partial, ${counts.empty} empty tiles\n`;
  const picture = reply.cells.map((line) => line.replaceAll("E", "·").replaceAll("F", "█").replaceAll("P", "▒"));
  return `${head}${picture.join("\n")}\n${reply.cells.map((_, at) => rowSpoken(reply, at)).join("\n")}\n`;
}
