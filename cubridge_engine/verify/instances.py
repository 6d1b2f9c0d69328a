"""The instantiations of a contract, and for each of their head dimensions the kernel, the spec and the grid."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field

from ..compile import Contract, Instance
from ..ir.nodes import Kernel
from ..spec.attention import Attention
from .derive import tile_for
from .explain import Binding
from .grid import Case
from .prepare import Preparer
from .subject import Subject, Variant


@dataclass(frozen=True, slots=True)
class AtHeadDim:
    """The kernel, the spec with its references, the binding and the grid at one head dimension."""

    kernel: Kernel
    attention: Attention
    preparer: Preparer
    binding: Binding
    cases: Sequence[Case]


@dataclass(slots=True)
class Instances:
    """What levels that execute compiled code run: made once, and another head dimension only when it is asked for.

    `cases_at` gives the grid of a spec on a kernel. The spec's own head dimension is that of ``subject.kernel``.
    """

    subject: Subject
    contract: Contract
    attention: Attention
    preparer: Preparer
    cases_at: Callable[[Attention, Kernel], Sequence[Case]]
    _made: dict[int, AtHeadDim | None] = field(default_factory=dict[int, "AtHeadDim | None"])

    def __post_init__(self) -> None:
        # A head dimension names one instantiation: those left have one width for all, or the spec's own two.
        self.contract = self.contract.for_widths((self.subject.kernel.D, self.subject.kernel.Dv))

    def at(self, head_dim: int) -> AtHeadDim | None:
        """The problem at a head dimension; None where kernel or spec have no such form."""
        if head_dim not in self._made:
            self._made[head_dim] = self._make(head_dim)
        return self._made[head_dim]

    def _make(self, head_dim: int) -> AtHeadDim | None:
        own = head_dim == self.subject.kernel.D
        if own:
            mine = Variant(self.subject.kernel, self.attention, self.preparer.program, self.subject.binding)
            return self._problem(mine, self.preparer)
        variant = self.subject.at_head_dim(head_dim) if self.subject.at_head_dim is not None else None
        if variant is None:
            return None
        tile = tile_for(variant.attention, variant.kernel)
        return self._problem(variant, Preparer(variant.attention, variant.program, tile))

    def _problem(self, variant: Variant, preparer: Preparer) -> AtHeadDim:
        cases = self.cases_at(variant.attention, variant.kernel)
        return AtHeadDim(variant.kernel, variant.attention, preparer, variant.binding, cases)

    def problems(self) -> Mapping[int, AtHeadDim]:
        """Every head dimension of the contract at which kernel and spec exist, the spec's own first."""
        dims = dict.fromkeys((self.subject.kernel.D, *self.contract.head_dims))
        found = {d: self.at(d) for d in dims if d in self.contract.head_dims}
        return {d: problem for d, problem in found.items() if problem is not None}

    def primary(self) -> Instance | None:
        """The instantiation of the spec's own head dimension and dtype (the contract's first one where the kernel is
        not made for that dtype).
        """
        here = [i for i in self.contract.instances if i.head_dim == self.subject.kernel.D]
        own = self.attention.input("q").dtype
        return next((i for i in here if i.dtype == own), here[0] if here else None)
