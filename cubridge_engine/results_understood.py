"""Results of `explain` and `diff` in the JSON contract (see `results`)."""

from __future__ import annotations

from typing import Literal

from pydantic import Field

from .results_base import FileRef, Frozen, Result

Lines = tuple[tuple[int, int], ...]  # first and last line of places in the kernel's file, from 0


class SentenceResult(Frozen):
    """One thing that is known of a kernel (or not), how it is known, and where it stands. `lead`: it is part of the
    paragraph.
    """

    topic: str
    text: str
    evidence: Literal["read", "executed", "observed", "contract"]
    lines: Lines = ()
    lead: bool = True


class FactResult(Frozen):
    """One row on how a kernel goes about it; `key` is stable, `name` is for people."""

    key: str
    name: str
    value: str
    evidence: Literal["read", "executed", "observed", "contract"]
    lines: Lines = ()


class EquationResult(Frozen):
    """One equation: `left` = `text`, or a continuation where `left` is empty; `line` from 0, where one stands behind
    it.
    """

    part: str
    left: str
    text: str
    line: int | None = None


class StepResult(Frozen):
    """A step of attention that was observed when the kernel ran: `line` (from 0) is where its value is complete, null
    where that is in no line of the file itself; `lines` all that hold it. `read`: how it stands to what was read, ''
    where reading did not find it.
    """

    name: str
    words: str
    holds: str
    line: int | None = None
    lines: Lines = ()
    confidence: Literal["certain", "likely"]
    problem: str
    read: Literal["", "agrees", "beside", "conflicts"] = ""


class Explained(Result):
    """`cubridge explain`: a kernel in one paragraph, as mathematics, and as rows; what is not known, and why.

    `understood`: its function is stated. `choices` are the kernels of the file. `watched`: it was run in the simulator;
    then `steps` are those that were observed. `coverage` says how many steps are known, with those; `function` is
    the one that was observed, `agrees` whether reading says the same (null where the two could not be compared).
    """

    kernel: FileRef
    kernel_name: str | None = None
    choices: tuple[str, ...] = ()
    understood: bool = False
    watched: bool = False
    title: str = ""
    paragraph: str = ""
    equations: tuple[EquationResult, ...] = ()
    sentences: tuple[SentenceResult, ...] = ()
    facts: tuple[FactResult, ...] = ()
    unknown: tuple[SentenceResult, ...] = ()
    coverage: str = ""
    function: str = ""
    agrees: bool | None = None
    steps: tuple[StepResult, ...] = ()


class WitnessResult(Frozen):
    """One element at which two kernels differ: sizes, values of switches and scalars, and what each has there."""

    sizes: dict[str, int]
    b: int
    h: int
    i: int
    j: int | None
    in_a: str
    in_b: str
    values: dict[str, float | int] = Field(default_factory=dict)


class DifferenceResult(Frozen):
    """A part of the function that differs, in either kernel, with its lines there."""

    part: str
    sentence: str
    a: str
    b: str
    a_lines: Lines = ()
    b_lines: Lines = ()
    witness: WitnessResult | None = None


class ChangeResult(Frozen):
    """A difference in how it is computed: the row of `Explained.facts` on either side, '' where a side has none."""

    key: str
    name: str
    a: str
    b: str
    a_lines: Lines = ()
    b_lines: Lines = ()


class Diffed(Result):
    """`cubridge diff`: two kernels compared. `same` is null where that could not be decided; `why` says how it is
    known, or why not. `setting`: at which settings of switches the formulas agree though not at all of them.
    """

    a: FileRef
    b: FileRef
    a_name: str | None = None
    b_name: str | None = None
    same: bool | None = None
    why: str = ""
    setting: str = ""
    semantic: tuple[DifferenceResult, ...] = ()
    orchestration: tuple[ChangeResult, ...] = ()
