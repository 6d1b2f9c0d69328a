"""The only module that touches the engine's rooms: reading a kernel in this process, jobs in the worker.

What leaves here is plain data in editor terms. ``lift`` is imported on first use, in the reading thread: it brings
NumPy, which the server does not need to answer ``initialize``.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any

from cubridge_engine.diagnostics import (
    Diagnostic,
    Related,
    Severity,
    Span,
    diagnostic_from_json,
    diagnostic_to_json,
    make,
)
from cubridge_engine.jobs import AsyncWorker, JobOutcome
from cubridge_engine.jobs import Worker as JobWorker
from cubridge_engine.propose.config import KEY_VARIABLES
from cubridge_engine.source import SourceFile, parse, with_includes

from . import reuse, wording
from .reuse import Lifts

if TYPE_CHECKING:
    from cubridge_engine.ir.nodes import Kernel
    from cubridge_engine.lift import Lifted

    from .landmarks import Landmark
    from .phases import Step

_OPENING = frozenset({"for_statement", "while_statement", "do_statement", "if_statement"})
LOG = logging.getLogger(__name__)
MAX_RELATED = 12
SLICE_S = 0.3  # of lifting pending kernels, before a newer text gets its turn
INCLUDES_S = 0.2  # of reading the headers that a text includes by quotes
LIFT_S = 6.0  # of work on one kernel: what takes longer is not read while typing
OnProgress = Callable[[str, float, str], None]  # stage, fraction 0..1, message


@dataclass(frozen=True, slots=True)
class KernelView:
    """A kernel that was lifted: `span` is its definition, template line included; `uses` the lines it depends on."""

    name: str
    span: Span
    summary: str
    level: str  # lifted | partly lifted, 6 of 9 steps
    program: Kernel
    lifted: Lifted
    steps: tuple[Step, ...]
    landmarks: tuple[Landmark, ...]
    uses: tuple[tuple[int, int], ...]

    @property
    def ir(self) -> str:
        """Its CuIR as text, with line numbers."""
        from cubridge_engine.ir.text import print_kernel

        return print_kernel(self.program, lines=True)

    @property
    def kv_loop(self) -> tuple[int, int] | None:
        """First and last line of the loop over KV tiles."""
        from .phases import kv_loop_lines

        return kv_loop_lines(self.program, self.span.path)

    def covers(self, first: int, last: int) -> bool:
        """Whether the 0-based lines `first`..`last` touch the definition."""
        return self.span.line <= last and first <= self.span.end_line


@dataclass(frozen=True, slots=True)
class Named:
    """The lift of one kernel, attention or not."""

    name: str
    lift: Lifted


@dataclass(frozen=True, slots=True)
class Reading:
    """What reading one version of a file gave: its kernels in the order of the file, the first complete one being
    `kernel`. `pending` names kernels that are still to be lifted: see `read_next`."""

    source: SourceFile | None
    kernels: tuple[KernelView, ...]
    lifted: Lifted | None
    diagnostics: tuple[Diagnostic, ...]
    pending: tuple[str, ...] = ()
    lifts: tuple[Named, ...] = ()

    @property
    def kernel(self) -> KernelView | None:
        """The kernel that a command without a name means: what `lift` chooses. None: none could be lifted."""
        return next((view for view in self.kernels if view.lifted is self.lifted), None)

    @property
    def landmarks(self) -> tuple[Landmark, ...]:
        """The landmarks of all kernels; a line of a device function that several kernels call has one."""
        from .landmarks import cute_landmarks

        path = self.source.path if self.source is not None else ""
        found = {mark.line: mark for one in reversed(self.lifts) for mark in cute_landmarks(one.lift.cute, path)}
        found |= {mark.line: mark for view in reversed(self.kernels) for mark in view.landmarks}
        return tuple(found[line] for line in sorted(found))

    def covering(self, first: int, last: int) -> KernelView | None:
        """The kernel whose definition the 0-based lines `first`..`last` touch."""
        return next((view for view in self.kernels if view.covers(first, last)), None)

    def ops_at(self, line: int) -> list[str]:
        """CuIR text of the operations that come from the 0-based line."""
        from cubridge_engine.ir.text import print_op

        return [print_op(op) for view in self.kernels for op in view.lifted.ops_at(line)]

    def block_at(self, line: int) -> tuple[int, int] | None:
        """First and last line of the innermost block around the 0-based line, or of the one that it opens; None outside
        of functions."""
        if self.source is None:
            return None
        text = self.source.index.line_bytes(line)
        column = len(text) - len(text.lstrip())
        node = self.source.root.descendant_for_point_range((line, column), (line, column))
        while node is not None:
            opens = node.type in _OPENING and node.start_point[0] == line
            body = node.child_by_field_name("body") or node.child_by_field_name("consequence") if opens else node
            if body is not None and body.type == "compound_statement":
                return body.start_point[0], body.end_point[0]
            node = node.parent
        return None

    def in_kv_loop(self, line: int) -> bool:
        """True for a 0-based line of a loop over KV tiles."""
        return any(loop[0] <= line <= loop[1] for view in self.kernels if (loop := view.kv_loop))

    def uses(self) -> tuple[tuple[int, int], ...]:
        """Lines on which what is shown of any kernel depends."""
        return tuple(lines for view in self.kernels for lines in view.uses)


def read(path: str, data: bytes, previous: Reading | None, lifts: Lifts) -> Reading:
    """Parse `data` and lift its kernels until one is understood completely; the others become `pending`.

    Runs in a thread. `previous` is an older reading of the file: only the change is parsed, and every kernel that it
    had is there at once in the new reading too. `lifts` are the lifts of the file so far.
    """
    source = with_includes(parse(path, data, previous=previous.source if previous else None), budget_s=INCLUDES_S)
    had = {view.name for view in previous.kernels} if previous else set[str]()
    candidates = _candidates(source)
    found: dict[str, Lifted] = {}
    for name, uses in candidates.items():
        lifted = lifts.get(source, name, uses)
        if lifted is None and (name in had or not any(item.coverage.complete for item in found.values())):
            lifted = _lift(source, name, uses, lifts)
        if lifted is not None:
            found[name] = lifted
    return _reading(source, candidates, found)


def read_next(reading: Reading, lifts: Lifts) -> Reading:
    """`reading` with some more of its pending kernels, lifted for at most a moment each time. Runs in a thread."""
    source, end = reading.source, time.monotonic() + SLICE_S
    if source is None:
        return reading
    candidates, found = _candidates(source), {lifted.name: lifted.lift for lifted in reading.lifts}
    for name in reading.pending:
        found[name] = _lift(source, name, candidates[name], lifts)
        if time.monotonic() > end:
            break
    return _reading(source, candidates, found)


def _candidates(source: SourceFile) -> dict[str, tuple[reuse.Piece, ...]]:
    """What each kernel depends on, by name; without those that cannot be attention, unless there is no other."""
    pieces = reuse.pieces_of(source)
    names = dict.fromkeys(function.name for function in source.kernels())
    uses = {name: reuse.uses_of(source, name, pieces) for name in names}
    looping = {name: used for name, used in uses.items() if reuse.has_loop(used)}
    return looping or uses


def _lift(source: SourceFile, name: str, uses: tuple[reuse.Piece, ...], lifts: Lifts) -> Lifted:
    from cubridge_engine.lift import lift

    return lifts.put(source, name, uses, lift(source, kernel=name, remember=False, anchors=False, budget_s=LIFT_S))


def _reading(
    source: SourceFile, candidates: Mapping[str, tuple[reuse.Piece, ...]], found: Mapping[str, Lifted]
) -> Reading:
    """The reading from what was lifted of the candidates."""
    ordered = {name: found[name] for name in candidates if name in found}
    views = tuple(
        _view(source, lifted, lifted.kernel, candidates[name])
        for name, lifted in ordered.items()
        if lifted.kernel is not None
    )
    complete = next((lifted for lifted in ordered.values() if lifted.coverage.complete), None)
    chosen = complete or max(ordered.values(), key=lambda lifted: lifted.coverage.score, default=None)
    # Why a kernel is no attention is worth a word only when the file has nothing better.
    told = [view.lifted for view in views] or ([chosen] if chosen is not None else [])
    diagnostics = dict.fromkeys((*source.diagnostics, *(item for lifted in told for item in lifted.diagnostics)))
    pending = tuple(name for name in candidates if name not in found)
    return Reading(
        source,
        views,
        chosen,
        _grouped(diagnostics),
        pending,
        tuple(Named(name, lift) for name, lift in ordered.items()),
    )


def _grouped(found: Iterable[Diagnostic]) -> tuple[Diagnostic, ...]:
    """One diagnostic for each sentence: the places after the first are related ones. A name that is not declared is one
    mistake, however often it is used."""
    groups: dict[tuple[str, str], list[Diagnostic]] = {}
    for item in found:
        groups.setdefault((item.code, item.message), []).append(item)
    result: list[Diagnostic] = []
    for group in groups.values():
        first, *others = sorted(group, key=lambda item: item.span.start if item.span else 0)
        also = tuple(Related(item.span, "here too") for item in others[:MAX_RELATED] if item.span)
        result.append(wording.of_editor(replace(first, related=(*first.related, *also))))
    return tuple(result)


def unreadable(path: str) -> Reading:
    """The reading of a file on which reading itself broke: nothing is known, and the editor says so."""
    return Reading(None, (), None, (make("CB077", name=path.rpartition("/")[2]),))


def kept_explanation(path: str) -> dict[str, Any] | None:
    """What an earlier run, with watching, said of the file as it is on disk; None where there was none. Runs in a
    thread."""
    from cubridge_engine.pipeline.before import look_up

    found = look_up(path, None, None, True)
    return None if found is None else found.model_dump(mode="json")


def program_text(path: str, data: bytes, name: str | None = None) -> tuple[str, str]:
    """Name and CuIR, without line numbers, of the kernel `name` (None: the one a command means); '' if there is none.
    Runs in a thread."""
    from cubridge_engine.ir.text import print_kernel
    from cubridge_engine.lift import lift

    kernel = lift(with_includes(parse(path, data)), kernel=name, remember=False).kernel
    return (kernel.name, print_kernel(kernel)) if kernel is not None else ("", "")


def _view(source: SourceFile, lifted: Lifted, kernel: Kernel, uses: tuple[reuse.Piece, ...]) -> KernelView:
    from cubridge_engine.ir.inner_lines import with_inner_lines

    from .landmarks import landmarks
    from .phases import steps

    kernel = with_inner_lines(kernel)
    function = next((item for item in source.kernels() if item.name == kernel.name), None)
    whole = source.span(function.template or function.node) if function else source.span_of(0, len(source.data))
    # The engine's sentence is "NAME: what it computes, tiles; N of M steps"; the lens stands over it.
    summary, _, done = lifted.summary.removeprefix(f"{kernel.name}: ").partition("; ")
    locate = source.index.locate
    return KernelView(
        name=kernel.name,
        span=whole,
        summary=summary,
        level="lifted" if lifted.coverage.complete else f"partly lifted, {done}",
        program=kernel,
        lifted=lifted,
        steps=steps(kernel, source.path, whole),
        landmarks=landmarks(kernel, source.path),
        uses=tuple((locate(piece.start)[0], locate(piece.end)[0]) for piece in uses),
    )


# --- jobs ---

# Options a caller may pass on to a job; they are those of the command line.
OPTIONS = (
    *("archs", "bindings", "empty_rows", "entry", "head_dim", "kernel_name"),
    *("outputs", "rounds", "seed", "use_gpu", "use_simulator"),
)


@dataclass(frozen=True, slots=True)
class JobInput:
    """What a job works on: the paths of the kernel ('' for a job on the spec alone) and of the spec, options (see
    `OPTIONS`), and by path the texts of files that are not saved."""

    kernel: str
    spec: str
    options: Mapping[str, object]
    texts: Mapping[str, str] = field(default_factory=dict[str, str])


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
        # The worker runs specs, which are the user's code: a key for a model is not for it.
        self._worker = AsyncWorker(JobWorker(env=dict.fromkeys(KEY_VARIABLES, "")))
        self._waiting = 0  # jobs that are running or queued

    async def run(
        self,
        job: str,
        given: JobInput,
        *,
        on_progress: OnProgress,
        time_limit_s: float,
        memory_limit_bytes: int,
    ) -> JobResult:
        """Run `job` (a task of the worker). Cancelling the awaiting task kills the worker process at once."""
        if self._waiting:
            on_progress("start", 0.0, "waiting for the job before it")
        elif self._worker.worker.pid is None:
            on_progress("start", 0.0, "starting the engine")
        self._waiting += 1
        try:
            outcome = await self.outcome(job, params_of(given), on_progress, time_limit_s, memory_limit_bytes)
        finally:
            self._waiting -= 1
        if outcome.value is None:
            LOG.error("%s ended without a result: %s", job, _log_text(outcome))
            return JobResult({}, outcome.diagnostics, crashed=True)
        return in_editor_words(outcome.value)

    async def outcome(
        self,
        task: str,
        params: Mapping[str, Any],
        on_progress: OnProgress,
        time_limit_s: float,
        memory_limit_bytes: int,
    ) -> JobOutcome:
        """Run one task with its own parameters, and say how it ended."""
        return await self._worker.submit(
            task, params, on_progress=on_progress, timeout_s=time_limit_s, memory_bytes=memory_limit_bytes
        )

    async def close(self) -> None:
        """Kill the process for good."""
        await self._worker.close()


def params_of(given: JobInput) -> dict[str, Any]:
    """The parameters of a task of the worker."""
    files = {name: path for name, path in (("kernel", given.kernel), ("spec", given.spec)) if path}
    return {**files, "texts": dict(given.texts), **given.options}


def in_editor_words(value: Mapping[str, Any]) -> JobResult:
    """A task's JSON object as a result, its sentences in the words of an editor."""
    found = tuple(wording.of_editor(diagnostic_from_json(item)) for item in value.get("diagnostics", ()))
    return JobResult({**value, "diagnostics": [diagnostic_to_json(item) for item in found]}, found, crashed=False)


def _log_text(outcome: JobOutcome) -> str:
    """The sentences of a job without a result, and the last lines that its worker wrote."""
    sentences = " ".join(f"{item.code}: {item.message}." for item in outcome.diagnostics)
    return "\n".join((sentences or outcome.state, *outcome.stderr[-20:]))
