"""Results of `check` in the JSON contract (see `results`)."""

from __future__ import annotations

from typing import Any, Literal

from pydantic import Field

from .results_base import FileRef, Frozen, Result


class EditResult(Frozen):
    """The bytes of `span` become `text`."""

    span: dict[str, Any]
    text: str


class FixResult(Frozen):
    """A change that takes a finding away; offered only after the changed text was read again."""

    title: str
    edits: tuple[EditResult, ...]


class FindingResult(Frozen):
    """A diagnostic with its kind, how sure it is, how it was found, and a fix where one is certain."""

    code: str
    severity: str
    message: str
    help: str
    span: dict[str, Any] | None
    related: tuple[dict[str, Any], ...] = ()
    data: dict[str, Any] = Field(default_factory=dict)
    kind: str
    confidence: Literal["certain", "likely"]
    method: Literal["reading", "watching", "expectation", "frame"]
    fix: FixResult | None = None


class Findings(Result):
    """`cubridge check`: what is wrong with a kernel. `diagnostics` hold the findings and what else there is to say.

    `read`: every kernel of the file was read as a whole. `watched`: it was executed, `launches` times on `cases`.
    `suppressed` were ignored by comments, `known` by the baseline.
    """

    kernel: FileRef
    kernel_name: str | None = None
    findings: tuple[FindingResult, ...] = ()
    suppressed: tuple[FindingResult, ...] = ()
    known: int = 0
    read: bool = True
    watched: bool = False
    launches: int = 0
    cases: tuple[str, ...] = ()
    notes: tuple[str, ...] = ()
