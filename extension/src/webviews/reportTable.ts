// Tables of the report: cells with a key to sort by.
import { html, type Html } from "./html";

export interface Cell {
  html: Html;
  key: number | string;
  /** Set where the key is a number but what is shown are words. */
  words?: true;
}

export const text = (value: string): Cell => ({ html: html`${value || "–"}`, key: value });

/** A figure: counts as they are, errors with two digits, what JSON cannot carry as its word. */
export function num(value: number | string | null | undefined): Cell {
  const shown = value === null || value === undefined ? "–" : typeof value === "string" ? value : Number.isInteger(value) ? String(value) : figure(value);
  const key = value === null || value === undefined ? -Infinity : Number.isNaN(Number(value)) ? Infinity : Number(value);
  return { html: html`${shown}`, key };
}

const figure = (value: number): string => (Math.abs(value) >= 0.01 && Math.abs(value) < 1000 ? String(Number(value.toPrecision(3))) : value.toExponential(1));

/** The word of a result, sorted by how good it is. */
export const verdict = (good: boolean, word: string): Cell => ({
  html: good ? html`<span class="good">${word}</span>` : html`<strong class="${word === "differs" ? "error" : "warning"}">${word}</strong>`,
  key: Number(good),
  words: true,
});

export function table(caption: string, head: readonly string[], rows: readonly (readonly Cell[])[], kind = ""): Html {
  const numeric = head.map((_, at) => rows.length > 0 && rows.every((row) => typeof row[at]?.key === "number" && !row[at].words));
  const side = (at: number): string => (numeric[at] ? "number" : "");
  const heads = head.map((name, at) => html`<th scope="col" class="${side(at)}"><button type="button" data-column="${at}">${name}</button></th>`);
  const body = rows.map((row) => html`<tr>${row.map((cell, at) => html`<td class="${side(at)}" data-key="${String(cell.key)}">${cell.html}</td>`)}</tr>`);
  return html`<div class="table ${kind}" tabindex="0" role="region" aria-label="${caption}"><table class="sortable"><caption class="hidden">${caption}</caption><thead><tr>${heads}</tr></thead><tbody>${body}</tbody></table></div>`;
}

/** Orders keys of a column: numbers by size, words by letter, numbers first. */
export function compareKeys(a: string, b: string): number {
  const [x, y] = [Number(a), Number(b)];
  const [isX, isY] = [a !== "" && !Number.isNaN(x), b !== "" && !Number.isNaN(y)];
  if (isX && isY) return x === y ? 0 : x < y ? -1 : 1;
  return isX === isY ? a.localeCompare(b) : isX ? -1 : 1;
}
