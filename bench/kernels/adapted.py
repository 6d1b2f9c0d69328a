"""Variants as ``cubridge adapt`` makes them, kept by content: an adaptation is made once for a kernel, a spec and an
engine, on any machine, and only compiled where it is measured.

``python -m bench.kernels.adapted --kernels flash_fwd_sm90 --jobs 4`` fills the store: ``build/adapted``, or the folder
that CUBRIDGE_ADAPTED names.
"""

from __future__ import annotations

import argparse
import ast
import hashlib
import json
import os
import re
import sys
import tempfile
from concurrent.futures import BrokenExecutor, ProcessPoolExecutor
from dataclasses import asdict, dataclass
from functools import cache
from multiprocessing import get_context
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[2]
STORE = Path(os.environ.get("CUBRIDGE_ADAPTED") or ROOT / "build" / "adapted")
_ROOMS = ("source", "ir", "lift", "spec", "transfer", "lower", "pipeline", "verify")


@dataclass(frozen=True)
class Adapted:
    """An adapted text and how to call it.

    `parameters` are those added, as (name, role, contract type); `operands` names the spec's tensor of a parameter;
    `strides` gives the axis of each stride parameter of a tensor; `lists` the arguments of ``build_tile_list`` of
    `drop_in` for a list of tiles; `bindings` the values of the kernel's scalars.
    """

    kernel: str
    spec: str
    text: str
    level: str
    hunks: int
    parameters: list[list[str]]
    operands: dict[str, str]
    strides: dict[str, dict[str, int]]
    lists: dict[str, list[str]]
    bindings: dict[str, float | int]
    drop_in: str


@cache
def _engine() -> str:
    """A digest of everything that an adaptation follows from besides the two files."""
    digest = hashlib.sha256()
    for room in _ROOMS:
        for path in sorted((ROOT / "cubridge_engine" / room).rglob("*.py")):
            digest.update(path.read_bytes())
    return digest.hexdigest()


def _files(kernel: str, spec: str) -> tuple[Path, Path]:
    return ROOT / "expert_kernels" / kernel / "kernel.cu", ROOT / "bench" / "specs" / f"{spec}.py"


def _place(kernel: str, spec: str) -> Path:
    both = b"".join(path.read_bytes() for path in _files(kernel, spec))
    key = hashlib.sha256(both + _engine().encode()).hexdigest()[:16]
    return STORE / f"{kernel}-{spec}-{key}.json"


def stored(kernel: str, spec: str) -> Adapted | None:
    """The adaptation in the store; None where `fill` was refused it."""
    place = _place(kernel, spec)
    return Adapted(**json.loads(place.read_text())) if place.exists() else None


def adapted(kernel: str, spec: str, simulate: bool = False) -> Adapted | None:
    """The adaptation, from the store or made now; None where it was refused (the reason is printed)."""
    place = _place(kernel, spec)
    kept = stored(kernel, spec)
    if kept is not None and (kept.level == "simulated" or not simulate):
        return kept
    made = _make(kernel, spec, simulate)
    if made is not None:
        place.parent.mkdir(parents=True, exist_ok=True)
        place.write_text(json.dumps(asdict(made), indent=1) + "\n")
    return made


def _make(kernel: str, spec: str, simulate: bool) -> Adapted | None:
    from cubridge_engine.pipeline.adapt import adapt
    from cubridge_engine.pipeline.files import Options
    from cubridge_engine.verify.subject import VerifyOptions

    kernel_path, spec_path = _files(kernel, spec)
    checks = VerifyOptions(archs=("sm_90a",), use_gpu=False, use_simulator=simulate)
    result = adapt(str(kernel_path), str(spec_path), Options(), checks)
    if result.text is None or result.exit_code:
        reasons = "; ".join(f"{d['code']} {d['message']}" for d in result.diagnostics if d["severity"] == "error")
        print(f"{kernel} x {spec}: {result.level}, {reasons}", file=sys.stderr, flush=True)
        return None
    return Adapted(
        kernel, spec, result.text, result.level, len(result.hunks), **_calling(kernel, spec, result.text),
        drop_in=result.drop_in or "",
    )  # fmt: skip


