// The contract panel in the page: how a kernel is called.
import { contractHtml } from "./contractHtml";
import { html } from "./html";
import type { ToView } from "./messages";
import { connect, element, filled, onClick, render, status } from "./view";

const root = element("root");
render(root, html`<article id="text"></article>`);
const view = connect<"contract", null>("contract", receive);

function receive(message: ToView["contract"]): void {
  if (message.type === "problem") {
    status(message.message);
    return;
  }
  status(message.old ? "The kernel changed since: ask again." : "");
  filled();
  render(element("text"), contractHtml(message.reply));
}

onClick(root, "[data-lines]", (target) => {
  const [first, last] = (target.dataset.lines ?? "").split(",").map(Number);
  if (first === undefined || last === undefined) return;
  view.post({ type: "reveal", lines: [first, last], focus: true, path: target.dataset.path ?? "" });
});
onClick(root, "[data-answer]", () => { view.post({ type: "answer" }); });
onClick(root, "[data-write]", () => { view.post({ type: "write" }); });
onClick(root, "[data-open]", () => { view.post({ type: "open" }); });
