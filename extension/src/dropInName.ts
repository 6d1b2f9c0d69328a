// The name of a drop-in's file. Pure text, no editor API.

/** The name beside a kernel of this name, as the command line has it. */
export const dropInName = (kernel: string): string => `${kernel.replace(/\.[^.]*$/, "")}_drop_in.py`;

/** An adapted text whose header names the drop-in's file by another name. Only whole names in its comments change. */
export function renamed(text: string, from: string, to: string): string {
  if (from === to) return text;
  const lines = text.split("\n");
  return lines.map((line) => (line.startsWith("// cubridge:") ? line.replaceAll(` ${from};`, ` ${to};`) : line)).join("\n");
}
