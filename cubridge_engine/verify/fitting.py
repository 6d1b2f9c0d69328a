"""Cases moved into what a spec is defined for, and a kernel made for: the nearest sizes that are.

What the contract of a kernel requires (``Sq == Sk``, ``Sk % 64 == 0``, ``1 <= Sk``) goes into the spec that it is
tested against, as `Attention.demands`: no case asks the kernel for what it does not claim, and the report names the
conditions.
"""

from __future__ import annotations

import ast
from dataclasses import replace

import numpy as np

from ..compile import Contract
from ..ir.evaluate import evaluate
from ..ir.expr import Call, Const, Expr, Var, free_vars
from ..ir.nodes import Kernel
from ..spec.attention import Attention
from ..transfer.one_length import one_length
from .grid import Case

_REACH = 256  # how far a length is moved; contracts ask for multiples of a tile at most
_SMALL = 33  # short lengths are tried whatever the case has: "Sq == 1"
_BINARY: dict[type[ast.operator], str] = {
    ast.Add: "add",
    ast.Sub: "sub",
    ast.Mult: "mul",
    ast.FloorDiv: "floordiv",
    ast.Mod: "mod",
}
_COMPARE: dict[type[ast.cmpop], str] = {ast.Eq: "eq", ast.LtE: "le", ast.Lt: "lt"}


def demanded(attention: Attention, contract: Contract | None, kernel: Kernel | None = None) -> Attention:
    """`attention` for the sizes that `contract` is for, and `kernel` by its parameters: with one for both lengths
    they are equal. Conditions on the element type alone are left out.
    """
    requires = () if contract is None else contract.requires
    if kernel is not None and one_length(kernel):
        requires = (*requires, "Sq == Sk")
    equal = list(attention.equal_sizes)
    demands: list[Expr] = list(attention.demands)
    for text in requires:
        condition = condition_of(text)
        pair = _equal_sizes(condition)
        if pair is not None and pair not in equal and pair[::-1] not in equal:
            equal.append(pair)
        elif pair is None and condition not in demands:
            demands.append(condition)
    return replace(attention, equal_sizes=tuple(equal), demands=tuple(demands))


def condition_of(text: str) -> Expr:
    """A condition of a contract, which reading it has checked, as an expression."""
    node = ast.parse(text, mode="eval").body
    assert isinstance(node, ast.Compare)
    return Call(_COMPARE[type(node.ops[0])], (_size(node.left), _size(node.comparators[0])))


def _size(node: ast.expr) -> Expr:
    match node:
        case ast.Constant(value=int() as value):
            return Const(value)
        case ast.Name(id=name):
            return Var(name)
        case ast.BinOp(left=left, op=op, right=right):
            return Call(_BINARY[type(op)], (_size(left), _size(right)))
        case ast.Call(func=ast.Name(id="cdiv"), args=[a, b]):
            top, width = _size(a), _size(b)
            return Call("floordiv", (top + width - 1, width))
        case ast.Call(func=ast.Name(id=name), args=[a, b]):
            return Call(name, (_size(a), _size(b)))
        case _:
            raise ValueError(ast.unparse(node))


def _equal_sizes(condition: Expr) -> tuple[str, str] | None:
    """The two sizes of ``Sq == Sk`` or ``H == Hkv``, in the order of a spec's."""
    assert isinstance(condition, Call)
    a, b = condition.args
    if condition.op != "eq" or not isinstance(a, Var) or not isinstance(b, Var):
        return None
    return next((p for p in (("Sq", "Sk"), ("H", "Hkv")) if set(p) == {a.name, b.name}), None)


def outside(attention: Attention) -> str:
    """Why a case could not be moved into the domain."""
    return (
        "neither spec nor contract allow such sizes" if attention.demands else "the spec is not defined for such sizes"
    )


def fitted(case: Case, attention: Attention) -> Case | None:
    """`case` moved into the domain of the spec: sizes it fixes, lengths it wants equal or in steps, what the contract
    demands. None when that is impossible.
    """
    fixed, step = attention.specialised, max(attention.size_step, 1)

    def length(name: str, rows: int) -> int:
        return fixed.get(name, -(-rows // step) * step)

    moved = replace(case, B=fixed.get("B", case.B), Sq=length("Sq", case.Sq), Sk=length("Sk", case.Sk))
    moved = replace(moved, D=fixed.get("D", case.D), Dv=fixed.get("Dv", 0))  # the kernel may be wider
    for a, b in attention.equal_sizes:
        if {a, b} == {"Sq", "Sk"} and moved.Sq != moved.Sk:
            # The longer one keeps what the case is about; zero stays zero, for it is its own case.
            both = 0 if 0 in (moved.Sq, moved.Sk) else max(moved.Sq, moved.Sk)
            moved = replace(moved, Sq=both, Sk=both)
    if ("Sq", "Sk") in attention.ordered_sizes and moved.Sq > moved.Sk:
        # More queries than keys: as many keys instead; without keys there is no query either.
        both = moved.Sq if moved.Sk else 0
        moved = replace(moved, Sq=both, Sk=both)
    found = obeying(moved, attention)
    return found if found is not None and attention.allows(found.sizes) else None


def obeying(case: Case, attention: Attention) -> Case | None:
    """`case` with the nearest lengths, longer ones first, that meet the demands and the other conditions on lengths;
    None where none does. A case about no rows stays one, or goes.
    """
    if not attention.demands or attention.allows(case.sizes):
        return case
    if 0 in (case.Sq, case.Sk):
        return None
    named = frozenset[str]().union(*(free_vars(e) for e in attention.demands))
    batches = dict.fromkeys((case.B, 1)) if "B" in named else (case.B,)
    return next((f for b in batches if (f := _near(replace(case, B=b), attention)) is not None), None)


def _near(case: Case, attention: Attention) -> Case | None:
    sizes = {**case.sizes, "Dv": case.Dv or case.D}
    rows, keys = _lengths(case.Sq).reshape(-1, 1), _lengths(case.Sk).reshape(1, -1)
    good = np.ones((rows.size, keys.size), bool)
    for condition in attention.demands:
        if free_vars(condition) <= set(sizes):  # a condition on the element type is not about sizes
            good &= np.asarray(evaluate(condition, {**sizes, "Sq": rows, "Sk": keys}), bool)
    step = max(attention.size_step, 1)
    good &= (rows % step == 0) & (keys % step == 0)
    if any({a, b} == {"Sq", "Sk"} for a, b in attention.equal_sizes):
        good &= rows == keys
    if ("Sq", "Sk") in attention.ordered_sizes:
        good &= rows <= keys
    if not good.any():
        return None
    cost = _cost(rows, case.Sq) + _cost(keys, case.Sk)
    at = np.unravel_index(int(np.where(good, cost, np.inf).argmin()), good.shape)
    return replace(case, Sq=int(rows[at[0], 0]), Sk=int(keys[0, at[1]]))


def _lengths(around: int) -> np.ndarray:
    near = np.arange(max(1, around - _REACH), around + _REACH + 1)
    return np.unique(np.concatenate([np.arange(1, _SMALL), near]))


def _cost(lengths: np.ndarray, wanted: int) -> np.ndarray:
    """A shorter length is taken only where no longer one will do: it may lose what the case is about."""
    return np.where(lengths >= wanted, lengths - wanted, 1000.0 * (wanted - lengths))
