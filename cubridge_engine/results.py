"""The JSON contract: what `cubridge ... --format json`, the jobs and the editor receive. Documented in docs/json-
contract.md.

Frozen pydantic models, so that the schema, the reader and the writer are one thing. `schema_version` rises when a field
changes its meaning or goes away; new fields do not raise it. Diagnostics are in the form of `diagnostics.to_json` (one
object each).
"""

from __future__ import annotations

import json
from typing import Any, Literal

from pydantic import Field
from pydantic.json_schema import models_json_schema

from .results_base import SCHEMA_VERSION as SCHEMA_VERSION
from .results_base import FileRef as FileRef
from .results_base import Frozen as _Frozen
from .results_base import Result as Result
from .results_base import Stage as Stage
from .results_base import State as State
from .results_bound import Bound as Bound
from .results_bound import BoundFactResult as BoundFactResult
from .results_bound import QuestionResult as QuestionResult
from .results_findings import EditResult as EditResult
from .results_findings import FindingResult as FindingResult
from .results_findings import Findings as Findings
from .results_findings import FixResult as FixResult
from .results_understood import Diffed as Diffed
from .results_understood import Explained as Explained

LevelName = Literal["none", "lifted", "ir", "compiled", "simulated", "gpu"]
Applicability = Literal["verified", "unverified", "sketch"]


class CounterexampleResult(_Frozen):
    """One wrong element. `d` is the column of O (null for LSE), `j` the first key treated otherwise than in the spec,
    if known.
    """

    output: Literal["o", "lse"]
    b: int
    h: int
    i: int
    d: int | None
    j: int | None
    got: float | str
    want: float | str


WHOLE = "whole module"  # name of the case that runs the user's whole function, with the kernel in its drop-in


class CaseResult(_Frozen):
    """One problem of the grid at one level. `dtype` float64 means: the program without any rounding. Errors are
    relative to each row's scale. `arch`: whose PTX the simulator executed; '' at other levels.
    """

    name: str
    why: str
    level: Literal["ir", "simulated", "gpu"]
    sizes: dict[str, int]
    dtype: str
    layout: str
    schedule: str
    seed: int
    worst_o: float | str
    worst_lse: float | str | None
    tolerance: float
    passed: bool
    kept_rows: int = 0
    reference: Literal["spec", "formula"] = "spec"
    arch: str = ""
    counterexample: CounterexampleResult | None = None


class CompiledResult(_Frozen):
    """What ptxas says of one instantiation on one architecture. Bytes of shared memory include the dynamic ones."""

    instantiation: str
    arch: str
    registers: int | None
    spill_bytes: int | None
    shared_bytes: int | None
    shared_limit: int | None
    notes: tuple[str, ...] = ()


class LineCost(_Frozen):
    """What the instructions of one line (from 0) of the kernel's file did in a launch.

    `instructions` are PTX instructions issued by warps, `share` their part of the launch's, `classes` the same by
    class. `passes`: how often a warp goes over the line. `active`: share of the lanes that did something. Bytes are
    those of the whole launch. `wavefronts` of shared memory were counted in one CTA, `ideal_wavefronts` is what they
    would be without bank conflicts, `bank_ways` the worst access of the line (1.0: none; null: no access was counted).
    """

    line: int
    text: str
    instructions: int
    share: float
    passes: float
    active: float
    classes: dict[str, int]
    global_read: int = 0
    global_write: int = 0
    shared_read: int = 0
    shared_write: int = 0
    wavefronts: int = 0
    ideal_wavefronts: int = 0
    bank_ways: float | None = None


class CostResult(_Frozen):
    """Counts of one launch, the largest problem of the grid: in total, and by line, in the order of the file.

    `lines` have each instruction once, at the innermost line of the file that it comes from. `calls` are the lines that
    call functions of the file, with what was inlined there.
    Lines are those of the text that was verified (for adapt: of the result's `text`).
    """

    case: str
    sizes: dict[str, int]
    schedule: str
    ctas: int
    warps: int
    instructions: int
    active: float
    classes: dict[str, int]
    bytes: dict[str, int]
    lines: tuple[LineCost, ...]
    calls: tuple[LineCost, ...] = ()


