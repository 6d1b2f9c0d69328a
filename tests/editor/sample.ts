// The workspace that the editor opens: expert kernels with their contracts and a few specs, as a user would have them.
import { cpSync, mkdirSync } from "node:fs";
import { dirname, join } from "node:path";

const FILES: Record<string, string> = {
  "flash_fwd/kernel.cu": "expert_kernels/flash_fwd_sm80/kernel.cu",
  "flash_fwd/contract.toml": "expert_kernels/flash_fwd_sm80/contract.toml",
  "scalar/kernel.cu": "expert_kernels/flash_fwd_scalar/kernel.cu",
  "scalar/contract.toml": "expert_kernels/flash_fwd_scalar/contract.toml",
  "specs/causal_bottom_right.py": "examples/causal_bottom_right.py",
  "specs/gemma2_softcap_window.py": "examples/gemma2_softcap_window.py",
  "specs/document_mask.py": "examples/document_mask.py",
  "specs/dropout.py": "tests/editor/specs/dropout.py",
};

export const ROOT = process.cwd();
export const PYTHON = process.env.CUBRIDGE_EDITOR_PYTHON ?? join(ROOT, ".venv", "bin", "python");

/** Copies the sample into `folder`. */
export function sample(folder: string): string {
  for (const [name, source] of Object.entries(FILES)) {
    mkdirSync(dirname(join(folder, name)), { recursive: true });
    cpSync(join(ROOT, source), join(folder, name));
  }
  return folder;
}
