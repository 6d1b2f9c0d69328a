// The IR panel as HTML: a head and the rows of the tree.
import type { IrTreeReply } from "../protocol";
import { html, type Html } from "./html";
import type { Row, TreeModel } from "./treeModel";

export function irHead(reply: IrTreeReply): Html {
  return html`<h1>${reply.name}</h1><p class="summary">${reply.summary} <span class="badge">${reply.level}</span></p>`;
}

export function irRows(model: TreeModel): Html {
  return html`${model.visible().map((row) => treeRow(row, model))}`;
}

function treeRow(row: Row, model: TreeModel): Html {
  const { node } = row;
  const folder = node.children.length > 0;
  const open = folder && model.isOpen(node);
  const selected = node.id === model.selected;
  const expanded = folder ? html`aria-expanded="${String(open)}"` : null;
  const line = node.lines ? html`<span class="line"><span class="hidden">line </span>${node.lines[0] + 1}</span>` : null;
  const twist = html`<span class="twist" aria-hidden="true">${folder ? (open ? "▾" : "▸") : ""}</span>`;
  // CSP forbids style attributes: the level is a class.
  return html`<div role="treeitem" id="row:${node.id}" data-id="${node.id}" class="row level-${Math.min(row.level, 8)}${folder ? " folder" : ""}"
    aria-level="${row.level}" aria-posinset="${row.position}" aria-setsize="${row.siblings}" ${expanded}
    aria-selected="${String(selected)}" tabindex="${node.id === model.entry ? 0 : -1}"
    ><span class="phase phase-${node.phase}" aria-hidden="true"></span><span class="words"><span class="name">${twist}<span class="title">${node.title}</span></span>
    <span class="detail">${node.detail === node.title ? "" : node.detail}</span></span> ${line}</div>`;
}
