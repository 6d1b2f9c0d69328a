"""Matrix products of CUDA's wmma interface, by the names of its functions.

A fragment is a record of one array ``x``. CUDA leaves open which lane holds which element; here they lie as for the
m16n8k16 products that a 16 x 16 x 16 one is made of. What a kernel may do without knowing the layout - the same to
every element, loads and stores of whole fragments - means the same under every layout.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

import numpy as np

from . import dispatch, places, structs
from .addresses import Ints
from .ctypes_table import TYPES
from .machine import Machine, Scope
from .syntax import Syn
from .values import Cells, CType, Node, NotUnderstood, Ptr, Record, Value

if TYPE_CHECKING:
    from .structs import StructType

SHAPE = "wmma.m16n16k16"
ELEMENTS = 8  # of a fragment, in each lane
_SIDE = 16
_USES = {"matrix_a": "a", "matrix_b": "b", "accumulator": "c"}
Rule = Callable[[Machine, list[Syn], Scope, Syn], None]


def fragment_type(m: Machine, syn: Syn, scope: Scope) -> StructType:
    """The type ``fragment<use, m, n, k, T, layout>``. Raises NotUnderstood for shapes and types other than 16 x 16 x 16
    of half or bfloat16, accumulated in float.
    """
    arguments = places.child(syn, "arguments").kids
    use = _USES.get(_last_word(arguments[0]), "") if len(arguments) >= 5 else ""
    sizes = [dispatch.evaluate(m, _value_of(k), scope) for k in arguments[1:4]]
    if not use or sizes != [_SIDE] * 3:
        raise NotUnderstood("a wmma fragment of another shape than 16 x 16 x 16")
    ctype = places.read_type(m, arguments[4], scope)
    if ctype.kind not in (("float",) if use == "c" else ("half", "bf16")) or ctype.pointer:
        raise NotUnderstood(f"a wmma fragment of {ctype.name}")
    layout = _last_word(arguments[5]) if len(arguments) > 5 else ""
    key = f"fragment {use} {ctype.name} {layout}".strip()
    if key not in m.struct_types:
        made = structs.StructType(CType(key, ELEMENTS * ctype.size, "struct"), Scope(m.globals))
        made.fields.append(("x", ctype, (ELEMENTS,), None, False))
        count = m.new_cells("num_elements", TYPES["int"], (), syn.start)
        count.values[0] = ELEMENTS
        made.scope.names["num_elements"] = count
        m.struct_types[key] = made
    return m.struct_types[key]


def _last_word(syn: Syn) -> str:
    return syn.text.split("::")[-1].strip()


def _value_of(syn: Syn) -> Syn:
    """A template argument that the grammar took for a type: the name of a constant."""
    inner = syn.get("type") if syn.type == "type_descriptor" else None
    return Syn("identifier", inner.text, inner.start, inner.end) if inner is not None else syn


def places_of(use: str, threads: int) -> tuple[list[Ints], list[Ints]]:
    """Row and column of each element of a lane's fragment: (m, k) of a, (k, n) of b, (m, n) of c."""
    lane = np.arange(threads, dtype=np.int64) % 32
    rows, columns = [], []
    for e in range(ELEMENTS):
        register, half = e // 2, e % 2
        if use == "a":
            rows.append(lane // 4 + 8 * (register % 2))
            columns.append(2 * (lane % 4) + half + 8 * (register // 2))
        elif use == "b":
            rows.append(2 * (lane % 4) + half + 8 * (register % 2))
            columns.append(lane // 4 + 8 * (register // 2))
        else:
            rows.append(lane // 4 + 8 * (register % 2))
            columns.append(2 * (lane % 4) + half + 8 * (register // 2))
    return rows, columns


def _fragment(m: Machine, syn: Syn, scope: Scope) -> tuple[str, str, Cells]:
    """(use, layout, elements) of the fragment that an argument names."""
    record = structs.record_at(m, syn, scope)
    if not isinstance(record, Record) or not record.ctype.name.startswith("fragment "):
        raise NotUnderstood(f"{syn.text}, which is no wmma fragment")
    words = record.ctype.name.split(" ")
    elements = record.fields["x"]
    assert isinstance(elements, Cells)
    return words[1], words[-1], elements


def _addresses(m: Machine, use: str, column_major: bool, pointer: Syn, stride: Syn, scope: Scope) -> list[Ptr]:
    """Where each element of a fragment lies."""
    base = dispatch.evaluate(m, pointer, scope)
    if not isinstance(base, Ptr) or base.space == "local":
        raise NotUnderstood(f"a wmma fragment at {pointer.text}")
    base = Ptr(base.space, base.root, base.offset, base.ctype)
    length = dispatch.evaluate(m, stride, scope)
    rows, columns = places_of(use, m.store.threads)
    found: list[Ptr] = []
    for row, column in zip(rows, columns, strict=True):
        far, near = (column, row) if column_major else (row, column)
        index = m.store.add(m.store.mul(m.store.array(far), length), m.store.array(near))
        found.append(places.element(m, base, index))
    return found


def _load(m: Machine, arguments: list[Syn], scope: Scope, syn: Syn) -> None:
    use, layout, elements = _fragment(m, arguments[0], scope)
    if use == "c":
        layout = _last_word(arguments[3]).removeprefix("mem_")
    for at, where in enumerate(_addresses(m, use, layout == "col_major", arguments[1], arguments[2], scope)):
        if where.ctype.size != elements.ctype.size:
            raise NotUnderstood("a wmma fragment of another type than its memory")
        m.observer.warps = True
        m.write(elements, at, places.load(m, where))
        m.observer.warps = False


def _store(m: Machine, arguments: list[Syn], scope: Scope, syn: Syn) -> None:
    use, _, elements = _fragment(m, arguments[1], scope)
    column_major = _last_word(arguments[3]) == "mem_col_major"
    for at, where in enumerate(_addresses(m, use, column_major, arguments[0], arguments[2], scope)):
        if where.ctype.size != elements.ctype.size:
            raise NotUnderstood("a wmma fragment of another type than its memory")
        m.observer.warps = True
        places.assign(m, where, None, elements.values[at], syn)
        m.observer.warps = False


def _fill(m: Machine, arguments: list[Syn], scope: Scope, syn: Syn) -> None:
    _, _, elements = _fragment(m, arguments[0], scope)
    value = places.to_type(m, dispatch.evaluate(m, arguments[1], scope), elements.ctype)
    for at in range(ELEMENTS):
        m.write(elements, at, value)


def _product(m: Machine, arguments: list[Syn], scope: Scope, syn: Syn) -> None:
    found = [_fragment(m, a, scope) for a in arguments[:4]]
    if [f[0] for f in found] != ["c", "a", "b", "c"]:
        raise NotUnderstood("a wmma product of other fragments than a and b")
    (_, _, result), (_, _, a), (_, _, b), (_, _, start) = found
    left, right = _registers(m, a), _registers(m, b)
    values = list(start.values)
    for piece in (0, 1):
        for at in range(4):
            args = (values[4 * piece + at], *left, *right[2 * piece : 2 * piece + 2])
            m.write(result, 4 * piece + at, m.store.node("mma", args, (at, SHAPE, a.ctype.kind)))


def _registers(m: Machine, operand: Cells) -> list[Value]:
    """The elements of an operand in pairs, as the registers of a product hold them."""
    dtype = "fp16" if operand.ctype.kind == "half" else "bf16"
    pairs = zip(operand.values[::2], operand.values[1::2], strict=True)
    return [m.store.node("pack", tuple(_plain(x) for x in pair), dtype, "reg") for pair in pairs]


def _plain(value: Value) -> Value:
    while isinstance(value, Node) and value.op == "ver":
        value = value.args[0]
    return value


RULES: dict[str, Rule] = {
    "load_matrix_sync": _load,
    "store_matrix_sync": _store,
    "fill_fragment": _fill,
    "mma_sync": _product,
}
COUNTS = {"load_matrix_sync": (3, 4), "store_matrix_sync": (4,), "fill_fragment": (2,), "mma_sync": (4, 5)}


def call(m: Machine, name: str, arguments: list[Syn], scope: Scope, syn: Syn) -> None:
    """Execute one of the interface's functions. Raises NotUnderstood."""
    if len(arguments) not in COUNTS[name]:
        raise NotUnderstood(f"{name} with {len(arguments)} arguments")
    RULES[name](m, arguments, scope, syn)
