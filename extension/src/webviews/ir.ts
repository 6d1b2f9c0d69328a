// The IR panel in the page: a tree that the keyboard walks, in step with the source.
import type { IrTreeReply } from "../protocol";
import { html } from "./html";
import { irHead, irRows } from "./irHtml";
import type { ToView } from "./messages";
import { TreeModel } from "./treeModel";
import { connect, element, filled, isIn, onClick, render, status } from "./view";

interface Saved {
  kernel: string;
  tree: ReturnType<TreeModel["save"]>;
}

const root = element("root");
render(
  root,
  html`<header><div id="head"></div><div class="tools" role="toolbar" aria-label="CuIR">
    <button id="copy" type="button">Copy as Text</button><button id="text" type="button">Open as Text</button>
    <button id="expand" type="button">Expand All</button><button id="collapse" type="button">Collapse All</button></div></header>
    <div id="tree" role="tree" aria-label="Lifted program"></div>`,
);
const tree = element("tree");
const view = connect<"ir", Saved>("ir", receive);
let kernel = view.saved?.kernel ?? "";
let model = new TreeModel(view.saved?.tree);

function receive(message: ToView["ir"]): void {
  switch (message.type) {
    case "tree":
      show(message.reply);
      break;
    case "cursor":
      if (model.follow(message.line)) draw(false, "center");
      break;
    case "pending":
      status("Reading the kernel again…", true);
      break;
    case "problem":
      status(message.message);
      break;
  }
}

function show(reply: IrTreeReply): void {
  if (reply.kernel !== kernel) model = new TreeModel();
  kernel = reply.kernel;
  status(reply.stale ? "This is the reading before the last change." : "", true);
  filled();
  render(element("head"), irHead(reply));
  model.update(reply.roots);
  draw(isIn(tree));
}

/** Draws the rows; the row with the focus has it again afterwards. */
function draw(focus: boolean, block: "nearest" | "center" = "nearest"): void {
  render(tree, irRows(model));
  view.save({ kernel, tree: model.save() });
  const row = tree.querySelector<HTMLElement>('[tabindex="0"]');
  if (model.selected !== null) row?.scrollIntoView({ block });
  if (focus) row?.focus({ preventScroll: true });
}

function reveal(focus: boolean): void {
  const lines = model.entry === null ? null : model.find(model.entry)?.node.lines;
  if (lines) view.post({ type: "reveal", lines, focus });
}

onClick(tree, "[role=treeitem]", (row, event) => {
  const id = row.dataset.id ?? "";
  const twist = event.target instanceof Element && event.target.closest(".twist");
  const node = model.find(id)?.node;
  if (twist && node && node.children.length > 0) model.setOpen(id, !model.isOpen(node));
  else model.select(id);
  draw(true);
  if (!twist) reveal(false);
});
tree.addEventListener("dblclick", () => { reveal(true); });
tree.addEventListener("keydown", (event) => {
  if (event.ctrlKey || event.metaKey || event.altKey) return;
  if (event.key === "Enter" || event.key === " ") {
    event.preventDefault();
    reveal(event.key === "Enter");
    return;
  }
  const before = model.selected;
  if (!model.key(event.key)) return;
  event.preventDefault();
  draw(true);
  if (model.selected !== before) reveal(false);
});

element("copy").addEventListener("click", () => { view.post({ type: "copy" }); });
element("text").addEventListener("click", () => { view.post({ type: "openText" }); });
element("expand").addEventListener("click", () => { model.setAllOpen(true); draw(false); });
element("collapse").addEventListener("click", () => { model.setAllOpen(false); draw(false); });
