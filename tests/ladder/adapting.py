"""Every rung adapted to every spec of ``specs/``: how far each gets.

    python -m tests.ladder.adapting [--record] [RUNG,RUNG [SPEC,SPEC]]

prints a row per pair, and with --record puts those rows into ``adapting.json``, whose others stay. A row is the level
that was reached, and where that is not ``simulated``, the code of the first error.
"""

from __future__ import annotations

import ast
import json
import re
import shutil
import sys
import tempfile
import time
from pathlib import Path

from cubridge_engine.compile import Contract
from cubridge_engine.pipeline.adapt import adapt
from cubridge_engine.pipeline.files import Options
from cubridge_engine.results import Adaptation
from cubridge_engine.verify.subject import VerifyOptions

from .rungs import PATHS, contract_of

SPECS = Path(__file__).parent / "specs"
TABLE = Path(__file__).parent / "adapting.json"
NAMES = tuple(path.stem for path in sorted(SPECS.glob("*.py")))


def folder_of(rung: str, parent: Path) -> Path:
    """A folder with the rung's kernel, its headers and its contract, as a user would have them; the kernel's path."""
    source = contract_of(rung).source_path
    for path in source.parent.iterdir():
        if path.suffix in (".cu", ".cuh"):
            shutil.copy(path, parent / path.name)
    text = PATHS[rung].read_text()
    (parent / "contract.toml").write_text(re.sub(r"(?m)^source = .*$", f'source = "{source.name}"', text))
    return parent / source.name


_AS_BSHD = """
_inner, _inputs = attention, example_inputs


def attention(ARGUMENTS):
    return _inner(q.transpose(1, 2), k.transpose(1, 2), v.transpose(1, 2)REST).transpose(1, 2)


def example_inputs():
    q, k, v, *rest = _inputs()
    return (*(x.transpose(1, 2) for x in (q, k, v)), *rest)
"""


def spec_for(contract: Contract, spec: str, parent: Path) -> Path:
    """The spec on tensors laid out as the kernel takes them."""
    rows_before_heads = any(p.role == "q" and p.layout == "bshd" for p in contract.leaves)
    if not rows_before_heads:
        return SPECS / f"{spec}.py"
    path = parent / f"{spec}.py"
    text = (SPECS / f"{spec}.py").read_text()
    function = next(n for n in ast.parse(text).body if isinstance(n, ast.FunctionDef) and n.name == "attention")
    names = [a.arg for a in function.args.args]
    around = _AS_BSHD.replace("ARGUMENTS", ", ".join(names)).replace("REST", "".join(f", {n}" for n in names[3:]))
    path.write_text(text + around)
    return path


def adapted(rung: str, spec: str, parent: Path) -> Adaptation:
    """A rung adapted to a spec at the rung's own head dimension, up to the simulator."""
    contract = contract_of(rung)
    options = Options(head_dim=contract.instances[0].head_dim)
    checks = VerifyOptions(archs=contract.archs[:1], use_gpu=False)
    return adapt(str(folder_of(rung, parent)), str(spec_for(contract, spec, parent)), options, checks)


def row_of(done: Adaptation) -> str:
    """``simulated``, or the level and the code of what stopped it: ``lifted CB401``."""
    code = next((d["code"] for d in done.diagnostics if d["severity"] == "error"), "")
    return f"{done.level} {code}".strip()


def table() -> dict[str, dict[str, str]]:
    """The recorded rows: rung -> spec -> row."""
    return json.loads(TABLE.read_text()) if TABLE.is_file() else {}


def main(arguments: list[str]) -> None:
    record = "--record" in arguments
    chosen = [a.split(",") for a in arguments if not a.startswith("--")]
    rungs, specs = chosen[0] if chosen else list(PATHS), chosen[1] if len(chosen) > 1 else list(NAMES)
    for rung in rungs:
        for spec in specs:
            start = time.monotonic()
            with tempfile.TemporaryDirectory() as parent:
                done = adapted(rung, spec, Path(parent))
            row = row_of(done)
            why = next((d["message"] for d in done.diagnostics if d["severity"] == "error"), "")
            print(f"{rung:22} {spec:20} {row:18} {time.monotonic() - start:5.0f} s  {why[:160]}", flush=True)
            if record:
                rows = table()
                rows.setdefault(rung, {})[spec] = row
                TABLE.write_text(json.dumps(rows, indent=1, sort_keys=True) + "\n")


if __name__ == "__main__":
    main(sys.argv[1:])
