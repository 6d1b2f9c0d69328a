// The state of the IR tree: which nodes are open, which one is selected, what a key does. No DOM.
import type { IrNode } from "../protocol";

export interface Row {
  node: IrNode;
  level: number;
  parent: string | null;
  position: number;
  siblings: number;
}

const CLOSED_AT_FIRST = new Set(["parameters", "buffers"]);

export class TreeModel {
  private all: Row[] = [];
  /** Nodes the user closed or opened, by identity: what was never touched has its default. */
  private readonly toggled = new Map<string, boolean>();
  selected: string | null = null;

  constructor(saved?: { toggled: [string, boolean][]; selected: string | null }) {
    this.toggled = new Map(saved?.toggled);
    this.selected = saved?.selected ?? null;
  }

  save(): { toggled: [string, boolean][]; selected: string | null } {
    return { toggled: [...this.toggled], selected: this.selected };
  }

  /** New content: expansion and selection stay with the nodes that are still there. */
  update(roots: readonly IrNode[]): void {
    this.all = [];
    this.collect(roots, 1, null);
    const kept = this.selected !== null && this.find(this.selected);
    if (!kept) this.selected = this.nearest(this.selected);
  }

  isOpen(node: IrNode): boolean {
    return this.toggled.get(node.id) ?? !CLOSED_AT_FIRST.has(node.id);
  }

  setOpen(id: string, open: boolean): void {
    this.toggled.set(id, open);
    // A selection inside a node that closes moves to the node.
    if (!open && this.selected?.startsWith(`${id}/`)) this.selected = id;
  }

  setAllOpen(open: boolean): void {
    for (const row of this.all) if (row.node.children.length > 0 && (open || row.level > 1)) this.setOpen(row.node.id, open);
  }

  /** The node that Tab reaches: the selected one, the first one while none is. */
  get entry(): string | null {
    return this.selected ?? this.all[0]?.node.id ?? null;
  }

  find(id: string): Row | undefined {
    return this.all.find((row) => row.node.id === id);
  }

  visible(): Row[] {
    const hidden = new Set<string>();
    return this.all.filter((row) => {
      const shown = row.parent === null || !hidden.has(row.parent);
      if (!shown || !this.isOpen(row.node)) hidden.add(row.node.id);
      return shown;
    });
  }

  /** The node that says most about a line: the one with the fewest lines, a selected one first. Opens what hides it. */
  follow(line: number): boolean {
    const size = (row: Row): number => span(row.node, line);
    const best = this.all.filter((row) => size(row) < Infinity).sort((a, b) => size(a) - size(b))[0];
    const now = this.selected === null ? undefined : this.find(this.selected);
    if (!best || (now && size(now) === size(best))) return false;
    this.select(best.node.id);
    return true;
  }

  select(id: string): void {
    this.selected = id;
    for (let row = this.find(id); row?.parent; row = this.find(row.parent)) {
      const parent = this.find(row.parent);
      if (parent && !this.isOpen(parent.node)) this.toggled.set(parent.node.id, true);
    }
  }

  /** Moves as the tree pattern of ARIA says. True when the key was one of the tree's. */
  key(key: string): boolean {
    const rows = this.visible();
    const at = rows.findIndex((row) => row.node.id === this.entry);
    const row = rows[at];
    if (!row) return false;
    const go = (to: Row | undefined): boolean => {
      if (to) this.selected = to.node.id;
      return true;
    };
    const folder = row.node.children.length > 0;
    switch (key) {
      case "ArrowDown": return go(rows[at + 1]);
      case "ArrowUp": return go(rows[at - 1]);
      case "Home": return go(rows[0]);
      case "End": return go(rows[rows.length - 1]);
      case "ArrowRight":
        if (folder && this.isOpen(row.node)) return go(rows[at + 1]);
        if (folder) this.setOpen(row.node.id, true);
        return true;
      case "ArrowLeft":
        if (folder && this.isOpen(row.node)) this.setOpen(row.node.id, false);
        else if (row.parent !== null) this.selected = row.parent;
        return true;
      case "*":
        this.setAllOpen(true);
        return true;
      default:
        return key.length === 1 && key !== " " && this.typeAhead(rows, at, key.toLowerCase());
    }
  }

  private typeAhead(rows: readonly Row[], at: number, letter: string): boolean {
    const after = [...rows.slice(at + 1), ...rows.slice(0, at)];
    const found = after.find((row) => row.node.title.toLowerCase().startsWith(letter));
    if (found) this.selected = found.node.id;
    return found !== undefined;
  }

  private collect(nodes: readonly IrNode[], level: number, parent: string | null): void {
    nodes.forEach((node, at) => {
      this.all.push({ node, level, parent, position: at + 1, siblings: nodes.length });
      this.collect(node.children, level + 1, node.id);
    });
  }

  /** The closest ancestor of a node that went away. */
  private nearest(id: string | null): string | null {
    for (let part = id; part; part = part.includes("/") ? part.slice(0, part.lastIndexOf("/")) : "") if (this.find(part)) return part;
    return null;
  }
}

/** How many lines a node covers if `line` is one of them, else infinitely many. What only leads to a node counts after what is it. */
function span(node: IrNode, line: number): number {
  const size = (lines: [number, number] | null): number => (lines && lines[0] <= line && line <= lines[1] ? lines[1] - lines[0] : Infinity);
  return Math.min(size(node.lines), size(node.callee), ...(node.also ?? []).map((lines) => size(lines) + 0.5));
}
