"""`cubridge lsp`: the language server, in the same interpreter.

The engine never imports the server (ARCHITECTURE.md, invariant 1): it replaces itself by ``python -m cubridge_server``.
"""

from __future__ import annotations

import argparse
import importlib.util
import os
import sys

from ..diagnostics import make
from . import codes as codes


def run(args: argparse.Namespace) -> int:
    """Does not return where the server can be started; 3 when it is not installed."""
    module = next((name for name in ("cubridge_server", "server") if importlib.util.find_spec(name)), None)
    if module is None or importlib.util.find_spec("pygls") is None:
        missing = make(
            "CB007",
            package="cubridge_server",
            why="the language server is not installed",
            command="pip install cubridge",
        )
        print(f"cubridge: {missing.code}: {missing.message}\n  {missing.help}", file=sys.stderr)
        return 3
    command = [sys.executable, "-m", module]
    if args.tcp:
        command += ["--tcp", args.tcp]
    os.execv(sys.executable, command)
    return 0
