"""The command ``cubridge.pipeline``: copies, stages, waits, barriers and products of the first KV tiles over time."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from cubridge_engine.ir import nodes
from cubridge_engine.ir.nodes import Kernel, Op
from cubridge_engine.ir.text import print_op

from . import job, landmarks, looked_at, phases

if TYPE_CHECKING:
    from cubridge_engine.ir.timeline import Event, Fault, Timeline

    from .app import CubridgeServer
    from .looked_at import LookedAt

KV_TILES = 4  # enough to go round a ring of two or three stages

# How an event is drawn: by operation; every other is computation, drawn with its neighbours of the same phase.
KINDS: dict[type[Op], str] = {
    nodes.Copy: "copy",
    nodes.CpCommit: "commit",
    nodes.CpWait: "wait",
    nodes.Barrier: "barrier",
    nodes.LoadTile: "read",
    nodes.Mma: "product",
    nodes.StoreTile: "store",
    nodes.StoreRow: "store",
    nodes.Opaque: "opaque",
}


MERGED = frozenset({"compute", "product"})  # neighbours of one phase are one step: a product with its clearing


async def pipeline(ls: CubridgeServer, argument: Any = None) -> dict[str, Any]:
    """``workspace/executeCommand cubridge.pipeline``: the head of every reply about an open kernel, and ``name, sizes,
    flags, tiles, threads, stopped, steps, lanes, faults``. ``flags`` in the argument sets the kernel's switches.
    """
    found = await looked_at.look(ls, "cubridge.pipeline", argument)
    if found.view is None:
        return (
            found.head
            | {"name": "", "sizes": {}, "flags": {}, "tiles": 0, "threads": 0, "stopped": ""}
            | {"steps": [], "lanes": [], "faults": []}
        )
    return found.head | {"name": found.view.name} | drawn(found, _flags(found.view.program, argument))


def _flags(kernel: Kernel, argument: Any) -> dict[str, int]:
    """The kernel's switches, off unless the caller turned them on."""
    given = job.as_object(job.field_of(argument, "flags")) or {}
    return {p.name: int(given.get(p.name) or 0) for p in kernel.params if p.role == "flag"}


def drawn(found: LookedAt, flags: dict[str, int]) -> dict[str, Any]:
    """The timeline of the first Q tile over KV_TILES KV tiles, as JSON."""
    from cubridge_engine.ir.timeline import timeline

    assert found.view is not None
    kernel = found.view.program
    sizes = {"B": 1, "H": 1, "Hkv": 1, "Sq": kernel.Br, "Sk": KV_TILES * kernel.Bc}
    # Scales and strides decide nothing that is drawn; whatever else a schedule depends on stops it with its name.
    harmless = {p.name: 1 for p in kernel.params if p.role.startswith(("scale", "stride"))}
    line = timeline(kernel, sizes, {**harmless, **flags})
    steps, step_of = _steps(line, kernel, found)
    lanes = [_lane(line, key, step_of) for key in line.slots]
    return {
        "sizes": sizes,
        "flags": flags,
        "tiles": line.tiles,
        "threads": kernel.threads,
        "stopped": line.stopped,
        "steps": steps,
        "lanes": lanes,
        "faults": _faults(line, step_of, found),
    }


@dataclass(slots=True)
class _Step:
    """Neighbouring events that are drawn as one."""

    kind: str
    phase: str
    title: str
    detail: list[str]
    event: Event
    touches: tuple[tuple[str, int], ...]
    lines: looked_at.Range | None


def _steps(line: Timeline, kernel: Kernel, found: LookedAt) -> tuple[list[dict[str, Any]], Callable[[int], int]]:
    """The steps as JSON, and the step that an event is in (an event behind the last one: behind the last step)."""
    made: list[_Step] = []
    index: list[int] = []
    for event, phase in zip(line.events, _phases(line.events), strict=True):
        kind = _kind(event.op)
        lines = _lines(event.op, found)
        last = made[-1] if made else None
        together = last is not None and {kind, last.kind} <= MERGED
        if (
            last is not None
            and together
            and (last.phase, last.event.part, last.event.tile) == (phase, event.part, event.tile)
        ):
            last.kind = "product" if "product" in (kind, last.kind) else kind
            last.title = phases.PHASES.get(phase, phase)
            last.touches += event.touches
            last.detail.append(print_op(event.op))
            last.lines = _both(last.lines, lines)
        else:
            made.append(_Step(kind, phase, _title(event.op, kernel), [print_op(event.op)], event, event.touches, lines))
        index.append(len(made) - 1)
    plain = [
        {
            "kind": step.kind,
            "phase": step.phase,
            "title": step.title,
            "detail": step.detail,
            "part": step.event.part,
            "tile": step.event.tile,
            "lines": found.lines(step.lines),
            "touches": [_key(key) for key in step.touches],
        }
        for step in made
    ]
    return plain, lambda event: index[event] if event < len(index) else len(made)


