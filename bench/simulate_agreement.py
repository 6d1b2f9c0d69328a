"""The same kernels with the same inputs in the simulator and on a GPU: error against float64 on both, equal bits.

    python bench/simulate_agreement.py --prepare FOLDER --cache FOLDER    # PTX and machine code of foreign kernels
    python bench/simulate_agreement.py --foreign FOLDER [--record FILE]   # where there is a GPU of sm_90a

The second half needs cuda-bindings and NVRTC or nvcc, no network. Without ``--foreign`` only our kernels are compared.
Machine code is made by the assembler that knows the PTX version: nvcc's, or the one in Triton's wheel.
"""

from __future__ import annotations

import argparse
import json
import shutil
import subprocess
import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

ROOT = Path(__file__).parents[1]
sys.path.insert(0, str(ROOT))

from bench.recording import record, surroundings  # noqa: E402
from cubridge_engine import simulate  # noqa: E402
from cubridge_engine.compile import compile_source  # noqa: E402
from cubridge_engine.simulate import Buffer, Run, Schedule, TensorMap  # noqa: E402
from tests.simulate import test_foreign, test_hopper  # noqa: E402
from tests.simulate.conftest import Shape, launch_attention, values  # noqa: E402
from tests.simulate.foreign.headers import HEADERS, ptx_of  # noqa: E402
from tests.simulate.foreign.wheels import TRITON, unpacked  # noqa: E402

HOPPER = ROOT / "tests/simulate/kernels/hopper.cu"
TRITON_KERNELS = tuple(test_foreign.TOLERANCES)
SHAPES = (
    Shape(sq=128, sk=256),
    Shape(h=4, hkv=2, sq=100, sk=330, causal=1),
    Shape(sq=65, sk=1),
    Shape(b=2, sq=33, sk=0),
)


@dataclass(frozen=True)
class Subject:
    """A kernel on one problem: its PTX, and a launch on the simulator or the GPU that gives the error."""

    name: str
    problem: str
    ptx: str
    launch: Callable[[Any], tuple[Run, float]]
    image: bytes | None = None


def compiled(text: str, path: str, arch: str, names: tuple[str, ...]) -> str:
    """PTX of a kernel of ours."""
    made = compile_source(text, path=path, arch=arch, name_expressions=names, want=("ptx",))
    if made.ptx is None:
        raise RuntimeError(f"{path}: {made.diagnostics}")
    return made.ptx


def ours() -> Iterator[Subject]:
    """All instances of the bundled kernels."""
    instances = [("flash_fwd_sm80", t, d) for t in ("__half", "__nv_bfloat16") for d in (64, 128)]
    instances += [("flash_fwd_scalar", "", d) for d in (32, 64, 128)]
    for kernel, element, d in instances:
        name = f"{kernel}<{element + ', ' if element else ''}{d}>"
        text = (ROOT / f"expert_kernels/{kernel}/kernel.cu").read_text()
        ptx = compiled(text, f"{kernel}.cu", "sm_80", (name,))
        for shape in SHAPES:
            if shape.causal and not element:
                continue
            sizes = Shape(shape.b, shape.h, shape.hkv, shape.sq, shape.sk, d, shape.causal)
            yield Subject(name, str(sizes), ptx, attention_of(element, sizes))


def attention_of(element: str, shape: Shape) -> Callable[[Any], tuple[Run, float]]:
    """The launch of a bundled kernel; the error is relative to a row's scale, the larger one of O and LSE."""
    dtype = {"__half": "float16", "__nv_bfloat16": "bfloat16", "": "float32"}[element]
    shared = 5 * 64 * shape.d * 2 if element else ((32 + 64) * (shape.d + 1) + 32 * 33) * 4

    def launch(module: Any) -> tuple[Run, float]:
        got = launch_attention(
            module, shape, tile=64 if element else 32, dtype=dtype, shared=shared, schedule=Schedule(),
            log2=bool(element), flag=bool(element),
        )  # fmt: skip
        return got.run, max(got.error, got.lse_error)

    return launch


def hopper() -> Iterator[Subject]:
    """The Hopper kernels of the tests: a TMA ring with wgmma, and products of every swizzle and major."""
    ptx = compiled(HOPPER.read_text(), "hopper.cu", "sm_90a", test_hopper.PRODUCTS)
    for tiles in (1, 5):
        yield Subject("hopper.cu ring", f"{tiles} tiles of K", ptx, ring_of(tiles))
    for swizzle in (0, 32, 64, 128):
        for majors in ((0, 0), (1, 1)):
            yield Subject("hopper.cu product", f"swizzle {swizzle}, majors {majors}", ptx, product_of(swizzle, majors))


def ring_of(tiles: int) -> Callable[[Any], tuple[Run, float]]:
    """C = A B^T through a ring of stages."""

    def launch(module: Any) -> tuple[Run, float]:
        test_hopper.RNG = np.random.default_rng(5)
        seen = Watched(module)
        run, _ = test_hopper.run_ring(seen, tiles, Schedule())
        a, b = (values(m.buffer.array) for m in seen.args[:2])
        return run, relative(run.outputs["C"], a @ b.T)

    return launch


def product_of(swizzle: int, majors: tuple[int, int]) -> Callable[[Any], tuple[Run, float]]:
    """One 64 x 64 x 64 product."""

    def launch(module: Any) -> tuple[Run, float]:
        rng = np.random.default_rng(5)
        a, b = (test_hopper.bf16(rng.standard_normal((64, 64))) for _ in range(2))
        map_a, op_a = test_hopper.operand(a, swizzle, bool(majors[0]), "A")
        map_b, op_b = test_hopper.operand(b, swizzle, bool(majors[1]), "B")
        out = Buffer(np.zeros((64, 64), np.float32), "out", "D")
        name = next(k for k in module.kernels if f"productILi{majors[0]}ELi{majors[1]}E" in k)
        run = module.launch(name, (1,), (128,), [map_a, map_b, out, op_a, op_b], dynamic_shared=16384)
        return run, relative(run.outputs["D"], values(a) @ values(b).T)

    return launch


