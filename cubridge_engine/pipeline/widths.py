"""The widths of a job: the kernel lifted at those of the spec, or at the next ones that hold them."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from itertools import permutations
from typing import Any

from ..compile import Contract, shared_limit
from ..diagnostics import Diagnostic, make
from ..ir.nodes import Alloc, Kernel
from ..lift import lift
from ..results import PaddedResult
from ..source import SourceFile
from ..spec.attention import Attention, widths_of
from ..transfer.semantics import walk_ops
from . import codes as codes

Widths = tuple[int, int]  # (D, Dv)


def widths_of_kernel(kernel: Kernel) -> Widths:
    """(D, Dv)."""
    return kernel.D, kernel.Dv


def lift_at(source: SourceFile, kernel_name: str | None, widths: Widths | int | None) -> Any:
    """Lift, at these widths (or one for both) where the kernel is a template over them. Returns the lift room's
    ``Lifted``.
    """
    lifted = lift(source, kernel=kernel_name)
    return _lifted_again(source, lifted, kernel_name, (widths, widths) if isinstance(widths, int) else widths)


def _lifted_again(source: SourceFile, lifted: Any, kernel_name: str | None, widths: Widths | None) -> Any:
    kernel = lifted.kernel
    if kernel is None or widths is None or widths == widths_of_kernel(kernel):
        return lifted
    for values in _instantiations(kernel, widths):
        again = lift(source, kernel=kernel_name, instantiation=values)
        if again.kernel is not None and _same_but_widths(again.kernel, kernel, widths):
            return again
    return lifted


def _instantiations(kernel: Kernel, widths: Widths) -> Iterator[dict[str, int | str]]:
    """Template values that may give these widths. Which parameter is which width is not known from its name: what a
    kernel is at the new values tells.
    """
    known = kernel.instantiation
    names = [name for name, value in known.items() if value in (kernel.D, kernel.Dv)]
    if widths[0] == widths[1]:
        for name in names:
            # Others of the same value may follow by their default (``int DV = D``).
            rest = {n: v for n, v in known.items() if n not in names}
            yield {**rest, name: widths[0]}
            yield {**known, name: widths[0]}
    for d, dv in permutations(names, 2):
        yield {**known, d: widths[0], dv: widths[1]}


def _same_but_widths(kernel: Kernel, other: Kernel, widths: Widths) -> bool:
    return widths_of_kernel(kernel) == widths and (kernel.Br, kernel.Bc) == (other.Br, other.Bc)


def fit_widths(
    source: SourceFile, lifted: Any, contract: Contract | None, want: Widths, arch: str, asked: str | None = None
) -> tuple[Any, tuple[Diagnostic, ...]]:
    """The kernel lifted at `want`, or at the smallest widths that hold it; its caller then pads (CB029).

    CB021 or CB022, with the bytes, where there are none. `asked`: the kernel's name, where the user gave one. A kernel
    of one width is returned as it is for a spec of two: transfer refuses that with the way out.
    """
    kernel: Kernel = lifted.kernel
    limit = shared_limit(arch)
    for widths in _candidates(kernel, contract, want):
        if limit is not None and _bytes(kernel, contract, widths) > limit:
            break  # the others are larger
        found = _lifted_again(source, lifted, asked, widths)
        if found.coverage.complete and widths_of_kernel(found.kernel) == widths:
            return found, () if widths == want else (_padded(kernel, want, widths),)
    if want[0] != want[1] and not _has_two_widths(kernel, contract):
        return lifted, ()
    return lifted, (_refused(kernel, contract, want, arch),)


def as_given(attention: Attention, kernel: Kernel) -> Attention:
    """The attention on what the kernel is given: that of the spec, on tensors as wide as the kernel's. The same object
    where the widths agree, or where the spec does not fit.

    Columns of zeros change no score, and a scale was read as the number that it is at the spec's own width.
    """
    have = d, dv = widths_of_kernel(kernel)
    want = widths_of(attention, have)
    if want == have or want[0] > d or want[1] > dv or (want[0] != want[1] and d == dv):
        return attention
    fixed = {n: v for n, v in attention.specialised.items() if n != "Dv"}
    return replace(attention, specialised={**fixed, "D": d, **({"Dv": dv} if d != dv else {})})


def _candidates(kernel: Kernel, contract: Contract | None, want: Widths) -> tuple[Widths, ...]:
    """Widths to try, the least wasteful first."""
    if want[0] != want[1] and not _has_two_widths(kernel, contract):
        return ()
    if contract is not None:
        return contract.candidates(want)
    own = widths_of_kernel(kernel)
    return tuple(dict.fromkeys((want, *([own] if own[0] >= want[0] and own[1] >= want[1] else []))))


def _has_two_widths(kernel: Kernel, contract: Contract | None) -> bool:
    """True when D and Dv of the kernel may differ, as far as is known before it is lifted at such widths."""
    if contract is not None:
        return contract.rule is not None or any(d != dv for d, dv in contract.widths)
    names = [name for name, value in kernel.instantiation.items() if value in (kernel.D, kernel.Dv)]
    return kernel.Dv != kernel.D or len(names) > 1


def _padded(kernel: Kernel, want: Widths, widths: Widths) -> Diagnostic:
    padded = PaddedResult(d=(want[0], widths[0]), dv=(want[1], widths[1]))
    return make("CB029", kernel.origin.span, what=padded.text, kernel=kernel.name)


def _refused(kernel: Kernel, contract: Contract | None, want: Widths, arch: str) -> Diagnostic:
    have = ", ".join(_text(w) for w in (contract.widths if contract is not None else (widths_of_kernel(kernel),)))
    needed, limit = _bytes(kernel, contract, want), shared_limit(arch)
    span, words = kernel.origin.span, _text(want)
    if limit is None or needed <= limit:
        return make("CB022", span, want=words, kernel=kernel.name, have=have, bytes=needed)
    return make("CB021", span, want=words, kernel=kernel.name, bytes=needed, arch=arch, limit=limit, have=have)


def _text(widths: Widths) -> str:
    return str(widths[0]) if widths[0] == widths[1] else f"{widths[0]} (values of {widths[1]})"


def _bytes(kernel: Kernel, contract: Contract | None, widths: Widths) -> int:
    """Shared bytes of a CTA at these widths."""
    if contract is not None:
        return contract.shared_at(widths, contract.dtypes[0])
    new = {kernel.D: widths[0]} if kernel.Dv == kernel.D else {kernel.D: widths[0], kernel.Dv: widths[1]}
    shared = [op for op in walk_ops(kernel.body) if isinstance(op, Alloc) and op.space == "shared"]
    element = {"float32": 4}
    return sum(op.slots * op.rows * new.get(op.cols, op.cols) * element.get(op.dtype, 2) for op in shared)
