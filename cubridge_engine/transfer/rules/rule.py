"""The type of a rule: a row of the table."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass

from ..draft import Draft


@dataclass(frozen=True, slots=True)
class Example:
    """A spec (fields of Attention as text), a line of the reference program before, and the lines that stand in its
    place after.
    """

    spec: Mapping[str, str]
    before: str
    after: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Rule:
    """One rule. `checks` names the safety conditions `apply` evaluates; a failed one refuses the whole transfer."""

    name: str
    summary: str
    checks: tuple[str, ...]
    apply: Callable[[Draft], Draft]
    example: Example | None = None
