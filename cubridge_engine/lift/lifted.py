"""`lift`: a CUDA source to a CuIR kernel with anchors, coverage and diagnostics. Never raises."""

from __future__ import annotations

import dataclasses
import time
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from ..diagnostics import Diagnostic, make
from ..ir.anchors import Anchors
from ..ir.nodes import For, If, Kernel, Op, Origin
from ..source import SourceFile
from . import budget, lifting, select
from .coverage import Coverage, Seen
from .cute import CuteReading, is_of_cute, with_cute
from .observed import Observed
from .proposed import with_provenance


@dataclass(frozen=True)
class Lifted:
    """The result of reading one kernel. `kernel` is None when nothing attention-like was found; `diagnostics` say
    why.
    """

    kernel: Kernel | None
    anchors: Anchors
    coverage: Coverage
    diagnostics: tuple[Diagnostic, ...]
    summary: str
    choices: tuple[str, ...] = ()  # names of all kernels of the file
    seconds: float = 0.0
    source: SourceFile | None = field(default=None, repr=False, compare=False)
    observed: Observed = field(default_factory=Observed, repr=False, compare=False)  # what CuIR does not keep
    cute: CuteReading = field(default_factory=CuteReading, repr=False, compare=False)  # labels, no program
    seen: tuple[Seen, ...] = ()  # what watching the kernel run adds (`watch.merge`); reading leaves it empty

    def ops_at(self, line: int) -> list[Op]:
        """The operations whose text (call site or callee) covers the 0-based `line`, outermost first."""
        found: list[Op] = []

        def visit(ops: tuple[Op, ...]) -> None:
            for op in ops:
                origin: Origin = getattr(op, "origin")  # noqa: B009 - every op has one, the base class does not say so
                if any(s is not None and s.line <= line <= s.end_line for s in (origin.span, origin.callee)):
                    found.append(op)
                if isinstance(op, For):
                    visit(op.body)
                elif isinstance(op, If):
                    visit((*op.body, *op.orelse))

        if self.kernel is not None:
            visit(self.kernel.body)
        return found


def lift(
    source: SourceFile,
    *,
    kernel: str | None = None,
    instantiation: Mapping[str, int | str] | None = None,
    remember: bool = True,
    anchors: bool = True,
    budget_s: float = budget.DEFAULT_S,
) -> Lifted:
    """Read the kernel named `kernel` (or the first that looks like attention) of `source` into CuIR.

    `instantiation` gives template parameters by name; missing ones come from explicit instantiations, launches or
    defaults. `remember`: keep the result, and the source with it, for the next call with the same text. `anchors`: look
    for the places that lowering needs; who only reads can do without, and waits an eighth less. A kernel that takes
    longer than `budget_s` seconds of this thread's work is refused (CB129).
    """
    read_along = tuple(header.source.data for header in source.headers)
    given = tuple(sorted((instantiation or {}).items()))
    key = (source.path, source.data, source.clean, read_along, kernel, given, anchors)
    if key in _CACHE:
        _CACHE[key] = _CACHE.pop(key)  # the last to be forgotten
        return _CACHE[key]
    start, worked = time.perf_counter(), time.thread_time()
    names = tuple(k.name for k in source.kernels())
    best: Lifted | None = None
    for name in [kernel] if kernel else names:
        result = _guarded(source, name, instantiation or {}, names, anchors, budget_s)
        if best is None or result.coverage.score > best.coverage.score:
            best = result
        if result.coverage.complete or time.thread_time() - worked > _PATIENCE:
            break
    if best is None:
        best = Lifted(None, Anchors(), Coverage(), (make("CB120", source.span_of(0, 0)),), "no kernel found", names)
    if not best.coverage.complete:
        best = _labelled(best, source, kernel)
    if source.missing and not best.coverage.complete:
        lost = ", ".join(item.message.split('"')[1] for item in source.missing if '"' in item.message)
        best = dataclasses.replace(
            best, diagnostics=(*best.diagnostics, *source.missing), summary=f"{best.summary}; without the header {lost}"
        )
    result = dataclasses.replace(best, seconds=time.perf_counter() - start, source=source)
    while remember and len(_CACHE) >= _CACHE_SIZE:
        del _CACHE[next(iter(_CACHE))]
    if remember:
        _CACHE[key] = result
    return result


def _labelled(best: Lifted, source: SourceFile, kernel: str | None) -> Lifted:
    """With what the calls of a tensor library show where no program was read."""
    coverage, found = with_cute(best.coverage, source, kernel)
    if not found.steps:
        return dataclasses.replace(best, cute=found)
    told = tuple(d for d in best.diagnostics if d.code not in ("CB120", "CB122") and not is_of_cute(d))
    summary = f"{found.function}: {coverage.sentence()}"
    return dataclasses.replace(best, coverage=coverage, cute=found, diagnostics=told, summary=summary)


_CACHE: dict[Any, Lifted] = {}
_CACHE_SIZE = 16
_PATIENCE = 10.0  # seconds of work after which no further kernel of a file is tried; `kernel` names the one meant


def _guarded(
    source: SourceFile,
    name: str,
    given: Mapping[str, int | str],
    names: tuple[str, ...],
    anchors: bool,
    budget_s: float,
) -> Lifted:
    """`_lift_one`, with a failure of the lifter itself as a diagnostic: reading never raises."""
    try:
        with budget.limited(budget_s):
            return _lift_one(source, name, given, names, anchors)
    except budget.OutOfTime:
        found = make("CB129", source.span_of(0, 0), name=name, seconds=budget_s)
        return Lifted(None, Anchors(), Coverage(), (found,), f"{name}: not read to its end", names)
    except Exception as error:  # the boundary of the room: any text may arrive here
        found = make("CB127", source.span_of(0, 0), name=name, why=f"{type(error).__name__}: {error}")
        return Lifted(None, Anchors(), Coverage(), (found,), f"{name}: could not be read", names)


def _with_marks(kernel: Kernel | None, source: SourceFile) -> Kernel | None:
    return with_provenance(kernel, source.data) if kernel is not None else None


def _lift_one(
    source: SourceFile, name: str, given: Mapping[str, int | str], names: tuple[str, ...], anchors: bool
) -> Lifted:
    chosen = select.choose(source, name, given)
    if chosen is None:
        return Lifted(
            None,
            Anchors(),
            Coverage(),
            (make("CB121", source.span_of(0, 0), name=name, names=", ".join(names)),),
            "",
            names,
        )
    best: Lifted | None = None
    for threads, block in chosen.blocks:
        result = lifting.lift_kernel(source, chosen, threads, block, anchors)
        if best is None or result.coverage.score > best.coverage.score:
            read = _with_marks(result.kernel, source)
            best = Lifted(
                read,
                result.anchors,
                result.coverage,
                result.diagnostics,
                result.summary,
                names,
                observed=result.observed,
            )
        if result.coverage.complete or not result.exponential:
            break  # without an exponential it is no attention for any block size
    assert best is not None
    return best
