"""The snippet of docs/editors.md in a real Neovim, headless: hover, diagnostics, code actions, lenses."""

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

NVIM = shutil.which("nvim")
pytestmark = [pytest.mark.timeout(600), pytest.mark.skipif(NVIM is None, reason="Neovim is not installed")]

# What a user does by keys, as requests: the answers go to a file.
DRIVE = """
local out = {}
local function ask(method, line, extra)
  local position = { line = line, character = 4 }
  local params = { textDocument = { uri = vim.uri_from_bufnr(0) }, position = position }
  for key, value in pairs(extra or {}) do params[key] = value end
  for _, answer in pairs(vim.lsp.buf_request_sync(0, method, params, 30000) or {}) do
    if answer.result then return answer.result end
  end
end
local function line_of(text)
  for number, line in ipairs(vim.api.nvim_buf_get_lines(0, 0, -1, false)) do
    if line:find(text, 1, true) then return number - 1 end
  end
end
vim.wait(120000, function() return next(vim.lsp.buf_get_clients(0)) ~= nil end, 50)
out.filetype = vim.bo.filetype
local loop = line_of("for (int tile")
vim.wait(120000, function()
  local lenses = ask("textDocument/codeLens", loop)
  return lenses ~= nil and #lenses > 0
end, 200)
local hover = ask("textDocument/hover", loop)
out.hover = hover and hover.contents.value
local place = { start = { line = loop, character = 0 }, ["end"] = { line = loop, character = 0 } }
out.actions = {}
local context = { diagnostics = {} }
for _, action in ipairs(ask("textDocument/codeAction", loop, { range = place, context = context }) or {}) do
  table.insert(out.actions, action.title)
end
vim.api.nvim_buf_set_lines(0, loop, loop, false, { "float x = = 1;" })
vim.wait(120000, function() return #vim.diagnostic.get(0, { lnum = loop }) > 0 end, 100)
out.diagnostics = {}
for _, found in ipairs(vim.diagnostic.get(0)) do
  table.insert(out.diagnostics, { line = found.lnum, source = found.source, message = found.message })
end
out.loop = loop
local file = io.open(vim.env.OUT, "w")
file:write(vim.json and vim.json.encode(out) or vim.fn.json_encode(out))
file:close()
vim.cmd("qa!")
"""


def snippet(version: tuple[int, int]) -> str:
    """The Lua of docs/editors.md for this version of Neovim."""
    section = Path("docs/editors.md").read_text().split("## Neovim")[1].split("\n## ")[0]
    modern, older = re.findall(r"```lua\n(.*?)```", section, re.DOTALL)
    return modern if version >= (0, 11) else older


def test_the_documented_snippet_gives_hover_actions_and_diagnostics(tmp_path: Path) -> None:
    assert NVIM is not None
    first = subprocess.run([NVIM, "--version"], capture_output=True, text=True, check=True).stdout
    found = re.search(r"v(\d+)\.(\d+)", first)
    assert found is not None
    folder = tmp_path / "workspace"
    folder.mkdir()
    workspace(folder)
    (tmp_path / "init.lua").write_text(snippet((int(found[1]), int(found[2]))))
    (tmp_path / "drive.lua").write_text(DRIVE)
    environment = {
        **os.environ,
        "PATH": f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}",
        "OUT": str(tmp_path / "out.json"),
        "XDG_STATE_HOME": str(tmp_path),
        "XDG_CACHE_HOME": str(tmp_path),
    }
    command = [
        NVIM,
        "--headless",
        "-n",
        "-u",
        str(tmp_path / "init.lua"),
        "kernel.cu",
        "-c",
        f"luafile {tmp_path}/drive.lua",
    ]
    done = subprocess.run(
        command, cwd=folder, env=environment, capture_output=True, text=True, timeout=500, check=False
    )
    assert (tmp_path / "out.json").is_file(), done.stderr
    out = json.loads((tmp_path / "out.json").read_text())
    assert out["filetype"] == "cuda"
    assert "**KV loop**" in out["hover"]
    assert sorted(out["actions"]) == sorted(
        [f"Adapt this kernel to {name}" for name in SPECS] + [f"Verify against {name}" for name in SPECS]
    )
    assert any(item["line"] == out["loop"] and item["source"] == "cubridge" for item in out["diagnostics"]), out
