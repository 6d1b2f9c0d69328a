"""A spec on a kernel, adapted once, and a quick verification (level ir) that shares its references."""

from __future__ import annotations

from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from cubridge_engine.lift import lift
from cubridge_engine.lower import Lowered, identifiers, lower
from cubridge_engine.pipeline.files import contract_of
from cubridge_engine.pipeline.widths import as_given, fit_widths, lift_at
from cubridge_engine.source import SourceFile, parse
from cubridge_engine.spec.attention import Attention, widths_of
from cubridge_engine.transfer import TransferResult, transfer
from cubridge_engine.verify.bindings import Given, bind_kernel
from cubridge_engine.verify.derive import choose_heads, grid_for, natural_scale
from cubridge_engine.verify.inputs import Tile
from cubridge_engine.verify.ir_level import IrOutcome, Run, run_ir
from cubridge_engine.verify.prepare import Preparer

ROOT = Path(__file__).parents[2]


class NotAdapted(Exception):
    """Transfer or lowering refused; the text names the codes."""


@dataclass
class Adapted:
    """A spec on a kernel. `text` is the adapted text without header; the preparer keeps references between runs."""

    source: SourceFile
    lifted: Any
    attention: Attention
    result: TransferResult
    lowered: Lowered
    text: str
    preparer: Preparer

    def lift(self, text: str):
        """Lift a text at the template values found for the kernel as it was, without a lift at its own first."""
        kernel = self.lifted.kernel
        return lift(parse("kernel.cu", text.encode()), kernel=kernel.name, instantiation=kernel.instantiation)

    def check(self, text: str) -> tuple[IrOutcome, list]:
        """Level ir of a text under this spec's bindings: what ran, and what could not be bound or read."""
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

    def adapted_to(self, other: Attention) -> Adapted:
        """The same kernel adapted to `other`, still checked against this spec. Raises NotAdapted."""
        result, lowered = _adapt(self.lifted, self.source, other)
        return replace(self, result=result, lowered=lowered, text=_text(lowered))


def adapt_to(attention: Attention, program: Any, kernel: str) -> Adapted:
    """Adapt the expert kernel of that name. Raises NotAdapted."""
    path = ROOT / "expert_kernels" / kernel / "kernel.cu"
    source = parse("kernel.cu", path.read_bytes())
    first = lift_at(source, None, None)
    contract, _ = contract_of(str(path), first.kernel)
    lifted, _ = fit_widths(source, first, contract, widths_of(attention, (64, 64)), "sm_80")
    result, lowered = _adapt(lifted, source, attention)
    tile = Tile(lifted.kernel.Br, lifted.kernel.Bc, natural_scale(attention, lifted.kernel.D))
    return Adapted(source, lifted, attention, result, lowered, _text(lowered), Preparer(attention, program, tile))


def _adapt(lifted: Any, source: SourceFile, attention: Attention) -> tuple[TransferResult, Lowered]:
    result = transfer(lifted.kernel, as_given(attention, lifted.kernel), reserved=identifiers(source))
    if result.target is None:
        raise NotAdapted("; ".join(f"{d.code} {d.message}" for d in result.diagnostics))
    lowered = lower(lifted, result, source, spec="spec.py")
    if lowered.text is None:
        raise NotAdapted("; ".join(f"{d.code} {d.message}" for d in lowered.diagnostics))
    return result, lowered


def _text(lowered: Lowered) -> str:
    assert lowered.text is not None
    return lowered.text.decode()