def _kind(op: Op) -> str:
    return KINDS.get(type(op), "compute")


def _phases(events: Sequence[Event]) -> list[str]:
    """The phase of every event; one without a phase goes with the computation before it, and clearing an accumulator
    inside the loop with its product.
    """
    products = {event.op.acc: phases.row_of(event.op) for event in events if isinstance(event.op, nodes.Mma)}
    found: list[str] = []
    for at, event in enumerate(events):
        clears = isinstance(event.op, nodes.Fill) and event.part == "tile"
        row = products.get(event.op.tile) if clears and isinstance(event.op, nodes.Fill) else phases.row_of(event.op)
        before = events[at - 1] if at else None
        follows = before is not None and _kind(before.op) == "compute" and before.tile == event.tile
        found.append(row.phase if row else found[-1] if follows else "setup")
    return found


def _title(op: Op, kernel: Kernel) -> str:
    row = phases.row_of(op)
    return landmarks.label(op, kernel) or (row.title(op) if row else TITLES.get(type(op), print_op(op)))


TITLES: dict[type[Op], str] = {nodes.CpCommit: "commit the copies as a group", nodes.Opaque: "not understood"}


def _lines(op: Op, found: LookedAt) -> looked_at.Range | None:
    span = phases.op_span(op)
    path = found.document.path if found.document else None
    return (span.line, span.end_line) if span is not None and span.path == path else None


def _both(a: looked_at.Range | None, b: looked_at.Range | None) -> looked_at.Range | None:
    return (min(a[0], b[0]), max(a[1], b[1])) if a and b else a or b


def _key(key: tuple[str, int]) -> str:
    return f"{key[0]}[{key[1]}]"


def _lane(line: Timeline, key: tuple[str, int], step_of: Callable[[int], int]) -> dict[str, Any]:
    """A slot of a buffer: its stretches in time, ``from`` and ``to`` being steps."""
    stages = sum(1 for buffer, _ in line.slots if buffer == key[0])
    stretches = [s for s in line.stretches if (s.buffer, s.slot) == key]
    return {
        "id": _key(key),
        "buffer": key[0],
        "title": f"{key[0]} stage {key[1]}" if stages > 1 else key[0],
        "stretches": [
            {
                "state": s.state,
                "from": step_of(s.start),
                "to": step_of(s.end),
                "holds": s.holds[0].upper() if s.holds[0] == "q" else f"{s.holds[0].upper()} {s.holds[1]}",
                "written": step_of(s.written),
            }
            for s in sorted(stretches, key=lambda s: s.start)
        ],
    }


def _faults(line: Timeline, step_of: Callable[[int], int], found: LookedAt) -> list[dict[str, Any]]:
    """The findings, each where it happens first, with all the steps where it does."""
    made: dict[tuple[str, object], dict[str, Any]] = {}
    for fault in line.faults:
        key = (fault.diagnostic.code, fault.diagnostic.span)
        if key not in made:
            made[key] = _fault(fault, found)
        made[key]["at"].append(
            {
                "step": step_of(fault.event),
                "lane": _key((fault.buffer, fault.slot or 0)) if fault.buffer else None,
                "other": step_of(fault.other) if fault.other is not None else None,
            }
        )
    return list(made.values())


def _fault(fault: Fault, found: LookedAt) -> dict[str, Any]:
    span = fault.diagnostic.span
    return {
        "code": fault.diagnostic.code,
        "message": fault.diagnostic.message,
        "help": fault.diagnostic.help or "",
        "lines": found.lines((span.line, span.end_line)) if span is not None else None,
        "at": [],
    }
