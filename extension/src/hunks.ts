// Where an adaptation begins to change the program. No editor API here, so that it is tested without an editor.
import type { Edit } from "./protocol";

/**
 * The line (from 0) of the adapted text at which the first hunk below the first line of the kernel begins: the hunk above it
 * is the comment that reports. Zero when there is no other.
 */
export function firstHunk(edits: readonly Edit[]): number {
  let shift = 0;
  for (const { range, newText } of [...edits].sort((one, other) => one.range.start.line - other.range.start.line)) {
    if (range.start.line > 0) return range.start.line + shift;
    shift += newText.split("\n").length - 1 - (range.end.line - range.start.line);
  }
  return 0;
}