class SimulatedResult(_Frozen):
    """What the simulator ran of one instantiation: the problems by name, each under every one of the schedules.

    `instructions` are thread-instructions executed;
    `bank_conflict_ways` is the worst shared access of the largest problem (1.0: none), null when there is no access.
    `value_dim` is the width of V and O where it is not `head_dim`.
    `same_as` are architectures whose PTX is the same text; `cost` is there for the primary instantiation. `values` is
    what was passed for the kernel's own scale and switches: at another head dimension the scale may be another.
    """

    instantiation: str
    arch: str
    dtype: str
    head_dim: int
    value_dim: int | None = None
    cases: tuple[str, ...]
    schedules: tuple[str, ...]
    launches: int
    instructions: int
    bank_conflict_ways: float | None
    same_as: tuple[str, ...] = ()
    cost: CostResult | None = None
    values: dict[str, float | int] = Field(default_factory=dict)


class PaddedResult(_Frozen):
    """The kernel is wider than the spec: its caller adds columns of zeros to q and k (D) and to v (Dv), which change no
    score, and cuts off what they add to o. Pairs are the spec's width and the kernel's.
    """

    d: tuple[int, int]
    dv: tuple[int, int]

    @property
    def text(self) -> str:
        """``40 -> 64``, or the same for q and k and for v where these differ."""
        if self.d == self.dv:
            return f"{self.d[0]} -> {self.d[1]}"
        rows = (("q and k", *self.d), ("v", *self.dv))
        return ", ".join(f"{name} {a} -> {b}" for name, a, b in rows if a != b)


class PowerResult(_Frozen):
    """A wrong answer that the grid must reject: its distance from the reference on the best case, as an error of a row
    (relative to the row's largest value, as ``worst_o`` of a case).
    """

    what: str
    kind: Literal["output", "constant"]
    case: str
    distance: float | str
    rejected: bool


class EmptyRows(_Frozen):
    """Rows without a key: how many on the grid, what the spec gives there, and what was done about it."""

    rows: int
    spec: str
    policy: Literal["keep", "exact"]
    kept: int


class DeviceResult(_Frozen):
    """The GPU the grid ran on."""

    name: str
    arch: str
    driver: str


class Report(_Frozen):
    """How far a kernel was verified against a spec, and what says so. `padded` is null where their widths agree."""

    level: LevelName
    applicability: Applicability
    stages: tuple[Stage, ...]
    cases: tuple[CaseResult, ...] = ()
    compiled: tuple[CompiledResult, ...] = ()
    simulated: tuple[SimulatedResult, ...] = ()
    power: tuple[PowerResult, ...] = ()
    empty_rows: EmptyRows | None = None
    padded: PaddedResult | None = None
    covered: dict[str, str] = Field(default_factory=dict)
    not_covered: dict[str, str] = Field(default_factory=dict)
    device: DeviceResult | None = None
    seeds: tuple[int, ...] = ()
    versions: dict[str, str] = Field(default_factory=dict)

    def worst(self, dtype: str, level: str | None = None) -> float | None:
        """The worst row error of O over the cases of that dtype (and level); None when there is no such case."""
        values = [float(c.worst_o) for c in self.cases if c.dtype == dtype and level in (None, c.level)]
        return max(values, default=None)

    def values_elsewhere(self) -> dict[int, dict[str, float | int]]:
        """By head dimension, the values a launch needs otherwise than at the spec's own: a scale, as a rule."""
        own = self.simulated[0].values if self.simulated else {}
        changed = {one.head_dim: {n: v for n, v in one.values.items() if v != own.get(n)} for one in self.simulated}
        return {d: values for d, values in changed.items() if values}


class HunkResult(_Frozen):
    """One change: bytes ``[start, end)`` of the kernel as it was (`old`) become `new`. `why` names the rules; the spec
    line is 0-based. `proposed`: a model wrote it, in whole or in part.
    """

    start: int
    end: int
    line: int
    old: str
    new: str
    why: str
    spec_line: int | None = None
    proposed: bool = False


class ChangedFile(_Frozen):
    """A further file of the user's project that changes with the kernel: `name` is relative to the kernel's folder."""

    path: str
    name: str
    base_sha256: str
    hunks: tuple[HunkResult, ...]
    text: str
    encoding: str = "utf-8"
    diff: str


class DerivedResult(_Frozen):
    """A tensor that the adapted kernel takes and the spec does not have: the caller makes it from the spec's inputs.

    `shape` are formulas of the lengths, and with `bytes` at most: at `sizes`, those of the example. `built_by` is the
    function of the drop-in that makes it; null where there is no drop-in.
    """

    name: str
    what: str
    dtype: str
    shape: tuple[str, ...]
    bytes: int
    sizes: dict[str, int]
    built_by: str | None


