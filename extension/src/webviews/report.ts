// The report panel in the page: tables that sort, links to the lines.
import { html } from "./html";
import type { ToView } from "./messages";
import { reportHtml } from "./reportHtml";
import { compareKeys } from "./reportTable";
import { connect, element, filled, onClick, render, status } from "./view";

const root = element("root");
render(
  root,
  html`<div class="tools" role="toolbar" aria-label="Report"><button id="export" type="button">Export as HTML</button><button id="copy" type="button">Copy as Markdown</button><button id="diff" type="button">Compare CuIR</button></div><article id="report"></article>`,
);
const view = connect<"report", null>("report", receive);

function receive(message: ToView["report"]): void {
  if (message.type === "problem") {
    status(message.message);
    return;
  }
  status("");
  filled();
  render(element("report"), reportHtml(message.title, message.reply, message.made));
  element("diff").hidden = !message.reply.result?.diff;
}

onClick(root, "th button", (button) => {
  const head = button.closest("th");
  const table = button.closest("table");
  const body = table?.tBodies[0];
  if (!head || !table || !body) return;
  const column = Number(button.dataset.column);
  const down = head.getAttribute("aria-sort") === "ascending";
  for (const other of table.querySelectorAll("th")) other.removeAttribute("aria-sort");
  head.setAttribute("aria-sort", down ? "descending" : "ascending");
  const key = (row: HTMLTableRowElement): string => row.cells[column]?.dataset.key ?? "";
  body.replaceChildren(...[...body.rows].sort((a, b) => compareKeys(key(a), key(b)) * (down ? -1 : 1)));
});
onClick(root, "[data-lines]", (target) => {
  const [first, last] = (target.dataset.lines ?? "").split(",").map(Number);
  if (first === undefined || last === undefined) return;
  view.post({ type: "reveal", lines: [first, last], focus: true, path: target.dataset.path ?? "" });
});
onClick(root, "[data-drop-in]", () => { view.post({ type: "dropIn" }); });
element("export").addEventListener("click", () => { view.post({ type: "export" }); });
element("copy").addEventListener("click", () => { view.post({ type: "copy" }); });
element("diff").addEventListener("click", () => { view.post({ type: "diff" }); });