def relative(got: np.ndarray, want: np.ndarray) -> float:
    """The largest error over the largest value."""
    return float(np.nan_to_num(np.abs(got - want), nan=np.inf).max() / np.abs(want).max())


def foreign(folder: Path) -> Iterator[Subject]:
    """Kernels of Triton and of libraries, as prepared."""
    for name in (*TRITON_KERNELS, *HEADERS):
        ptx, image = (folder / f"{name}.ptx").read_text(), (folder / f"{name}.cubin").read_bytes()
        yield Subject(name, "as in the tests", ptx, foreign_launch(name), image)


def foreign_launch(name: str) -> Callable[[Any], tuple[Run, float]]:
    """The launch of the tests; absolute errors of values around one."""

    def launch(module: Any) -> tuple[Run, float]:
        if name in HEADERS:
            case = HEADERS[name].launch(module, Schedule())
            return case.run, case.error
        go = test_foreign.run_attention if name.startswith("attention") else test_foreign.run_product
        return go(name, 200, Schedule(), module=module)

    return launch


class Watched:
    """A module that remembers what it was launched with."""

    def __init__(self, module: Any) -> None:
        self.module = module
        self.kernels = module.kernels
        self.args: list[Any] = []

    @property
    def program(self) -> Any:
        """Of the module."""
        return self.module.program

    def launch(self, kernel: str, grid: Any, block: Any, args: list[Any], **options: Any) -> Run:
        """Launch, and remember the arguments."""
        self.args = list(args)
        return self.module.launch(kernel, grid, block, args, **options)

    def inputs(self) -> list[np.ndarray]:
        """Contents of the input buffers."""
        parts = [p for a in self.args for p in (a.parts.values() if isinstance(a, simulate.Struct) else (a,))]
        found = [p.buffer if isinstance(p, TensorMap) else p for p in parts]
        return [b.array for b in found if isinstance(b, Buffer) and b.role == "in"]


def compare(subject: Subject, gpu: Any) -> dict[str, Any]:
    """Both errors, their ratio, and how far the outputs are from each other."""
    from tests.simulate.gpu import Device

    ours, theirs = Watched(simulate.load(subject.ptx)), Watched(Device(gpu, subject.ptx, subject.image))
    (mine, error), (real, real_error) = subject.launch(ours), subject.launch(theirs)
    for a, b in zip(ours.inputs(), theirs.inputs(), strict=True):
        if a.tobytes() != b.tobytes():
            raise RuntimeError(f"{subject.name}: the inputs differ")
    equal = total = 0
    apart = 0.0
    for name, x in real.outputs.items():
        y = mine.outputs[name]
        equal += int((x.view(f"u{x.itemsize}") == y.view(f"u{y.itemsize}")).sum())
        total += x.size
        with np.errstate(invalid="ignore"):
            gap = np.where(values(x) == values(y), 0.0, np.abs(values(x) - values(y)))
        apart = max(apart, float(np.nan_to_num(gap, nan=np.inf).max(initial=0.0)))
    return {
        "kernel": subject.name, "problem": subject.problem, "findings": [f.code for f in mine.findings],
        "error_simulator": short(error), "error_gpu": short(real_error),
        "ratio": short(error / real_error) if real_error else (1.0 if not error else float("inf")),
        "equal_bits": round(equal / total, 4) if total else 1.0, "largest_difference": short(apart),
    }  # fmt: skip


def short(x: float) -> float:
    """Three digits."""
    return float(f"{x:.3g}")


def prepare(folder: Path, cache: Path) -> None:
    """PTX and machine code of the foreign kernels, for sm_90a."""
    folder.mkdir(parents=True, exist_ok=True)
    for name in (*TRITON_KERNELS, *HEADERS):
        text = ptx_of(name, cache) if name in HEADERS else (test_foreign.FOREIGN / f"{name}.ptx").read_text()
        path = folder / f"{name}.ptx"
        path.write_text(text)
        assembler = str(unpacked(TRITON, cache) / "triton/backends/nvidia/bin/ptxas-blackwell")
        if float(text.split(".version")[1].split()[0]) <= 9.0:
            assembler = shutil.which("ptxas") or assembler
        subprocess.run([assembler, "-arch=sm_90a", str(path), "-o", str(path.with_suffix(".cubin"))], check=True)
        print(f"{name:28} {assembler.rsplit('/', 1)[1]}")


def main() -> None:
    """Prepare, or compare and print; record when asked."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--prepare", type=Path)
    parser.add_argument("--cache", type=Path, default=Path("foreign-cache"))
    parser.add_argument("--foreign", type=Path)
    parser.add_argument("--record", type=Path, help="a JSON file, or 'bench' for bench/results")
    arguments = parser.parse_args()
    if arguments.prepare:
        prepare(arguments.prepare, arguments.cache)
        return
    from tests.simulate.gpu import Gpu

    gpu = Gpu()
    rows: list[dict[str, Any]] = []
    for subject in (*ours(), *hopper(), *(foreign(arguments.foreign) if arguments.foreign else ())):
        rows.append(compare(subject, gpu))
        print(json.dumps(rows[-1]), flush=True)
    report = {"device": gpu.name(), "rows": rows}
    if arguments.record and str(arguments.record) == "bench":
        record("simulate_agreement", report)
    elif arguments.record:
        arguments.record.write_text(json.dumps({"measured_on": surroundings(), **report}, indent=2) + "\n")


if __name__ == "__main__":
    main()
