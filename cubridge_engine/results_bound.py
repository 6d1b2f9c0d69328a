"""The JSON contract, `cubridge contract`: how a kernel is called. See `results`."""

from __future__ import annotations

from typing import Any, Literal

from .results_base import FileRef, Frozen, Result


class BoundFactResult(Frozen):
    """One thing about how a kernel is called; `source` is the way it was found, `where` says it for people."""

    what: str
    value: str
    source: Literal["contract", "answer", "comment", "launch", "recorded", "signature", "name", "trial"]
    where: str
    span: dict[str, Any] | None = None


class QuestionResult(Frozen):
    """What only the user knows; the answer goes under `subject`, or under `what` where that is empty."""

    what: str
    subject: str
    text: str
    candidates: tuple[str, ...] = ()
    span: dict[str, Any] | None = None


class Bound(Result):
    """`cubridge contract`: how a kernel is called, and where each fact is from.

    `contract` is the text of its contract.toml, null while a question is open; `exists`: one stands beside the kernel;
    `written`: where it was written now. `tried`: what a run in the simulator computed with it.
    """

    kernel: FileRef
    kernel_name: str | None = None
    way: str = ""
    tried: str = ""
    facts: tuple[BoundFactResult, ...] = ()
    questions: tuple[QuestionResult, ...] = ()
    contract: str | None = None
    exists: bool = False
    written: str | None = None