def _calling(kernel: str, spec: str, text: str) -> dict[str, Any]:
    """How the adapted text is called, read from the text as `cubridge verify` reads it."""
    from cubridge_engine.lower import parse_header
    from cubridge_engine.pipeline.check import header_values
    from cubridge_engine.pipeline.common import load
    from cubridge_engine.pipeline.files import Options
    from cubridge_engine.verify.bindings import Given, bind_kernel
    from cubridge_engine.verify.contracts import extended
    from cubridge_engine.verify.stages import Stages

    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "kernel.cu"
        path.write_text(text)
        stages = Stages(("parse", "lift", "spec"), lambda *_: None)
        loaded = load(str(path), str(_files(kernel, spec)[1]), Options(), ("sm_90a",), stages, [])
    assert loaded is not None
    assert loaded.attention is not None
    assert loaded.contract is not None
    lifted, header = loaded.lifted.kernel, parse_header(text)
    named = {param: name for param, (name, _) in header.operands.items()}
    binding = bind_kernel(lifted, loaded.attention, Given(header_values(header, lifted.D), named)).binding
    contract = extended(loaded.contract, lifted, binding.operands)
    added = contract.parameters[len(loaded.contract.parameters) :]
    return {
        "parameters": [[p.name, p.role, p.type] for p in added],
        "operands": dict(binding.operands),
        "strides": {param: dict(axes) for param, axes in binding.stride_params.items()},
        "lists": {param: _built_from(text, param) for param in binding.tiles},
        "bindings": dict(binding.values),
    }


def _built_from(text: str, param: str) -> list[str]:
    """The arguments in ``// cubridge: build kv_tiles = build_tile_list(q, k, ids)``."""
    found = re.search(rf"// cubridge: build {param} = (\w+\([^)]*\))", text)
    assert found is not None
    call = ast.parse(found[1], mode="eval").body
    assert isinstance(call, ast.Call)
    return [ast.unparse(argument) for argument in call.args]


def _one(task: tuple[str, str, bool]) -> str:
    try:
        made = adapted(*task)
    except Exception as problem:  # a fault of the engine costs one row, not the table
        return f"{task[0]} x {task[1]}: {type(problem).__name__}: {problem}"
    return f"{task[0]} x {task[1]}: {'refused' if made is None else f'{made.level}, {made.hunks} hunks'}"


def fill(kernels: list[str], specs: list[str], jobs: int, simulate: bool = False) -> None:
    """Make what the store lacks, `jobs` side by side."""
    tasks = [(kernel, spec, simulate) for spec in specs for kernel in kernels]
    missing = [task for task in tasks if simulate or not _place(*task[:2]).exists()]
    if not missing:
        return
    # Fresh processes: a fork would take along what the caller has of the device.
    # One thread each: as many processes as cores, each with as many threads, take minutes instead of seconds.
    os.environ.update(dict.fromkeys(("OMP_NUM_THREADS", "MKL_NUM_THREADS", "OPENBLAS_NUM_THREADS"), "1"))
    with ProcessPoolExecutor(min(jobs, len(missing)), mp_context=get_context("spawn")) as pool:
        done = [pool.submit(_one, task) for task in missing]
        for task, future in zip(missing, done, strict=True):
            try:
                line = future.result()
            except BrokenExecutor as problem:  # a process that died costs its rows, not the table
                line = f"{task[0]} x {task[1]}: {problem}"
            print(line, file=sys.stderr, flush=True)


def main() -> int:
    """Command line."""
    from .variants import VARIANTS

    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--kernels", nargs="*", default=["flash_fwd_sm90"])
    parser.add_argument("--specs", nargs="*", default=[v.spec for v in VARIANTS])
    parser.add_argument("--jobs", type=int, default=max((os.cpu_count() or 2) // 2, 1))
    parser.add_argument("--simulate", action="store_true", help="verify each to level simulated")
    args = parser.parse_args()
    fill(args.kernels, args.specs, args.jobs, args.simulate)
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
