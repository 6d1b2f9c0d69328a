"""What finding out how to call a kernel gives: a contract, and for each fact of it where it was read."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

from ..compile import Contract
from ..compile.alone import Alone
from ..diagnostics import Diagnostic, Severity, Span

# Ways of finding out, in the order in which they are believed -> words for a reader.
SOURCES = {
    "contract": "contract.toml",
    "answer": "the user's answer",
    "comment": "comment // cubridge:",
    "launch": "launch in the file",
    "recorded": "host launcher recorded",
    "signature": "signature",
    "name": "name",
    "trial": "trial",
}


@dataclass(frozen=True, slots=True)
class Fact:
    """One thing known about the call. `what` is ``kernel``, ``instance``, ``grid``, ``block``, ``shared``, ``tiles``,
    ``function``, ``requires`` or ``parameter NAME``; `source` is a key of SOURCES; `where` says it for a reader
    (``launch at line 88``).
    """

    what: str
    value: str
    source: str
    where: str
    span: Span | None = None


@dataclass(frozen=True, slots=True)
class Question:
    """What only the user knows. `what` is ``kernel``, ``role``, ``instance``, ``grid`` or ``block``; `subject` the
    parameter for a role. An answer is given as ``subject=candidate`` (or ``what=candidate`` where there is no subject).
    """

    what: str
    subject: str
    text: str
    candidates: tuple[str, ...]
    span: Span | None = None

    @property
    def key(self) -> str:
        """The left side of an answer."""
        return self.subject or self.what


@dataclass(frozen=True, slots=True)
class Binding:
    """How to call one kernel. `contract` is None while a question is open or nothing could be found; `tried` says what
    a trial in the simulator computed ('' when none was made).
    """

    path: str
    kernel: str
    contract: Contract | None
    facts: tuple[Fact, ...]
    questions: tuple[Question, ...]
    diagnostics: tuple[Diagnostic, ...]
    compiled: Alone | None = None
    tried: str = ""

    @property
    def ok(self) -> bool:
        """True when there is a contract and no error."""
        return self.contract is not None and all(d.severity < Severity.ERROR for d in self.diagnostics)

    @property
    def way(self) -> str:
        """The way that gave most of the contract: the first of SOURCES that gave its grid."""
        grid = next((fact.source for fact in self.facts if fact.what == "grid"), "")
        return grid or next((fact.source for fact in self.facts), "")


@dataclass(frozen=True, slots=True)
class BindOptions:
    """`kernel`: which __global__ function. `answers`: by ``Question.key``, or ``role`` words by parameter name, and
    ``grid``, ``block``, ``shared``, ``instance``. `record`: the user's host code may be compiled and run. `trial`: the
    binding is tried in the simulator. `ignore_contract`: find out again although there is a contract.toml.
    """

    kernel: str = ""
    answers: Mapping[str, str] = field(default_factory=dict[str, str], hash=False)
    record: bool = False
    trial: bool = True
    ignore_contract: bool = False
    arch: str = "sm_80"
    include_dirs: tuple[Path, ...] = ()
    defines: tuple[str, ...] = ()
    seconds: float = 120.0
