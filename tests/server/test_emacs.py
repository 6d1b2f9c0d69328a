"""The snippet of docs/editors.md in a real Emacs, in batch: hover, code actions, phases, diagnostics."""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from .conftest import SPECS, workspace

EMACS = shutil.which("emacs")
FIND_EGLOT = "(progn (package-initialize) (kill-emacs (if (require (quote eglot) nil t) 0 1)))"


def missing() -> str:
    """Why this cannot run here, '' when it can."""
    if EMACS is None:
        return "Emacs is not installed"
    found = subprocess.run([EMACS, "--batch", "-q", "--eval", FIND_EGLOT], capture_output=True, timeout=60, check=False)
    return "" if found.returncode == 0 else "this Emacs has no eglot (built in from 29 on, else the package elpa-eglot)"


# What a user does by commands, as functions and requests: the answers go to a file.
DRIVE = r"""
(setq create-lockfiles nil make-backup-files nil)
(find-file "kernel.cu")
(defun line-of (text) (goto-char (point-min)) (search-forward text) (beginning-of-line) (1- (line-number-at-pos)))
(defun wait-for (what) ; up to 60 s; processes and timers run meanwhile
  (let ((end (+ (float-time) 60)) found)
    (while (and (not (setq found (funcall what))) (< (float-time) end)) (accept-process-output nil 0.1))
    (or found (error "did not happen: %S" what))))
(apply #'eglot (eglot--guess-contact))
(let* ((server (wait-for #'eglot-current-server)) (line (line-of "for (int tile")) out)
  (defun ask (method) (jsonrpc-request server method (eglot--TextDocumentPositionParams)))
  (defun ask-hover () (ask :textDocument/hover))
  (push (cons 'mode (symbol-name major-mode)) out)
  (push (cons 'hover (plist-get (plist-get (wait-for #'ask-hover) :contents) :value)) out)
  (push (cons 'actions
              (vconcat (mapcar (lambda (one) (plist-get one :title)) (eglot-code-actions (point) (1+ (point)))))) out)
  (push (cons 'phases (prin1-to-string (eglot-imenu))) out)
  (goto-char (point-min)) (forward-line line)
  (insert "float x = = 1;\n")
  (eglot--signal-textDocument/didChange)
  (defun found-here ()
    (seq-filter (lambda (one) (= (1+ line) (line-number-at-pos (flymake-diagnostic-beg one)))) (flymake-diagnostics)))
  (push (cons 'diagnostics (vconcat (mapcar #'flymake-diagnostic-text (wait-for #'found-here)))) out)
  (with-temp-file (getenv "OUT") (insert (json-encode out)))
  (ignore-errors (eglot-shutdown server)))
(set-buffer-modified-p nil)
(kill-emacs 0)
"""


@pytest.mark.timeout(600)
def test_the_documented_snippet_gives_hover_actions_phases_and_diagnostics(tmp_path: Path) -> None:
    if why := missing():
        pytest.skip(why)
    assert EMACS is not None
    section = Path("docs/editors.md").read_text().split("## Emacs")[1].split("\n## ")[0]
    (snippet,) = re.findall(r"```elisp\n(.*?)```", section, re.DOTALL)
    folder = tmp_path / "workspace"
    folder.mkdir()
    workspace(folder)
    (tmp_path / "init.el").write_text(f"(package-initialize)\n{snippet}\n(require 'eglot)\n(require 'json)\n{DRIVE}")
    environment = {
        **os.environ,
        "PATH": f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}",
        "OUT": str(tmp_path / "out.json"),
        "HOME": str(tmp_path),
    }
    command = [EMACS, "--batch", "-q", "-l", str(tmp_path / "init.el")]
    done = subprocess.run(
        command, cwd=folder, env=environment, capture_output=True, text=True, timeout=500, check=False
    )
    assert (tmp_path / "out.json").is_file(), done.stderr
    out = json.loads((tmp_path / "out.json").read_text())
    assert out["mode"] == "c++-mode"
    assert "**KV loop**" in out["hover"]
    assert set(out["actions"]) >= {f"Adapt this kernel to {name}" for name in SPECS}
    for name in ("flash_fwd_sm80", "KV loop", "row max m"):
        assert name in out["phases"], name
    assert any(re.search(r"\bCB1\d\d\b", text) for text in out["diagnostics"]), out["diagnostics"]
