"""House rules that a script can check: file sizes, catalogue rows, the package list."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib

ROOT = Path(__file__).parents[2]
SOURCES = [p for top in ("cubridge_engine", "server") for p in sorted((ROOT / top).rglob("*.py"))]


@pytest.mark.parametrize("path", SOURCES, ids=lambda p: str(p.relative_to(ROOT)))
def test_files_stay_readable(path):
    lines = path.read_text().splitlines()
    assert len(lines) <= 500, "split the file: about 400 lines is the house's size"
    assert lines, "an empty file says nothing about its room"
    assert lines[0].startswith('"""'), "the first line says what the file is for"


def test_every_package_is_installed():
    config = tomllib.loads((ROOT / "pyproject.toml").read_text())
    listed = set(config["tool"]["setuptools"]["packages"])
    found = {".".join(p.parent.relative_to(ROOT).parts) for p in (ROOT / "cubridge_engine").rglob("__init__.py")}
    without_code = {"cubridge_engine.expert_kernels"}  # kernels and their contracts, for who has no checkout
    assert found | {"cubridge_server"} | without_code == listed


def test_the_bundled_kernels_go_with_the_package_and_with_the_extension():
    config = tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["setuptools"]
    assert config["package-dir"]["cubridge_engine.expert_kernels"] == "expert_kernels"
    patterns = config["package-data"]["cubridge_engine.expert_kernels"]
    files = [p for p in (ROOT / "expert_kernels").rglob("*") if p.is_file()]
    assert files
    assert all(any(p.relative_to(ROOT / "expert_kernels").match(pattern) for pattern in patterns) for p in files)
    assert "!expert_kernels/*/*" in (ROOT / ".vscodeignore").read_text().splitlines()


def test_every_code_has_a_sentence_and_a_way_out():
    import importlib

    from cubridge_engine.diagnostics import CATALOGUE

    for path in SOURCES:
        if path.name == "codes.py":
            importlib.import_module(".".join(path.relative_to(ROOT).with_suffix("").parts))
    assert len(CATALOGUE) > 40
    for code, row in CATALOGUE.items():
        assert code.startswith("CB")
        assert row.message
        assert row.help, f"{code} has no way out"
