"""Source spellings of canonical names at a place of the kernel."""

from __future__ import annotations

import re
from typing import Any

import numpy as np

from ..ir.anchors import Names
from ..ir.nodes import Kernel
from .addresses import Ints
from .spelling import enclosed, spell
from .state import Emission, lane_of
from .values import Node, Poly, Value, same


def names_at(e: Emission, kernel: Kernel, key: tuple[int, int] | None, rows: Ints | None = None) -> Names:
    """Canonical name -> text, from what the visible variables hold before the statement `key`."""
    snapshot = e.machine.snapshots.get(key, {}) if key is not None else {}
    p = e.problem
    text: dict[str, str] = {}
    for param in kernel.params:
        name = source_name(param)
        if param.role in ("Sq", "Sk", "H", "Hkv", "B"):
            text[param.role] = name
        if param.role in ("scale", "scale_log2"):
            text[param.role] = name
        if param.role in ("scale", "scale_log2", "scalar", "flag"):
            text[param.name] = name
    if p.shared_length and "Sq" in text:
        text["Sk"] = text["Sq"]
    wanted: list[tuple[str, Value]] = [("q0", p.q_row0), ("qt", p.q_tile), ("h", p.h), ("b", p.b), ("hk", p.hk)]
    if e.body_kv0 is not None:
        wanted.append(("kv0", e.body_kv0))
    if p.b is p.h:
        wanted = [w for w in wanted if w[0] not in ("b", "h", "hk")]
    for canonical, value in wanted:
        found = variable_with(snapshot, value) or spelled(e, value)
        if found is not None and (canonical != "kv0" or found in snapshot or _loop_in_scope(e, snapshot)):
            text[canonical] = found
        elif found is None and (written := spell(e, snapshot, value)) is not None:
            text[canonical] = enclosed(written)
    if e.machine.work is not None:
        _by_members(e, kernel, snapshot, wanted, text)
        if _has_width(e, key, snapshot):
            text["Bc"] = "Bc"
    lane = lane_text(e, snapshot)
    if lane is not None:
        text["lane"] = lane
    if rows is not None:
        row = variable_with(snapshot, row_value(e, rows))
        if row is not None:
            text["row"] = row
    return Names(text)


def _by_members(
    e: Emission, kernel: Kernel, snapshot: dict[str, Value], wanted: list[tuple[str, Value]], text: dict[str, str]
) -> None:
    """In a method, parameters and indices are members, or expressions over them."""
    store = e.machine.store
    for param in kernel.params:
        kind = "float" if param.ctype in ("float", "const float") else "int"
        found = variable_with(snapshot, store.node("param", (), param.position, kind))
        for name in (param.role, param.name) if found is not None else ():
            if name in text and found is not None:
                text[name] = found
    for canonical, value in wanted:
        if canonical in text and text[canonical] in snapshot:
            continue
        spelling = composed(snapshot, value)
        if spelling is not None:
            text[canonical] = spelling
        else:
            text.pop(canonical, None)


def _has_width(e: Emission, key: tuple[int, int] | None, snapshot: dict[str, Value]) -> bool:
    """True where a variable `Bc`, or a constant of the method's struct, is the number of keys of a tile."""
    if key is None or snapshot.get("Bc") == e.problem.Bc:
        return key is not None
    for made in e.machine.struct_types.values():
        inside = any(x.body.start <= key[0] and key[1] <= x.body.end for xs in made.methods.values() for x in xs)
        if inside and made.scope.names.get("Bc") == e.problem.Bc:
            return True
    return False


def composed(snapshot: dict[str, Value], value: Value) -> str | None:
    """An expression over visible variables that has this value, or None."""
    if isinstance(value, int):
        return str(value)
    found = variable_with(snapshot, value)
    if found is not None:
        return found
    if isinstance(value, Node) and value.op in ("tdiv", "tmod") and len(value.args) == 2:
        sides = [composed(snapshot, a) for a in value.args]
        return None if None in sides else f"({sides[0]} {'/' if value.op == 'tdiv' else '%'} {sides[1]})"
    return None


def source_name(param: Any) -> str:
    """The parameter's name in the file."""
    name = param.name[2:] if param.name.startswith("p_") and param.name[2:] in _RESERVED else param.name
    return re.sub(r"\.(\d+)$", r"[\1]", name)


_RESERVED = frozenset(
    [
        "i",
        "j",
        "s",
        "b",
        "h",
        "hk",
        "q0",
        "kv0",
        "qt",
        "lane",
        "t",
        "m",
        "l",
        "bx",
        "by",
        "bz",
        "Sq",
        "Sk",
        "H",
        "Hkv",
        "B",
        "D",
        "n_tiles",
    ]
)


def _loop_in_scope(e: Emission, snapshot: dict[str, Value]) -> bool:
    return e.kv_loop is not None and any(v is e.kv_loop.iv for v in snapshot.values())


def variable_with(snapshot: dict[str, Value], value: Value) -> str | None:
    """A visible variable that holds exactly this value."""
    if isinstance(value, int):
        return None
    return next((name for name, held in snapshot.items() if same(held, value)), None)


def spelled(e: Emission, value: Value) -> str | None:
    """An expression text for a value that no variable holds: over block indices and the loop variable."""
    if isinstance(value, Node):
        return _atom(e, value)
    if not isinstance(value, Poly):
        return None
    parts: list[str] = []
    for m, c in value.terms.items():
        if not isinstance(c, int) or len(m) > 1 or (not m and c < 0):
            return None
        atom = _atom(e, m[0]) if m else ""
        if atom is None:
            return None
        signed = f"(int){atom}" if atom.startswith("blockIdx.") else atom
        parts.append(str(c) if not m else signed if c == 1 else f"{signed} * {c}")
    text = " + ".join(parts)
    return f"({text})" if " " in text else text


def _atom(e: Emission, node: Node) -> str | None:
    if node.op == "block":
        return f"blockIdx.{node.data}"
    if e.kv_loop is not None and node is e.kv_loop.iv:
        return e.kv_loop.name
    return None


def row_value(e: Emission, rows: Ints) -> Value:
    """The global row of each thread."""
    store = e.machine.store
    return store.add(e.problem.q_row0, store.array(rows))


def lane_text(e: Emission, snapshot: dict[str, Value]) -> str | None:
    """The lane within a row, when several threads share one: a variable, or a remainder of one."""
    rows = next((next(iter(o.coordinates.values())).i for o in e.objects.values() if o.axis == "j"), None)
    if rows is None:
        return None
    lane = lane_of(rows)
    count = int(lane.max()) + 1
    if count == 1:
        return "0"
    store = e.machine.store
    direct = variable_with(snapshot, store.array(lane))
    if direct is not None:
        return direct
    for name, value in snapshot.items():
        numbers = value.numeric() if isinstance(value, Poly) else None
        if numbers is not None and np.array_equal(numbers % count, lane):
            return f"({name} % {count})"
    x = e.machine.thread["x"]
    numbers = x.numeric() if isinstance(x, Poly) else None
    return f"(threadIdx.x % {count})" if numbers is not None and np.array_equal(numbers % count, lane) else None
