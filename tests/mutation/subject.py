"""The kernels that are mutated: their PTX, and a trial that says whether a mutant is found, and by what."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np

from cubridge_engine import simulate
from cubridge_engine.compile import compile_source
from cubridge_engine.simulate import SCHEDULES
from tests.simulate.conftest import ROOT, Attended, Shape, launch_attention
from tests.simulate.test_foreign import FOREIGN, run_attention, run_product

TOLERANCE = 1e-2
LSE_TOLERANCE = 1e-4
MAX_STEPS = 4000
FOREIGN_TOLERANCE = 3e-2


@dataclass(frozen=True)
class Verdict:
    """What found a mutant: codes of findings, wrong numbers; neither: it survived."""

    codes: tuple[str, ...]
    numbers: bool

    @property
    def found(self) -> bool:
        """True when anything showed."""
        return bool(self.codes) or self.numbers


@dataclass(frozen=True)
class Subject:
    """An expert kernel, its instance, how it is launched, and the shapes every mutant is tried on, cheapest first."""

    name: str
    instance: str
    tile: int
    dtype: str
    shared: int
    log2: bool
    flag: bool
    shapes: tuple[Shape, ...]
    edges: tuple[Shape, ...] = ()  # tails of every length that some comparison distinguishes; one schedule is enough
    left_out: tuple[str, ...] = ()  # rules that are not applied

    def ptx(self) -> str:
        """The module as NVRTC or nvcc makes it."""
        path = ROOT / "expert_kernels" / self.name / "kernel.cu"
        compiled = compile_source(
            path.read_bytes(), path=str(path), name_expressions=[self.instance], want=("ptx",), options=("-lineinfo",)
        )
        if compiled.ptx is None:
            raise RuntimeError(f"{self.name} does not compile: {compiled.diagnostics}")
        return compiled.ptx

    def launch(self, module: simulate.Module, shape: Shape, schedule: simulate.Schedule) -> Attended:
        """One launch."""
        return launch_attention(
            module, shape, tile=self.tile, dtype=np.dtype(self.dtype), shared=self.shared, schedule=schedule,
            log2=self.log2, flag=self.flag, max_steps=MAX_STEPS,
        )  # fmt: skip

    def verdicts(self, ptx: str, schedules: Sequence[simulate.Schedule]) -> Iterator[Verdict]:
        """One per launch: all shapes under all schedules, then the edges under the first."""
        module = simulate.load(ptx)
        trials = [(shape, s) for shape in self.shapes for s in schedules]
        for shape, schedule in trials + [(shape, schedules[0]) for shape in self.edges]:
            result = self.launch(module, shape, schedule)
            codes = tuple(sorted({f.code for f in result.run.findings}))
            yield Verdict(codes, not (result.error < TOLERANCE and result.lse_error < LSE_TOLERANCE))


@dataclass(frozen=True)
class Foreign:
    """A module of tests/simulate/foreign: attention or a product, tried at one ragged size under every schedule.

    Its comparisons are left out: each needs a size of its own to matter, by a layout that only Triton knows.
    """

    name: str
    size: int
    left_out: tuple[str, ...] = ("comparison",)

    def ptx(self) -> str:
        """The module as Triton made it."""
        return (FOREIGN / f"{self.name}.ptx").read_text()

    def verdicts(self, ptx: str, schedules: Sequence[simulate.Schedule]) -> Iterator[Verdict]:
        """One per launch."""
        change = None if ptx == self.ptx() else lambda _: ptx
        run = run_attention if self.name.startswith("attention") else run_product
        for schedule in schedules:
            result, error = run(self.name, self.size, schedule, change)
            yield Verdict(tuple(sorted({f.code for f in result.findings})), not error < FOREIGN_TOLERANCE)


def try_mutant(subject: Subject | Foreign, ptx: str, schedules: Sequence[simulate.Schedule] = SCHEDULES) -> Verdict:
    """Run until something is found, over all shapes and schedules."""
    return next((v for v in subject.verdicts(ptx, schedules) if v.found), Verdict((), False))


D64, D32 = 64, 32
SUBJECTS: dict[str, Subject | Foreign] = {
    "flash_fwd_sm80": Subject(
        "flash_fwd_sm80", "flash_fwd_sm80<__half, 64>", 64, "float16", 5 * 64 * D64 * 2, True, True,
        (
            Shape(h=1, sq=64, sk=192), Shape(h=2, hkv=2, sq=70, sk=200), Shape(h=2, sq=100, sk=150, causal=1),
            Shape(h=1, sq=128, sk=64, causal=1), Shape(h=1, sq=1, sk=0), Shape(h=1, sq=150, sk=129, causal=1),
        ),
        # A thread copies rows r, r + 16, ...; a mask compares columns 8 nb and 8 nb + 1.
        (
            *(Shape(h=1, sq=n, sk=n + 64) for n in (8, 24, 40, 56)), *(Shape(h=1, sq=n, sk=n) for n in (1, 24, 40, 56)),
            *(Shape(h=1, sq=1, sk=64 + 8 * nb + p) for nb in range(8) for p in (0, 1) if nb + p),
            Shape(h=1, sq=1, sk=66),
        ),
    ),
    "flash_fwd_scalar": Subject(
        "flash_fwd_scalar", "flash_fwd_scalar<32>", 32, "float32", ((32 + 64) * (D32 + 1) + 32 * 33) * 4, False, False,
        (Shape(h=1, sq=32, sk=96, d=32), Shape(h=2, sq=40, sk=50, d=32), Shape(h=1, sq=3, sk=0, d=32)),
        # A thread copies rows r, r + 4, ... and owns columns part, part + 4, ...
        (
            *(Shape(h=1, sq=n, sk=n, d=32) for n in range(1, 32, 3)),
            *(Shape(h=1, sq=n, sk=n, d=32) for n in range(4, 32, 4)),
            *(Shape(h=1, sq=1, sk=32 + n, d=32) for n in range(0, 32, 4)),
        ),
    ),
    "attention_f16_sm80": Foreign("attention_f16_sm80", 200),
    "attention_bf16_sm90": Foreign("attention_bf16_sm90", 140),
    "product_f16_sm80": Foreign("product_f16_sm80", 200),
}  # fmt: skip
