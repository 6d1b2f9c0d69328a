"""The import invariants of ARCHITECTURE.md, read from the syntax of every file and, for torch, measured in a fresh
process.
"""

from __future__ import annotations

import ast
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
ENGINE = sorted((ROOT / "cubridge_engine").rglob("*.py"))
SERVER = sorted((ROOT / "server").rglob("*.py"))

# Rooms in the order data flows; a room may import rooms to its left, and itself.
ORDER = [
    "diagnostics",
    "source",
    "ir",
    "lift",
    "spec",
    "transfer",
    "lower",
    "compile",
    "device",
    "simulate",
    "watch",
    "bind",
    "verify",
    "graft",
    "understand",
    "check",
    "export",
    "jobs",
    "propose",
    "cli",
]  # spec/attention.py is the contract between spec and transfer: plain data without torch.


def imported(path: Path) -> set[str]:
    """Absolute names of the modules a file imports, at any depth of its code."""
    package = path.relative_to(ROOT).with_suffix("").parts[:-1]
    found: set[str] = set()
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Import):
            found |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            base = package[: len(package) - node.level + 1] if node.level else ()
            module = ".".join((*base, node.module) if node.module else base)
            found |= {module} | {f"{module}.{alias.name}" for alias in node.names}
    return found


def test_there_is_an_engine_and_a_server():
    assert len(ENGINE) > 20
    assert len(SERVER) > 5


@pytest.mark.parametrize("path", ENGINE, ids=lambda p: str(p.relative_to(ROOT)))
def test_the_engine_knows_no_editor(path):
    banned = {"server", "cubridge_server", "pygls", "lsprotocol"}
    assert not {name for name in imported(path) if name.split(".")[0] in banned}


@pytest.mark.parametrize("path", [*ENGINE, *SERVER], ids=lambda p: str(p.relative_to(ROOT)))
def test_only_propose_talks_to_a_model(path):
    if "propose" not in path.parts:
        assert not {name for name in imported(path) if name.split(".")[0] == "openai"}


@pytest.mark.parametrize("room", ORDER)
def test_rooms_import_only_what_comes_before_them(room):
    later = {f"cubridge_engine.{name}" for name in ORDER[ORDER.index(room) + 1 :]}
    for path in (ROOT / "cubridge_engine" / room).rglob("*.py"):
        wrong = {n for n in imported(path) if ".".join(n.split(".")[:2]) in later}
        assert not wrong, f"{path.relative_to(ROOT)} imports {sorted(wrong)}"


LIGHT = [
    "cubridge_engine.cli.main",
    "cubridge_engine.lift",
    "cubridge_engine.transfer",
    "cubridge_engine.lower",
    "server",
]


@pytest.mark.parametrize("module", LIGHT)
def test_starting_does_not_load_torch(module):
    code = f"import sys, {module}; sys.exit('torch' in sys.modules)"
    done = subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr or "torch was loaded"
