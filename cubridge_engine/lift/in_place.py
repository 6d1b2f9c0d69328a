"""K and V read from global memory where they are used, row by row, without a tile in shared memory."""

from __future__ import annotations

from ..ir.expr import Const, Expr
from ..ir.nodes import Alloc, Copy, Op, Origin
from . import addresses
from .addresses import RowStride
from .loops import uses
from .machine import Machine
from .memory import Memory
from .shape_types import Contraction, Element
from .state import Emission
from .trace import Assign, Loop
from .values import Node, Value, is_uniform
from .walking import walk


def learn(m: Machine, mem: Memory, loop: Loop | None) -> None:
    """Row strides of tensors whose elements are factors of a product in the loop: a row of K or V is what the loop's
    variable steps over.
    """
    if loop is None:
        return
    values = [x.value for x in addresses.events_of(loop.items) if isinstance(x, Assign)]
    for node in walk(values):
        if node.op != "mul" or node.kind != "float":
            continue
        loads = [mem.loaded(a)[0] for a in node.args]
        moving = [x for x in loads if x is not None and uses(x.args[0], loop.iv)]
        others = [a for a, x in zip(node.args, loads, strict=True) if x is None]
        if len(moving) != 1 or any(is_uniform(a) for a in others):
            continue
        _by_variable(m, mem, loop, moving[0])
        for load in loads:
            if load is not None and load is not moving[0]:
                mem.element_sizes.setdefault(load.data[0], load.data[1])
                mem.learn_stride(load.data[0], load.args[0], [m.stayed])


def _by_variable(m: Machine, mem: Memory, loop: Loop, load: Node) -> None:
    root, size = load.data[0], load.data[1]
    if root in mem.strides:
        return
    terms = {k: c for k, c in m.store.poly(load.args[0]).terms.items() if loop.iv in k}
    if len(terms) != 1:
        return
    (monomial, count), *_ = terms.items()
    symbols = addresses.without(monomial, (loop.iv,))
    if symbols is None or loop.iv in symbols or not isinstance(count, int) or count % size or count <= 0:
        return
    mem.element_sizes.setdefault(root, size)
    mem.strides[root] = RowStride(symbols, count // size, frozenset({loop.iv}))


def learn_length(e: Emission, c: Contraction) -> None:
    """Sk of a kernel that tests no row of K: the parameter that ends the loop over the keys."""
    hi = e.kv_loop.hi if e.kv_loop is not None else None
    if c.right.direct is not None and isinstance(hi, Node) and hi.op == "param":
        e.problem.sizes.setdefault("Sk", hi)


# ---- emission


def read(e: Emission, c: Contraction, origin: Origin) -> str:
    """A row of K or V as a register tile, loaded where it is used; returns its name. Raises NotExpressible."""
    role, name = ("k", "Kf") if c.role == "qk" else ("v", "Vf")
    e.emit(_copy(e, name, role, c.right, e.problem.Bc, origin))
    return name


def read_q(e: Emission, element: Element, origin: Origin) -> None:
    """The tile of Q, loaded again in every trip."""
    e.emit(_copy(e, "Qf", "q", element, e.problem.Br, origin))


def _copy(e: Emission, name: str, role: str, element: Element, rows: int, origin: Origin) -> Copy:
    e.direct.setdefault(name, origin)
    e.steps.setdefault(f"load_{role}", origin)
    row0 = e.writer.uniform(element.direct.row0)
    return Copy(name, Const(0), role, row0, rows, row_limit(e, element, role), False, origin=origin)


def row_limit(e: Emission, element: Element, role: str) -> Expr | None:
    """The number of rows of the tensor where a row is read: it is tested there, or threads beyond have left."""
    limit: Value = element.limit
    if limit is None and role == "q" and (found := addresses.row_of([e.machine.stayed])) is not None:
        limit = found[1]
    return None if limit is None else e.writer.uniform(limit)


def allocations(e: Emission) -> list[Op]:
    """Alloc for what is read in place."""
    p = e.problem
    shapes = {"Kf": (p.Bc, p.D), "Vf": (p.Bc, p.Dv), "Qf": (p.Br, p.D)}
    return [Alloc(name, 1, *shapes[name], "io", "register", "row", origin) for name, origin in e.direct.items()]
