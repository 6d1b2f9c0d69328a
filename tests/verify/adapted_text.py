"""A bundled kernel adapted to a spec, as text and as what verification makes of it: for tests that spoil either."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from cubridge_engine.lower import lower
from cubridge_engine.pipeline.files import contract_of, lift_at
from cubridge_engine.pipeline.widths import as_given, fit_widths
from cubridge_engine.source import parse
from cubridge_engine.spec import read_spec
from cubridge_engine.spec.attention import Attention, widths_of
from cubridge_engine.spec.program import Program
from cubridge_engine.transfer import transfer
from cubridge_engine.transfer.model import TransferResult
from cubridge_engine.verify.bindings import Given, bind_kernel
from cubridge_engine.verify.contracts import extended
from cubridge_engine.verify.derive import choose_heads, grid_for, natural_scale
from cubridge_engine.verify.inputs import Tile
from cubridge_engine.verify.instances import Instances
from cubridge_engine.verify.prepare import Preparer
from cubridge_engine.verify.subject import Subject


@dataclass
class AdaptedText:
    """`instances` are of the whole contract; `text` is the adapted file without its header."""

    attention: Attention
    program: Program
    result: TransferResult
    text: bytes
    subject: Subject
    instances: Instances


def adapt_text(kernel: Path, spec: Path) -> AdaptedText:
    """Adapt `kernel` to `spec`, at the spec's head dimension; nothing is executed."""
    read = read_spec(str(spec))
    assert read.attention is not None
    assert read.program is not None
    source = parse("adapted.cu", kernel.read_bytes())
    first = lift_at(source, None, None)
    contract, _ = contract_of(str(kernel), first.kernel)
    assert contract is not None
    lifted, _ = fit_widths(source, first, contract, widths_of(read.attention, (64, 64)), "sm_80")
    result = transfer(lifted.kernel, as_given(read.attention, lifted.kernel))
    lowered = lower(lifted, result, source, spec="spec.py")
    assert lowered.text is not None
    again = lift_at(parse("adapted.cu", lowered.text), None, (lifted.kernel.D, lifted.kernel.Dv)).kernel
    operands = {op.param: op.name for op in result.operands}
    bound = bind_kernel(again, read.attention, Given(result.bindings, operands))
    contract = extended(contract, again, operands)
    subject = Subject("adapted.cu", lowered.text, again, bound.binding, contract)
    preparer = Preparer(read.attention, read.program, Tile(again.Br, again.Bc, natural_scale(read.attention, again.D)))
    heads = choose_heads(read.attention)
    assert heads is not None
    instances = Instances(subject, contract, read.attention, preparer, lambda a, k: grid_for(a, k, heads).cases)
    return AdaptedText(read.attention, read.program, result, lowered.text, subject, instances)
