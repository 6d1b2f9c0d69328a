// What every view does: typed messages, kept state, one place that says what happens to people who do not see it.
import type { PanelName, ToHost, ToView } from "./messages";
import type { Html } from "./html";

interface VsCode {
  postMessage(message: unknown): void;
  getState(): unknown;
  setState(state: unknown): void;
}

declare function acquireVsCodeApi(): VsCode;

export interface View<K extends PanelName, State> {
  post(message: ToHost[K]): void;
  save(state: State): void;
  readonly saved: State | undefined;
}

/** Connects the page to its host and says that it is ready. */
export function connect<K extends PanelName, State>(_panel: K, receive: (message: ToView[K]) => void): View<K, State> {
  const api = acquireVsCodeApi();
  window.addEventListener("message", (event: MessageEvent<ToView[K]>) => { receive(event.data); });
  document.body.classList.add("empty"); // until there is something to show
  // After the page's own script has run: it may use the view in `receive`.
  queueMicrotask(() => { api.postMessage({ type: "ready" }); });
  return {
    post: (message) => { api.postMessage(message); },
    save: (state) => { api.setState(state); },
    saved: api.getState() as State | undefined,
  };
}

export function element(id: string): HTMLElement {
  const found = document.getElementById(id);
  if (!found) throw new Error(`no element ${id}`);
  return found;
}

export function render(target: Element, content: Html): void {
  target.innerHTML = content.text;
}

/**
 * Whether the user is in `area`: then it has the focus again after it was drawn anew. A document's active element stays so
 * when the user goes on to an editor, where the focus must stay.
 */
export function isIn(area: HTMLElement): boolean {
  return document.hasFocus() && area.contains(document.activeElement);
}

/** Calls `run` with the closest element around a click that matches `selector`. */
export function onClick(root: HTMLElement, selector: string, run: (target: HTMLElement, event: MouseEvent) => void): void {
  root.addEventListener("click", (event) => {
    const target = event.target instanceof Element ? event.target.closest<HTMLElement>(selector) : null;
    if (target && root.contains(target)) run(target, event);
  });
}

/** The switches of a kernel as they are ticked. */
export function flagsIn(root: HTMLElement): Record<string, number> {
  const boxes = [...root.querySelectorAll<HTMLInputElement>("[data-flag]")];
  return Object.fromEntries(boxes.map((box) => [box.dataset.flag ?? "", box.checked ? 1 : 0]));
}

const PATIENCE_MS = 400; // what is done sooner is not worth a word that comes and goes
let waiting: ReturnType<typeof setTimeout> | undefined;

/** There is something to show: its tools appear with it. */
export function filled(): void {
  document.body.classList.remove("empty");
}

/** The line at the top of every view: what is wrong, or (`passing`) what will be over in a moment; empty when all is well. */
export function status(text: string, passing = false): void {
  clearTimeout(waiting);
  const show = (): void => {
    const line = element("status");
    line.textContent = text;
    line.classList.toggle("passing", passing);
    line.hidden = text === "";
    document.body.classList.toggle("stale", text !== "");
  };
  // A word that is there already changes at once.
  if (passing && text !== "" && element("status").hidden) waiting = setTimeout(show, PATIENCE_MS);
  else show();
}
