"""The snippet of docs/editors.md for Helix: TOML that names our server, and what a Helix that is there says to it."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib  # pyright: ignore[reportMissingImports]

HELIX = shutil.which("hx") or shutil.which("helix")


def snippet() -> str:
    section = Path("docs/editors.md").read_text().split("## Helix")[1].split("\n## ")[0]
    (found,) = re.findall(r"```toml\n(.*?)```", section, re.DOTALL)
    return found


def test_the_documented_snippet_attaches_our_server_to_kernels() -> None:
    config = tomllib.loads(snippet())
    (language,) = config["language"]
    assert {"cu", "cuh"} <= set(language["file-types"])
    servers = config["language-server"]
    assert {servers[name]["command"] for name in language["language-servers"]} == {"cubridge-lsp"}
    scripts = tomllib.loads(Path("pyproject.toml").read_text())["project"]["scripts"]
    assert "cubridge-lsp" in scripts


@pytest.mark.skipif(HELIX is None, reason="Helix is not installed")
def test_helix_finds_the_server(tmp_path: Path) -> None:
    assert HELIX is not None
    (tmp_path / "helix").mkdir()
    (tmp_path / "helix" / "languages.toml").write_text(snippet())
    path = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"
    environment = {**os.environ, "XDG_CONFIG_HOME": str(tmp_path), "PATH": path}
    command = [HELIX, "--health", "cuda"]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=300, check=False)
    assert re.search(r"✓.*cubridge-lsp", done.stdout), done.stdout
