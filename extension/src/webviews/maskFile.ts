// The tile map as a picture of its own, readable on light and dark pages.
import type { MaskReply } from "../protocol";
import { maskSvg } from "./maskSvg";

const STYLE = `svg { background: #fff; font: 11px system-ui, sans-serif; }
text { fill: #57606a; } .frame { fill: none; stroke: #d0d7de; } .full { fill: #2f6fd6; } .partial { fill: #a9c4ee; }
.range { fill: none; stroke: #c2571a; stroke-width: 1.5; } .row { fill: none; }`;

export function maskFile(reply: MaskReply): string {
  const picture = maskSvg(reply, -1).text;
  return picture.replace("<svg ", '<svg xmlns="http://www.w3.org/2000/svg" ').replace(">", `><style>${STYLE}</style>`);
}
