// The report as one file that needs nothing else: no script, readable in light and dark, printable.
import type { JobReply } from "../protocol";
import { html } from "./html";
import { reportHtml } from "./reportHtml";

/** A whole HTML document. `style` is the style sheet of the report (dist/webviews/report.css). */
export function exportedReport(title: string, reply: JobReply, made: string, style: string): string {
  const body = reportHtml(title, reply, made).text
    .replaceAll(/<button type="button" data-column="\d+">(.*?)<\/button>/gs, "$1") // nothing sorts without a script
    .replaceAll(/<button type="button" class="link"[^>]*>(.*?)<\/button>/gs, "$1")
    .replaceAll("<details>", "<details open>");
  const policy = "default-src 'none'; style-src 'unsafe-inline'";
  return `<!DOCTYPE html>
<html lang="en">
<head>
<meta charset="utf-8">
<meta http-equiv="Content-Security-Policy" content="${policy}">
<meta name="viewport" content="width=device-width, initial-scale=1">
<title>${html`${title}`.text}</title>
<style>
${style}
</style>
</head>
<body class="exported"><main><article>${body}</article></main></body>
</html>
`;
}
