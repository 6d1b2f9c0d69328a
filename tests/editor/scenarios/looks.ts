// Every panel in every theme, looked at by axe-core, and reached from the editor without a mouse.
import { THEMES, wear } from "../themes";
import type { Scenario, Trial } from "../trial";
import { panel, tabTo, unbearable, type Looked } from "../webviews";
import { lineOf, LATER, type Workbench } from "../workbench";

const KERNEL = "flash_fwd/kernel.cu";

/** Panel, command that opens it, and what Tab has to reach in it. */
const PANELS: readonly { name: string; command: string; content: string; reach: string }[] = [
  { name: "ir", command: "CuBridge: Show CuIR of Kernel", content: "[role=treeitem]", reach: "[role=treeitem]" },
  { name: "pipeline", command: "CuBridge: Show Pipeline of Kernel", content: "svg", reach: "summary" },
  { name: "mask", command: "CuBridge: Show Mask as Tile Map", content: "svg", reach: "button" },
];

export const looks: Scenario = {
  name: "looks",
  async run(trial: Trial): Promise<void> {
    const window = await trial.step("open a kernel", () => trial.open(KERNEL));
    await trial.step("lens over the kernel", async () => {
      await window.goTo(lineOf(window.path(KERNEL), "__global__"));
      await window.lens(KERNEL, "Adapt to…").waitFor({ timeout: LATER });
    });
    for (const { name, command, content, reach } of PANELS) {
      const frame = await trial.step(`${name} panel`, async () => {
        await window.focusEditor();
        await window.command(command);
        return panel(window.page, name, content);
      });
      await trial.step(`${name} panel by the keyboard`, async () => {
        await window.command("View: Focus Next Editor Group");
        await tabTo(window.page, frame, reach);
        await window.command("View: Focus First Editor Group");
      });
      await inAllThemes(trial, window, name, { body: `body.panel-${name}`, content });
    }
  },
};

/** A picture of the document in each theme, and what axe says of it there. */
export async function inAllThemes(trial: Trial, window: Workbench, name: string, looked: Looked): Promise<void> {
  for (const theme of THEMES) {
    await trial.step(`${name} in ${theme.name}`, async () => {
      await wear(window, theme);
      const themed = { ...looked, body: `${looked.body}[data-vscode-theme-kind="${theme.webview}"]` };
      for (const complaint of await unbearable(window.page, themed)) trial.complain(`${name} in ${theme.name}: ${complaint}`);
      await trial.picture(`${name.replaceAll(" ", "-")}-${theme.workbench}`);
    });
  }
}