class ProposedResult(_Frozen):
    """What a model had to do with a result: which one, where it runs, which parts are its own, and what asking took.

    `parts` are names of sites, or what was chosen (rules, target program, values). Tokens are those of prompts and of
    replies; `usd` is null where no price was given. `seconds` are those of waiting for the model.
    """

    model: str
    host: str
    parts: tuple[str, ...]
    rounds: int
    attempts: int
    prompt_tokens: int
    reply_tokens: int
    seconds: float
    usd: float | None = None


class Adaptation(Result):
    """`cubridge adapt`: the kernel changed to mean the spec. `text` is null when there is nothing to show.

    `drop_in` is a Python file that holds what the spec does before and after the attention and makes what is `derived`,
    and `drop_in_written` where it was written; both are null where the kernel alone does what the spec does. `proposed`
    is null where no model took part. `evidence` is ``observed`` where the kernel was watched, not read; `files` are
    others that change with it, and `diff` has them all. `files_written` begins with `written`, the kernel's.
    """

    level: LevelName
    applicability: Applicability
    evidence: Literal["read", "observed"] = "read"
    hunks: tuple[HunkResult, ...] = ()
    files: tuple[ChangedFile, ...] = ()
    report: Report | None = None
    text: str | None = None
    diff: str = ""
    drop_in: str | None = None
    drop_in_written: str | None = None
    derived: tuple[DerivedResult, ...] = ()
    proposed: ProposedResult | None = None
    bindings: dict[str, Any] = Field(default_factory=dict)
    kernel: FileRef
    spec: FileRef
    kernel_name: str | None = None
    base_sha256: str = ""
    encoding: str = "utf-8"
    written: str | None = None
    files_written: tuple[str, ...] = ()


class Verification(Result):
    """`cubridge verify`: any kernel against a spec."""

    level: LevelName
    applicability: Applicability
    report: Report | None = None
    bindings: dict[str, Any] = Field(default_factory=dict)
    kernel: FileRef
    spec: FileRef
    kernel_name: str | None = None


class SpecReading(Result):
    """`cubridge spec`: what a spec means, as text in the scalar language; the tile map of its mask where asked for."""

    spec: FileRef
    attention: dict[str, Any] | None = None
    tiles: dict[str, Any] | None = None


class Lifting(Result):
    """`cubridge lift`: the CuIR text of a kernel, and how much of it was understood."""

    kernel: FileRef
    kernel_name: str | None = None
    summary: str = ""
    cuir: str = ""
    coverage: dict[str, Any] = Field(default_factory=dict)


class Exporting(Result):
    """`cubridge export`: the text of a Python module with the kernel as a PyTorch operator.

    `inputs` are the operator's tensors in order, `level` how far the kernel's header says that it was verified.
    """

    kernel: FileRef
    kernel_name: str | None = None
    operator: str
    level: str = ""
    inputs: tuple[str, ...] = ()
    text: str | None = None
    written: str | None = None


class ContenderResult(_Frozen):
    """One that computes the spec: `ms` (median) and `error` (relative, in the Frobenius norm) where it was timed; else
    `why` not. `ratio` is its time over that of the kernel: above 1 the kernel is faster.
    """

    name: str
    ms: float | None = None
    error: float | None = None
    tflops: float | None = None
    ratio: float | None = None
    why: str = ""


class Measured(Result):
    """`cubridge bench`: a kernel against what else computes the spec, in one process, taking turns.

    `sizes` is empty where the spec is more than an attention: then its example was measured. `pairs` counts attended
    pairs of rows and keys, where that is known; `tflops` are 2 (D + Dv) for each.
    """

    kernel: FileRef
    spec: FileRef
    kernel_name: str | None = None
    sizes: dict[str, int] = Field(default_factory=dict)
    dtype: str = ""
    device: str = ""
    torch: str = ""
    rounds: int = 0
    pairs: int | None = None
    contenders: tuple[ContenderResult, ...] = ()


RESULTS: dict[str, type[Result]] = {
    "adapt": Adaptation,
    "verify": Verification,
    "spec": SpecReading,
    "lift": Lifting,
    "explain": Explained,
    "diff": Diffed,
    "check": Findings,
    "contract": Bound,
    "export": Exporting,
    "bench": Measured,
}


def json_schema() -> dict[str, Any]:
    """The JSON schema of every command's result: the file docs/json-contract.schema.json."""
    _, schema = models_json_schema([(model, "serialization") for model in RESULTS.values()], title="CuBridge results")
    return schema


if __name__ == "__main__":
    print(json.dumps(json_schema(), indent=2))
