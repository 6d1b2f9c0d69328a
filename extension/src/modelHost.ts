// Where prompts go, and the words that say so. Pure text, no editor API.

export const DEFAULT_URL = "https://api.openai.com/v1";

/** `localhost:8000` of `http://localhost:8000/v1`, as the server computes it; "" for what is no address. */
export function hostOf(baseUrl: string): string {
  const found = /^https?:\/\/(?:[^/?#@]*@)?([^/?#]+)/i.exec(baseUrl.trim() || DEFAULT_URL);
  return found?.[1] ?? "";
}

/** What a first use asks, in the detail of the dialog. */
export function consentText(model: string, host: string): string {
  return [
    `This is sent to ${host}, for the model '${model}':`,
    "• the CuIR of the kernel, and lines of it around the places that are to change;",
    "• what the spec means (not its text), and what the verifier says of each attempt.",
    "",
    "No path, no other file and no key is part of it. What comes back is compiled and executed in the simulator, and shown as a change to review; nothing is applied by itself.",
  ].join("\n");
}

/** The end of a diff's title: who proposed what, and how far it was verified. */
export function proposedBy(model: string | undefined): string {
  return model ? `, proposed by ${model}` : "";
}
