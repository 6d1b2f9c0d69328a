"""Each example adapted once per session, and a quick verification (level ir) that shares its references."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import pytest

from cubridge_engine.lower import Lowered, lower
from cubridge_engine.pipeline.files import lift_at
from cubridge_engine.source import SourceFile, parse
from cubridge_engine.spec import read_spec
from cubridge_engine.spec.attention import Attention
from cubridge_engine.transfer import TransferResult, transfer
from cubridge_engine.verify.bindings import Given, bind_kernel
from cubridge_engine.verify.derive import choose_heads, grid_for, natural_scale
from cubridge_engine.verify.inputs import Tile
from cubridge_engine.verify.ir_level import IrOutcome, Run, run_ir
from cubridge_engine.verify.prepare import Preparer

ROOT = Path(__file__).parents[2]
EXAMPLES = sorted(p.stem for p in (ROOT / "examples").glob("*.py"))
KERNEL_FOR = {"float16": "flash_fwd_sm80", "bfloat16": "flash_fwd_sm80", "float32": "flash_fwd_scalar"}


@dataclass
class Adapted:
    """An example on a kernel. `text` is the adapted text without header; the preparer keeps references between runs."""

    source: SourceFile
    lifted: object
    attention: Attention
    result: TransferResult
    lowered: Lowered
    text: str
    preparer: Preparer

    def lift(self, text: str):
        """Lift a text at the same head dimension."""
        return lift_at(parse("kernel.cu", text.encode()), None, self.lifted.kernel.D)

    def check(self, text: str) -> tuple[IrOutcome, list]:
        """Level ir of a text under this example's bindings: what ran, and what could not be bound or read."""
        again = self.lift(text)
        if again.kernel is None or not again.coverage.complete:
            return IrOutcome(), list(again.diagnostics)
        operands = {op.param: op.name for op in self.result.operands}
        bound = bind_kernel(again.kernel, self.attention, Given(self.result.bindings, operands))
        heads = choose_heads(self.attention)
        grid = grid_for(self.attention, again.kernel, heads)
        runs = (Run("early", None), Run("late", None))
        quiet = lambda *_: None  # noqa: E731
        outcome = run_ir(
            again.kernel, bound.binding, self.attention, self.preparer, grid.cases, runs, "keep", quiet, stop_after=1
        )
        return outcome, list(bound.diagnostics)


@pytest.fixture(scope="session")
def read_example():
    """(attention, program) of an example, read once."""
    done: dict[str, tuple] = {}

    def reading(name: str) -> tuple:
        if name not in done:
            result = read_spec(str(ROOT / "examples" / f"{name}.py"))
            assert result.attention is not None, [d.message for d in result.diagnostics]
            done[name] = (result.attention, result.program)
        return done[name]

    return reading


@pytest.fixture(scope="session")
def adapted(read_example):
    """An example on the kernel of its dtype, adapted once."""
    done: dict[tuple[str, str], Adapted] = {}

    def adapting(name: str) -> Adapted:
        attention, program = read_example(name)
        kernel = KERNEL_FOR[attention.input("q").dtype]
        if (name, kernel) not in done:
            path = ROOT / "expert_kernels" / kernel / "kernel.cu"
            source = parse("kernel.cu", path.read_bytes())
            lifted = lift_at(source, None, attention.specialised.get("D"))
            result = transfer(lifted.kernel, attention)
            assert result.target is not None, [d.message for d in result.diagnostics]
            lowered = lower(lifted, result, source, spec=f"{name}.py")
            assert lowered.text is not None, [d.message for d in lowered.diagnostics]
            tile = Tile(lifted.kernel.Br, lifted.kernel.Bc, natural_scale(attention, lifted.kernel.D))
            preparer = Preparer(attention, program, tile)
            done[name, kernel] = Adapted(source, lifted, attention, result, lowered, lowered.text.decode(), preparer)
        return done[name, kernel]

    return adapting
