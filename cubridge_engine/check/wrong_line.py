"""From wrong numbers to the responsible line: the first wrong step of the kernel's program, or of its execution."""

from __future__ import annotations

import math
from typing import Any

from numpy.typing import NDArray

from ..compile import Contract, Instance
from ..diagnostics import Related, Span, make
from ..ir.nodes import Kernel, Mma
from ..spec.attention import Attention
from ..transfer.structure import kv_loop_of, walk_ops
from ..verify.ir_level import sizes_text
from ..verify.steps import first_wrong_step
from ..verify.steps_causes import NO_SCALE
from ..verify.steps_model import WrongStep
from .hypotheses import known_fault
from .labelled import right_steps
from .launched import Launched
from .model import Finding, Kind
from .numbers import Wrong
from .pairing import mispaired
from .subject import Subject
from .text_places import bound_of
from .watch_cases import WatchCase, inputs_of, watch_cases

Array = NDArray[Any]
_RICH = ("short-query", "rising-max")  # several tiles, ragged; the maximum moves
LOG2E = 1.0 / math.log(2.0)
_KINDS: dict[str, Kind] = {
    "q": "memory", "k": "memory", "v": "memory", "mask": "mask", "range": "range", "lse": "interface"
}  # fmt: skip


def located(wrong: Wrong, read: Subject | None, launched: Launched) -> Finding:
    """The finding for wrong numbers: CB880 with the first wrong step where it was found, else CB881.

    Reading comes first, for it names the operation; then the products and the shuffles of the execution. `read`: the
    kernel as it was read, where it was.
    """
    example = wrong.measure.counterexample
    assert example is not None
    place = f"b={example.b} h={example.h} i={example.i}" + (f" d={example.d}" if example.d is not None else "")
    shown = (
        f"{example.output.upper()} is not that of {wrong.meaning.name} attention on case '{wrong.case.name}' "
        f"({sizes_text(wrong.case.case)}): {example.got:.5g} instead of {example.want:.5g} at {place}"
    )
    kernel = read.kernel if read is not None else None
    step = _by_reading(wrong.contract, wrong.instance, wrong.meaning, wrong.case, kernel)
    if step is not None and read is not None:
        return _finding(step, shown, read, launched, wrong.case.flag)
    found = mispaired(wrong, launched)
    if found is not None:
        span, related = launched.place(found.site)
        made = make("CB880", span, related=related, step=found.sentence(), shown=shown)
        return Finding(made, _KINDS.get(found.step, "numeric"), "certain", "watching")
    return _unlocated(wrong, kernel, launched, shown)


def _unlocated(wrong: Wrong, kernel: Kernel | None, launched: Launched, shown: str) -> Finding:
    """Wrong numbers without a step: the known fault that gives them, and how far the values are right."""
    span = kernel.origin.span if kernel is not None else None
    fault = known_fault(wrong, launched)
    said = f"{shown}; it is exactly what comes out where {fault}" if fault else shown
    right = right_steps(wrong, launched)
    if right is not None:
        span = right.last
        said += f"; right are {right.words}, and {right.missing} was found nowhere"
    return Finding(make("CB881", span, shown=said), "numeric", "certain", "watching")


def wrong_program(launched: Launched, meaning: Attention, flag: int, read: Subject | None) -> Finding | None:
    """The first wrong step of the program that reading found, whatever its execution shows. None where none is."""
    cases = watch_cases(launched.contract, launched.instance, (flag,))
    if read is None or not cases:
        return None
    step = _by_reading(launched.contract, launched.instance, meaning, cases[0], read.kernel)
    shown = f"the program is not that of {meaning.name} attention"
    return None if step is None else _finding(step, shown, read, launched, flag)


def _finding(step: WrongStep, shown: str, read: Subject, launched: Launched, flag: int) -> Finding:
    inside = step.origin.callee
    related = (Related(inside, "inside this function"),) if inside is not None else ()
    related += (Related(step.also, "the correction"),) if step.also is not None else ()
    if step.cause == NO_SCALE:
        related += _passed_scale(read, launched.contract)
    span, more = _refined(step, read, launched, flag)
    made = make("CB880", span, related=(*more, *related), step=step.sentence(), shown=shown)
    return Finding(made, _KINDS.get(step.step, "softmax"), "certain", "watching")


def _passed_scale(read: Subject, contract: Contract) -> tuple[Related, ...]:
    """The parameter through which the scale comes in."""
    names = {p.name for p in contract.leaves if p.role in ("scale", "scale_log2")}
    params = read.kernel.params if read.kernel is not None else ()
    spans = [p.origin.span for p in params if p.name in names]
    return tuple(Related(span, "the scale that is passed") for span in spans if span is not None)


def _refined(step: WrongStep, read: Subject, launched: Launched, flag: int) -> tuple[Span | None, tuple[Related, ...]]:
    """The line that decides a step, where the text has one behind that of the operation: the end of the key range, the
    KV head, the load of an operand from another stage.
    """
    kernel = read.kernel
    if kernel is None:
        return step.span, ()
    if step.step == "range" and step.origin == kv_loop_of(kernel).origin:
        flags = {p.name: flag for p in read.contract.leaves if p.role == "flag:causal"} if read.contract else {}
        return bound_of(read, step.span, flags)
    if step.step in ("k", "v") and step.origin == kernel.grid.origin:
        head = read.lifted.anchors.head
        return (head.value if head is not None else step.span), ()
    products = {op.origin.span for op in walk_ops(kernel.body) if isinstance(op, Mma)}
    if step.step in ("k", "v", "range") and step.span in products:
        return launched.operand_line(step.span), ()
    return step.span, ()


def _by_reading(
    contract: Contract, instance: Instance, meaning: Attention, case: WatchCase, kernel: Kernel | None
) -> WrongStep | None:
    """The first wrong step of the program that reading found, with the arguments that the contract names.

    Looked for on problems of several tiles first: on a row of one key a wrong scale is a constant of the row.
    """
    if kernel is None or (kernel.D, kernel.Dv) != instance.widths:
        return None
    values = argument_values(contract, instance, case.flag)
    cases = watch_cases(contract, instance, (case.flag,))
    rich = [c for c in cases if c.case.name.removeprefix("like ") in _RICH]
    for tried in (*rich, case):
        tensors = inputs_of(tried, "float32", instance.head_dim**-0.5)
        try:
            step = first_wrong_step(kernel, meaning, tensors, tried.sizes, values)
        except (ArithmeticError, LookupError, ValueError):  # what was read of a faulty kernel need not execute
            continue
        if step is not None:
            return step
    return None


def argument_values(contract: Contract, instance: Instance, flag: int) -> dict[str, float | int]:
    """Scales and flags of a launch by parameter name."""
    scale = instance.head_dim**-0.5
    known = {"scale": scale, "scale_log2": scale * LOG2E, "flag:causal": flag}
    return {p.name: known[p.role] for p in contract.leaves if p.role in known}
