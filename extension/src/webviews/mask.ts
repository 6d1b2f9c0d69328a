// The mask panel in the page: sizes to choose, the map, a row at a time by keyboard.
import type { MaskReply } from "../protocol";
import { html } from "./html";
import { maskList, maskSummary, maskSvg, maskText } from "./maskSvg";
import type { MaskQuestion, ToView } from "./messages";
import { connect, element, filled, flagsIn, isIn, onClick, render, status } from "./view";

const FIELDS: readonly { name: keyof MaskQuestion; title: string; min: number }[] = [
  { name: "Sq", title: "queries Sq", min: 1 },
  { name: "Sk", title: "keys Sk", min: 1 },
  { name: "Br", title: "tile Br", min: 1 },
  { name: "Bc", title: "tile Bc", min: 1 },
  { name: "b", title: "batch b", min: 0 },
  { name: "h", title: "head h", min: 0 },
];

const root = element("root");
render(
  root,
  html`<div id="head"></div><form id="sizes" class="sizes" aria-label="Sizes">${FIELDS.map(({ name, title, min }) => html`<label>${title}<input type="number" name="${name}" min="${min}" max="1048576" required></label>`)}<button type="submit">Show</button></form>
    <div id="map"></div><ul class="legend" aria-label="Legend"><li><i class="key full" aria-hidden="true"></i>full: no mask to apply</li><li><i class="key partial" aria-hidden="true"></i>partial: masked element by element</li><li><i class="key empty" aria-hidden="true"></i>empty: nothing attended</li><li id="visited"><i class="key range" aria-hidden="true"></i>visited by the loop</li></ul>
    <p id="row" aria-live="polite"></p><div class="tools" role="toolbar" aria-label="Mask"><button id="copy" type="button">Copy as Text</button><button id="save" type="button">Save Picture</button></div>
    <details><summary>The same as a list</summary><div id="list"></div></details>`,
);
const map = element("map");
const form = element("sizes") as HTMLFormElement;
const view = connect<"mask", { row: number }>("mask", receive);
let reply: MaskReply | undefined;
let row = view.saved?.row ?? -1; // none chosen

function receive(message: ToView["mask"]): void {
  if (message.type === "pending") status(message.why ? `Reading the mask: ${message.why}…` : "Reading the mask…", true);
  else if (message.type === "problem") status(message.message);
  else show(message.reply);
}

function show(next: MaskReply): void {
  reply = next;
  row = Math.min(row, next.cells.length - 1);
  status("");
  filled();
  render(element("head"), maskSummary(next));
  render(element("list"), maskList(next));
  element("visited").hidden = next.ranges.length === 0;
  for (const { name } of FIELDS) field(name).value = String(next.sizes[name]);
  draw(isIn(map));
}

const field = (name: string): HTMLInputElement => form.elements.namedItem(name) as HTMLInputElement;

function draw(focus: boolean): void {
  if (!reply) return;
  render(map, maskSvg(reply, row));
  const chosen = map.querySelector<SVGElement>(".row.selected");
  element("row").textContent = chosen?.getAttribute("aria-label") ?? "";
  if (focus) chosen?.focus();
  view.save({ row });
}

function select(at: number): void {
  if (!reply || at < 0 || at >= reply.cells.length) return;
  row = at;
  draw(true);
}

onClick(root, "[data-row]", (target) => { select(Number(target.dataset.row)); });
const MOVES: Record<string, (last: number) => number> = { ArrowDown: () => row + 1, ArrowUp: () => row - 1, Home: () => 0, End: (last) => last };
map.addEventListener("keydown", (event) => {
  const move = MOVES[event.key];
  if (!move || !reply) return;
  event.preventDefault();
  select(move(reply.cells.length - 1));
});
function ask(): void {
  const question = Object.fromEntries(FIELDS.map(({ name }) => [name, field(name).valueAsNumber])) as Record<keyof MaskQuestion, number>;
  view.post({ type: "ask", question, flags: flagsIn(root) });
}

form.addEventListener("submit", (event) => {
  event.preventDefault();
  ask();
});
root.addEventListener("change", (event) => {
  if (event.target instanceof HTMLElement && event.target.dataset.flag !== undefined) ask();
});
element("copy").addEventListener("click", () => { if (reply) view.post({ type: "copy", text: maskText(reply) }); });
element("save").addEventListener("click", () => { view.post({ type: "save" }); });
