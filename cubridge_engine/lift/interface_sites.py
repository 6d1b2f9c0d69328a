"""Anchors of the interface (signature, launchers, calls), and of the prologue: the tokens that stand for the first
tile.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from tree_sitter import Node as TreeNode

from ..ir.anchors import CallSite, SignatureSite, TileIndexUse
from .addresses import MemoryError_
from .kernel_run import run_kernel
from .machine import Machine
from .memory import Memory
from .select import definition_of
from .syntax import Syn
from .values import Node

if TYPE_CHECKING:
    from .anchors_find import Finder


def signature(f: Finder) -> SignatureSite | None:
    """The kernel's parameter list."""
    return _list_site(f, f.chosen.name, f.chosen.node.params)


def _list_site(f: Finder, name: str, params: TreeNode) -> SignatureSite | None:
    entries = [c for c in params.named_children if "parameter_declaration" in c.type]
    if not entries:
        return None
    return SignatureSite(name, entries[-1].end_byte, ", ", f.source.span(params))


def instantiations(f: Finder) -> tuple[SignatureSite, ...]:
    """``template __global__ void k<64>(const half*, ...);``: their lists of parameter types."""
    found: list[SignatureSite] = []
    stack = [f.source.root]
    while stack:
        node = stack.pop()
        if node.type != "template_instantiation":
            stack.extend(node.named_children)
            continue
        inner = node.child_by_field_name("declarator")
        while inner is not None and inner.type != "function_declarator":
            inner = inner.child_by_field_name("declarator")
        name, params = (inner.child_by_field_name(x) for x in ("declarator", "parameters")) if inner else (None, None)
        if name is None or params is None:
            continue
        called = f.source.clean_text(name).split("<")[0].rsplit("::", 1)[-1].strip()
        site = _list_site(f, called, params)
        if site is not None and called == f.chosen.name:
            found.append(site)
    return tuple(sorted(found, key=lambda s: s.insert))


def launchers(f: Finder) -> tuple[SignatureSite, ...]:
    """Host functions that launch the kernel."""
    found: dict[str, SignatureSite] = {}
    for launch in f.source.launches():
        if launch.kernel != f.chosen.name:
            continue
        name = _enclosing(f, launch.node)
        functions = f.source.functions().get(name or "", ())
        for function in functions:
            if function.node.start_byte <= launch.node.start_byte < function.node.end_byte:
                site = _list_site(f, function.name, function.params)
                if site is not None:
                    found[function.name] = site
    return tuple(found.values())


def _enclosing(f: Finder, node: TreeNode) -> str | None:
    for functions in f.source.functions().values():
        for function in functions:
            if function.node.start_byte <= node.start_byte < function.node.end_byte:
                return function.name
    return None


def calls(f: Finder) -> tuple[CallSite, ...]:
    """Launches of the kernel and calls of its launchers, in this file."""
    names = {site.function for site in launchers(f)}
    found: list[CallSite] = []
    for launch in f.source.launches():
        if launch.kernel == f.chosen.name and launch.args:
            found.append(CallSite(launch.args[-1].end_byte, _enclosing(f, launch.node), f.source.span(launch.node)))
    stack = [f.source.root]
    while stack:
        node = stack.pop()
        stack.extend(node.named_children)
        if node.type != "call_expression":
            continue
        callee, arguments = node.child_by_field_name("function"), node.child_by_field_name("arguments")
        if callee is not None and callee.type == "template_function":
            callee = callee.child_by_field_name("name")
        if callee is None or arguments is None or f.source.clean_text(callee) not in names:
            continue
        given = [a for a in arguments.named_children if a.type != "comment"]
        if given:
            found.append(CallSite(given[-1].end_byte, _enclosing(f, node), f.source.span(node)))
    return tuple(sorted(found, key=lambda c: c.insert))


# ---- the prologue
# ------------------------------------------------------------------------------------------------------------


def prologue(f: Finder) -> tuple[TileIndexUse, ...]:
    """Literals before the loop that choose which KV tile is loaded first, found by running the prologue with another
    value.

    A literal is put in as a symbol x; if the copies of K or V then bring tile x, the literal is the tile's index.
    """
    loop = f.e.kv_loop
    if loop is None or f.loop is None or not isinstance(loop.lo, int):
        return ()
    found: list[TileIndexUse] = []
    for literal in _candidates(f, loop.lo):
        use = _try(f, literal)
        if use is not None:
            found.append(use)
    producer = loop.partner.lo_range if loop.partner is not None else None
    if producer is not None:  # the loop of a producer warp walks the same tiles
        found.append(TileIndexUse(f.source.span_of(*producer), "tile", _trips_per_tile(f)))
    return tuple(found)


def _candidates(f: Finder, value: int) -> list[Syn]:
    """Literals equal to the loop's start in statements that copy K or V before the loop."""
    assert f.loop is not None
    keys = {f.e.problem.tensors.get("k"), f.e.problem.tensors.get("v")}
    places: set[tuple[int, int]] = set()
    for wave in f.e.memory.waves:
        at = wave.parts[0].event.place.site
        if wave.tensor in keys and at[1] <= f.loop.start:
            places.add(at)
    return [
        node
        for node in f.body.walk()
        if node.type == "number_literal"
        and node.text.rstrip("uUlL") == str(value)
        and any(a <= node.start and node.end <= b for a, b in places)
    ]


def _try(f: Finder, literal: Syn) -> TileIndexUse | None:
    assert f.loop is not None
    m = Machine(f.source, f.e.machine.threads, f.e.machine.block, f.e.machine.roles)
    definition = definition_of(m, f.chosen.name, f.chosen.start)
    if definition is None:
        return None
    probe = m.store.node("iv", (), "probe", "int")
    m.overrides[(literal.start, literal.end)] = probe
    m.stop_at = (f.loop.start, f.loop.end)
    run_kernel(m, definition, f.chosen.template)
    mem = Memory(m.store, m.trace, m.store.threads, m.param_sizes)
    rows: set[int] = set()
    slots = False
    for wave in mem.waves:
        part = wave.parts[0]
        if wave.tensor not in (f.e.problem.tensors.get("k"), f.e.problem.tensors.get("v")):
            continue
        factor = m.store.poly(part.access.row0).terms.get((probe,))
        if isinstance(factor, int):
            rows.add(factor)
        slots = slots or _mentions(m, part.slot, probe)
    span = f.source.span_of(literal.start, literal.end)
    if rows == {f.e.problem.Bc}:
        return TileIndexUse(span, "tile", _trips_per_tile(f))
    if rows == {1}:
        return TileIndexUse(span, "row0", f.e.problem.Bc)
    if not rows and slots:
        stages = max((b.slots for b in f.e.memory.buffers), default=1)
        return TileIndexUse(span, "slot", stages)
    return None


def _trips_per_tile(f: Finder) -> int:
    assert f.e.kv_loop is not None
    return 1 if abs(f.e.kv_loop.step) == f.e.problem.Bc else f.e.problem.Bc


def _mentions(m: Machine, value: Any, probe: Node) -> bool:
    from .walking import walk

    return any(n is probe for n in walk([value]))


__all__ = ["MemoryError_", "calls", "instantiations", "launchers", "prologue", "signature"]
