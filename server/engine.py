"""The only module that touches the engine's rooms: reading a kernel in this process, jobs in the worker.

What leaves here is plain data in editor terms. ``lift`` is imported on first use, in the reading thread: it brings
NumPy, which the server does not need to answer ``initialize``.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from cubridge_engine.diagnostics import Diagnostic, Severity, Span, diagnostic_from_json, make
from cubridge_engine.jobs import AsyncWorker
from cubridge_engine.source import SourceFile, parse

if TYPE_CHECKING:
    from cubridge_engine.ir.nodes import Kernel
    from cubridge_engine.lift import Lifted

    from .landmarks import Landmark

OnProgress = Callable[[str, float, str], None]  # stage, fraction 0..1, message


@dataclass(frozen=True, slots=True)
class KernelView:
    """The kernel that was lifted: `span` is its definition, template line included."""

    name: str
    span: Span
    summary: str
    level: str  # lifted | partly lifted, 6 of 9 steps
    ir: str

    def covers(self, first: int, last: int) -> bool:
        """Whether the 0-based lines `first`..`last` touch the definition."""
        return self.span.line <= last and first <= self.span.end_line


@dataclass(frozen=True, slots=True)
class Reading:
    """What reading one version of a file gave. `kernel` is None when the file has none that could be lifted."""

    source: SourceFile | None
    lifted: Lifted | None
    kernel: KernelView | None
    landmarks: tuple[Landmark, ...]
    diagnostics: tuple[Diagnostic, ...]

    def ops_at(self, line: int) -> list[str]:
        """CuIR text of the operations that come from the 0-based line."""
        if self.lifted is None:
            return []
        from cubridge_engine.ir.text import print_op

        return [print_op(op) for op in self.lifted.ops_at(line)]

    def notes_at(self, line: int) -> list[str]:
        """What the line means in the paper's terms."""
        return [mark.label for mark in self.landmarks if mark.line == line]


def read(path: str, data: bytes, previous: Reading | None) -> Reading:
    """Parse and lift `data`. Runs in a thread; `previous` is an older reading of the file, to parse the change only."""
    from cubridge_engine.lift import lift

    from .landmarks import landmarks

    source = parse(path, data, previous=previous.source if previous else None)
    lifted = lift(source)
    found = tuple(source.diagnostics) + tuple(item for item in lifted.diagnostics if item not in source.diagnostics)
    if lifted.kernel is None:
        return Reading(source, lifted, None, (), found)
    view = _view(source, lifted, lifted.kernel)
    return Reading(source, lifted, view, landmarks(lifted.kernel, path), found)


def unreadable(path: str) -> Reading:
    """The reading of a file on which reading itself broke: nothing is known, and the editor says so."""
    return Reading(None, None, None, (), (make("CB077", name=path.rpartition("/")[2]),))


def _view(source: SourceFile, lifted: Lifted, kernel: Kernel) -> KernelView:
    from cubridge_engine.ir.text import print_kernel

    function = next((item for item in source.kernels() if item.name == kernel.name), None)
    whole = source.span(function.template or function.node) if function else source.span_of(0, len(source.data))
    # The engine's sentence is "NAME: what it computes, tiles; N of M steps"; the lens stands over it.
    summary, _, steps = lifted.summary.removeprefix(f"{kernel.name}: ").partition("; ")
    return KernelView(
        name=kernel.name,
        span=whole,
        summary=summary,
        level="lifted" if lifted.coverage.complete else f"partly lifted, {steps}",
        ir=print_kernel(kernel, lines=True),
    )


# --- jobs ---

# Options a caller may pass on to a job; they are those of the command line.
OPTIONS = (
    *("archs", "bindings", "empty_rows", "entry", "head_dim", "kernel_name"),
    *("rounds", "seed", "use_gpu", "use_simulator"),
)


@dataclass(frozen=True, slots=True)
class JobInput:
    """What a job works on: the paths of the kernel and of the spec, and options (see `OPTIONS`)."""

    kernel: str
    spec: str
    options: Mapping[str, object]


@dataclass(frozen=True, slots=True)
class JobResult:
    """`result` is the engine's JSON. `crashed`: the worker died or was stopped, there is no result."""

    result: dict[str, Any]
    diagnostics: tuple[Diagnostic, ...]
    crashed: bool

    @property
    def level(self) -> str:
        """The level reached, '' without a result."""
        return str(self.result.get("level", ""))

    @property
    def passed(self) -> bool:
        """True when the job ended without an error."""
        return not self.crashed and all(item.severity < Severity.ERROR for item in self.diagnostics)

    @property
    def headline(self) -> str:
        """A few words for the end of a progress bar."""
        if self.crashed:
            return "the worker stopped"
        return f"level {self.level}" if self.passed else "refused"


class Worker:
    """The worker process, as jobs of the editor see it. It starts with the first job."""

    def __init__(self) -> None:
        self._worker = AsyncWorker()

    async def run(
        self,
        job: str,
        given: JobInput,
        *,
        on_progress: OnProgress,
        time_limit_s: float,
        memory_limit_bytes: int,
    ) -> JobResult:
        """Run `job` (adapt | verify). Cancelling the awaiting task kills the worker process at once."""
        outcome = await self._worker.submit(
            job,
            {"kernel": given.kernel, "spec": given.spec, **given.options},
            on_progress=on_progress,
            timeout_s=time_limit_s,
            memory_bytes=memory_limit_bytes,
        )
        if outcome.value is None:
            return JobResult({}, outcome.diagnostics, crashed=True)
        found = tuple(diagnostic_from_json(item) for item in outcome.value.get("diagnostics", ()))
        return JobResult(outcome.value, found, crashed=False)

    async def close(self) -> None:
        """Kill the process for good."""
        await self._worker.close()
