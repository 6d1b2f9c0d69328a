// The text of the environment page. No editor API here, so that it is tested without an editor.

/** A row of `cubridge doctor --format json`. */
export interface Check {
  name: string;
  ok: boolean;
  required: boolean;
  detail: string;
  fix: string;
}

const plain = (text: string): string => text.replace(/[*_`<\\]/g, "\\$&");
const cell = (text: string): string => plain(text).replaceAll("|", "\\|").replaceAll("\n", " ");
const block = (command: string): string[] => ["```sh", command, "```", ""];

/** What was found. `mend`: the one command that installs every missing package, if any is missing. */
export function page(interpreter: string, server: string, checks: readonly Check[], mend: string | null): string {
  const missing = checks.filter((check) => !check.ok && check.required);
  const without = checks.filter((check) => !check.ok && !check.required);
  const verdict = missing.length > 0 ? `**Missing: ${missing.map((check) => check.name).join(", ")}.**` : "**Everything required is there.**";
  const lines = ["# CuBridge environment", "", verdict, "", `Python: \`${interpreter}\`. Server: ${plain(server).replace(/\.$/, "")}.`, ""];
  if (mend) lines.push("This installs what is missing:", "", ...block(mend));
  const own = mend ? [] : missing.filter((check) => check.fix);
  for (const check of own) lines.push(`For ${check.name}:`, "", ...block(check.fix));
  lines.push("| | what | found |", "| --- | --- | --- |");
  for (const check of checks) {
    const mark = check.ok ? "✓" : check.required ? "✗ missing" : "–";
    lines.push(`| ${mark} | ${cell(check.name)} | ${cell(check.detail)} |`);
  }
  lines.push("");
  if (without.length > 0) {
    lines.push("Not required:", "");
    for (const check of without) lines.push(`- ${plain(check.name)}: ${plain(check.fix)}`);
    lines.push("");
  }
  lines.push("After installing something: **CuBridge: Restart Server**, then **CuBridge: Check Environment** again.", "");
  return lines.join("\n");
}

/** No interpreter that starts, or one that breaks. */
export function failedPage(interpreter: string, reason: string): string {
  return [
    "# CuBridge environment",
    "",
    `**${reason}**`,
    "",
    `Python: \`${interpreter}\`.`,
    "",
    "Set `cubridge.interpreter` in the settings to a Python 3.10 or later, or select one in the Python extension; then run",
    "**CuBridge: Restart Server**. To make an environment for it:",
    "",
    ...block("python3 -m venv ~/cubridge-env\n~/cubridge-env/bin/python -m pip install cubridge"),
  ].join("\n");
}
