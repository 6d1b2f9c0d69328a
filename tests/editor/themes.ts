// The themes that everything has to be readable in.
import type { Workbench } from "./workbench";

export interface Theme {
  /** As the list of themes says it. */
  name: string;
  /** Class of the workbench. */
  workbench: string;
  /** What a webview calls it. */
  webview: string;
}

export const THEMES: readonly Theme[] = [
  { name: "Light Modern", workbench: "vs", webview: "vscode-light" },
  { name: "Dark Modern", workbench: "vs-dark", webview: "vscode-dark" },
  { name: "Dark High Contrast", workbench: "hc-black", webview: "vscode-high-contrast" },
  { name: "Light High Contrast", workbench: "hc-light", webview: "vscode-high-contrast-light" },
];

/** Chooses the theme as a user does. */
export async function wear(window: Workbench, theme: Theme): Promise<void> {
  await window.command("Preferences: Color Theme");
  await window.input.fill(theme.name);
  await window.page.locator(".quick-input-widget:visible .monaco-list-row.focused", { hasText: theme.name }).waitFor();
  await window.page.keyboard.press("Enter");
  await window.page.locator(`.monaco-workbench.${theme.workbench}`).waitFor();
}
