"""What a lift hands back beside the body: grid map, parameters, strides, coverage, diagnostics, summary."""

from __future__ import annotations

from typing import Any

from ..diagnostics import Diagnostic, Related, make
from ..ir.expr import Call, Const, Expr, Var
from ..ir.nodes import GridMap, Kernel, Origin, Param
from ..ir.simplify import simplify
from ..source import SourceFile
from . import addresses
from .coverage import LANDMARKS, WEIGHT_LANDMARKS, Coverage, Landmark
from .parameters import Parameter
from .problem import head_map
from .queries import all_nodes
from .select import Chosen
from .state import Emission
from .values import Node, Poly


def grid_map(e: Emission, source: SourceFile, definition: Any) -> GridMap:
    """The grid map over block indices."""
    p = e.problem
    saved = p.canon
    p.canon = {n: v for n, v in saved.items() if n.op == "param"}
    q_row0, p.q_row0 = p.q_row0, 0
    w = e.writer
    names, w.names = w.names, {}
    try:
        q_tile = w.uniform(p.q_tile)
        if p.b is p.h and isinstance(p.h, Node):
            index = w.uniform(p.h)
            b: Expr = Call("floordiv", (index, Var("H")))
            h: Expr = Call("mod", (index, Var("H")))
        else:
            b, h = (simplify(w.uniform(x)) if isinstance(x, Node | Poly) else Const(0) for x in (p.b, p.h))
    finally:
        p.canon, p.q_row0, w.names = saved, q_row0, names
    return GridMap(q_tile, b, h, head_map(p), Origin(source.span_of(definition.body.start, definition.body.start + 1)))


def make_param(e: Emission, parameter: Parameter, flags: set[int]) -> Param:
    """A parameter with its role."""
    number = parameter.number
    role = e.problem.roles.get(number)
    if role is None:
        used = {n.data for n in all_nodes(e.machine) if n.op == "param"}
        if number in e.writer.operand_strides:
            role = f"operand:{parameter.shown}"
        elif number in flags:
            role = "flag"
        else:
            role = "scalar" if number in used else "unused"
    return Param(parameter.shown, parameter.ctype, role, parameter.position, Origin(e.source.span_of(*parameter.span)))


def tensor_strides(e: Emission) -> dict[str, tuple[Expr, ...]]:
    """Element strides by role: (b, h, row) of q, k, v, o; LSE; operands by name."""
    result: dict[str, tuple[Expr, ...]] = {}
    for role, table in e.problem.strides.items():
        result[role] = tuple(e.writer.uniform(table.get(axis, 0)) for axis in ("b", "h", "row"))
    for position, strides in e.writer.operand_strides.items():
        result[e.writer.param_names[position]] = strides
    return result


def measure(e: Emission, chosen: Chosen, grid: bool) -> Coverage:
    """Coverage from what was emitted and what failed."""
    marks: list[Landmark] = []
    reasons = [why for _, why in e.failures]
    softmax = bool({"row_max", "exp", "rescale", "correction"} & set(e.steps)) or bool(e.failures)
    for name, words in (LANDMARKS if softmax else WEIGHT_LANDMARKS).items():
        origin = e.steps.get(name)
        marks.append(
            Landmark(
                name, words, origin.span if origin else None, "" if origin else "; ".join(dict.fromkeys(reasons))[:200]
            )
        )
    trace = e.machine.trace
    return Coverage(tuple(marks), len(trace.executed), len(trace.unknown_statements), len(e.failures), grid)


def report(e: Emission, chosen: Chosen, coverage: Coverage, threads: int) -> list[Diagnostic]:
    """Diagnostics: what was not understood and what was guessed."""
    found: list[Diagnostic] = []
    seen: set[tuple[int, str]] = set()
    unknown = [(x.place, x.why) for x in addresses.events_of(e.machine.trace.items) if hasattr(x, "why")]
    problems = [(event.place, why) for event, why in e.memory.problems]
    unread = _unread(e) if not coverage.complete else []
    for place, why in [*e.failures, *unknown, *problems, *unread]:
        at = place.callee or place.site
        if (at[0], why) not in seen:
            seen.add((at[0], why))
            called = (Related(e.source.span_of(*place.site), "called here"),) if place.callee is not None else ()
            found.append(make("CB123", e.source.span_of(*at), related=called, why=why))
    span = e.source.span_of(*name_range(e, chosen))
    if coverage.found < 4:
        found.insert(0, make("CB122", span, name=chosen.name, missing=", ".join(coverage.missing)))
    if chosen.guessed_template:
        values = ", ".join(f"{k} = {v}" for k, v in chosen.record.items())
        found.append(make("CB124", span, name=chosen.name, values=values))
    if chosen.guessed_block:
        found.append(make("CB125", span, name=chosen.name, threads=threads))
    return found


def _unread(e: Emission) -> list[tuple[Any, str]]:
    """Why values could not be classified, at the first statement that uses them; one statement for each reason."""
    found: dict[str, Any] = {}
    seen: set[int] = set()
    for event in addresses.events_of(e.machine.trace.items):
        stack = [getattr(event, "value", None)]
        while stack:
            node = stack.pop()
            if not isinstance(node, Node) or node.uid in seen:
                continue
            seen.add(node.uid)
            if node.uid in e.shapes.why:
                found.setdefault(e.shapes.why[node.uid], event.place)
            stack.extend(node.args)
    return [(place, why) for why, place in found.items()]


def name_range(e: Emission, chosen: Chosen) -> tuple[int, int]:
    """Byte range of the kernel's name in its definition."""
    end = chosen.node.params.start_byte
    start = e.source.data.rfind(chosen.name.encode(), chosen.node.node.start_byte, end)
    return (start, start + len(chosen.name.encode())) if start >= 0 else (chosen.node.node.start_byte, end)


def summary(kernel: Kernel, coverage: Coverage) -> str:
    """One sentence: what it computes, and its tiles."""
    parts = [
        "causal-capable" if any(p.role == "flag" for p in kernel.params) else "",
        "GQA" if kernel.grid.hk != Var("h") else "",
    ]
    words = " ".join(x for x in parts if x)
    values = f"Dv = {kernel.Dv}, " if kernel.Dv != kernel.D else ""
    return (
        f"{kernel.name}: {words + ' ' if words else ''}attention forward, tiles {kernel.Br}x{kernel.Bc}, "
        f"D = {kernel.D}, {values}{kernel.threads} threads, "
        f"{'tensor cores' if kernel.family == 'mma' else 'scalar'}; {coverage.sentence()}"
    )
