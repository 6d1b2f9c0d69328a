"""What the sentences about a kernel are made of."""

from __future__ import annotations

from dataclasses import dataclass

from ..compile import Contract
from ..diagnostics import Span
from ..ir.nodes import Kernel
from ..transfer.structure import NotAttention
from .facts import facts_of
from .functions import function_of_kernel
from .model import Fact, Function
from .trial import ALL, WHOLE, Behaviour, behaviour


@dataclass(frozen=True, slots=True)
class Known:
    """A kernel that was read whole. `function` is None where no formula can be stated; `why` says why."""

    kernel: Kernel
    contract: Contract | None
    function: Function | None
    why: str
    behaviour: Behaviour
    facts: tuple[Fact, ...]

    @property
    def evidence(self) -> str:
        """How the formula is known: executing the program agreed with it (on whole tiles at least), or it was read."""
        return "executed" if self.behaviour.agrees(*ALL) or self.behaviour.agrees(*WHOLE) else "read"

    @property
    def contradicted(self) -> bool:
        """True where executing the program gave something else than its formula, on whole tiles too."""
        return bool(self.behaviour.runs) and self.evidence == "read"

    def fact(self, key: str) -> Fact | None:
        """The row of that key."""
        return next((fact for fact in self.facts if fact.key == key), None)

    def spans(self, part: str) -> tuple[Span, ...]:
        """The line responsible for a part of the function."""
        span = self.function.spans.get(part) if self.function is not None else None
        return () if span is None else (span,)


def know(kernel: Kernel, contract: Contract | None = None) -> Known:
    """Compose the formula of a kernel that was read whole, and execute it beside that formula."""
    facts = facts_of(kernel, contract)
    try:
        function = function_of_kernel(kernel)
    except NotAttention as why:
        return Known(kernel, contract, None, str(why), Behaviour((), str(why)), facts)
    if function.issues:
        return Known(kernel, contract, None, "; ".join(function.issues), Behaviour((), function.issues[0]), facts)
    return Known(kernel, contract, function, "", behaviour(kernel, function), facts)
