// The explain panel in the page: an explanation of a kernel, or a comparison of two.
import { comparisonHtml, explanationHtml, explanationText } from "./explainHtml";
import { html } from "./html";
import type { ToView } from "./messages";
import { connect, element, filled, onClick, render, status } from "./view";

const OLD = "The kernel changed since: lines may be off.";
const root = element("root");
render(
  root,
  html`<div class="tools" role="toolbar" aria-label="Explanation"><button id="again" type="button">Explain Again</button><button id="watch" type="button">Watch It Run</button><button id="copy" type="button">Copy as Markdown</button></div><article id="text"></article>`,
);
const view = connect<"explain", null>("explain", receive);
let copied = "";

function receive(message: ToView["explain"]): void {
  switch (message.type) {
    case "problem":
      status(message.message);
      return;
    case "pending":
      status(message.why ? `${message.why} …` : "Being read …", true);
      return;
    case "old":
      status(OLD);
      return;
    case "explanation":
      render(element("text"), explanationHtml(message.reply));
      copied = explanationText(message.reply);
      element("watch").hidden = message.reply.result?.watched ?? true;
      break;
    case "comparison":
      render(element("text"), comparisonHtml(message.reply, message.a, message.b));
      copied = element("text").innerText;
      element("watch").hidden = true;
      break;
  }
  status("");
  filled();
}

onClick(root, "[data-lines]", (target) => {
  const [first, last] = (target.dataset.lines ?? "").split(",").map(Number);
  if (first === undefined || last === undefined) return;
  view.post({ type: "reveal", lines: [first, last], focus: true, path: target.dataset.path ?? "" });
});
element("again").addEventListener("click", () => { view.post({ type: "again", watch: false }); });
element("watch").addEventListener("click", () => { view.post({ type: "again", watch: true }); });
element("copy").addEventListener("click", () => { view.post({ type: "copy", text: copied }); });
