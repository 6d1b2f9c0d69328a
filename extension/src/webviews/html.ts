// HTML as text: every value is escaped unless it is HTML made here.

export class Html {
  constructor(readonly text: string) {}
}

type Value = Html | string | number | null | undefined | false | readonly (Html | string)[];

const ENTITIES: Record<string, string> = { "&": "&amp;", "<": "&lt;", ">": "&gt;", '"': "&quot;", "'": "&#39;" };

export const escape = (text: string): string => text.replace(/[&<>"']/g, (character) => ENTITIES[character] ?? "");

function written(value: Value): string {
  if (value instanceof Html) return value.text;
  if (value === null || value === undefined || value === false) return "";
  return typeof value === "object" ? value.map(written).join("") : escape(String(value));
}

/** A template whose holes are escaped; null, undefined and false leave nothing, lists are joined. */
export function html(parts: TemplateStringsArray, ...values: Value[]): Html {
  return new Html(parts.map((part, at) => part + written(values[at])).join(""));
}

/** A sentence of the engine: what it has between backticks is code. */
export function prose(sentence: string): Html {
  return html`${sentence.split("`").map((part, at) => (at % 2 === 1 ? html`<code>${part}</code>` : part))}`;
}

/** A number with its unit in powers of 1024. */
export function bytes(size: number): string {
  if (size < 1024) return `${Number(size.toPrecision(3))} B`;
  return size < 1024 * 1024 ? `${Number((size / 1024).toPrecision(3))} KiB` : `${Number((size / 1024 / 1024).toPrecision(3))} MiB`;
}

/** The switches of a kernel, as boxes to tick. */
export function switches(flags: Record<string, number>): Html | null {
  const boxes = Object.entries(flags).map(([name, value]) => html`<label><input type="checkbox" data-flag="${name}" ${value ? html`checked` : null}> ${name}</label>`);
  return boxes.length > 0 ? html`<span class="flags">${boxes}</span>` : null;
}
