"""Extra tensors of the spec become parameters at the end of the kernel's list: a pointer, and a stride for each axis
that needs one.
"""

from __future__ import annotations

import re
from collections.abc import Collection
from dataclasses import fields, replace

from ...ir.expr import Const, Expr, Read, Var, walk
from ...ir.nodes import Kernel, Param
from ...ir.text_expr import print_expr
from ...spec.attention import TensorInput
from ..draft import Draft
from ..model import Check, Operand, ParamEdit
from ..semantics import walk_ops
from ..tile_lists import Q_TILES, TileList
from .interface import base_type, element_types, tensor_pointer
from .rule import Example, Rule

_CTYPES = {"float32": "float", "int32": "int", "int64": "long long", "bool": "bool"}
_AXES = {"B": "b", "H": "h", "Hkv": "h", "Sq": "row", "Sk": "col", Q_TILES: "row"}


def _apply(draft: Draft) -> Draft:
    used = draft.operand_names(*_expressions(draft))
    for item in draft.attention.operands:
        if item.name not in used:
            continue
        dtype = _dtype(draft, item)
        if dtype is None:
            have = " or ".join(element_types(draft.kernel))
            why = f"it reads {have} and 32- or 64-bit numbers"
            draft = draft.refuse(
                "CB312", item.name, name=item.name, dtype=item.dtype, kernel=draft.kernel.name, why=why
            )
            continue
        draft = _add(draft, item, dtype)
    if draft.tiles is not None:
        made = TensorInput(draft.tiles_name, "operand", draft.tiles.axes, "int32", -1, draft.span("mask"))
        draft = _add(draft, made, "int32", draft.tiles)
    return draft


def _expressions(draft: Draft) -> list[Expr]:
    """Every expression of the target program."""
    found: list[Expr] = []
    for op in walk_ops(draft.kernel.body):
        found += [v for f in fields(op) if isinstance(v := getattr(op, f.name), Expr)]
    return found


def _dtype(draft: Draft, item: TensorInput) -> str | None:
    """'io' for the kernel's own element type, else the operand's type; None when the kernel's file has no such type."""
    if item.dtype in _CTYPES and item.dtype not in ("float32",):
        return item.dtype
    if item.dtype == draft.attention.input("q").dtype:
        return "io"
    if item.dtype == "float32":
        return item.dtype
    return item.dtype if item.dtype in element_types(draft.kernel) else None


def new_parameter(
    draft: Draft, item: TensorInput, dtype: str, tiles: TileList | None = None, page: int = 0
) -> tuple[Kernel, ParamEdit]:
    """The program with a parameter for `item` (a pointer, and its strides) at the end of its list."""
    kernel = draft.kernel
    name = unused_name(kernel, item.name, draft.reserved)
    model = tensor_pointer(kernel)
    assert model is not None, "a kernel writes its output through a pointer"
    strides, stride_names = _strides(kernel, name, item.axes)
    element = base_type(kernel) if dtype == "io" else _CTYPES.get(dtype) or _half_spelling(dtype)
    position = len(kernel.params)
    params = [Param(name, _pointer_type(model.ctype, base_type(kernel), element), f"operand:{item.name}", position)]
    for stride in stride_names:
        role = f"stride:{item.name}.{stride.rsplit('_', 1)[1]}"
        params.append(Param(stride, _stride_type(kernel), role, position + len(params)))
    operand = Operand(item.name, name, dtype, item.axes, strides, stride_names, item.span, tiles, page)
    changed = replace(
        kernel,
        params=(*kernel.params, *params),
        tensors={**kernel.tensors, f"operand:{item.name}": strides},
    )
    return changed, ParamEdit(operand, tuple(params))


def _add(draft: Draft, item: TensorInput, dtype: str, tiles: TileList | None = None) -> Draft:
    changed, edit = new_parameter(draft, item, dtype, tiles)
    read_back = [e for x in _expressions(draft) for e in walk(x) if isinstance(e, Read) and e.tensor == item.name]
    check = Check(
        "parameter-has-effect", bool(read_back), f"read as {print_expr(read_back[0])}" if read_back else "never read"
    )
    reason = f"{item.name} [{', '.join(item.axes)}] is read by the kernel"
    return replace(draft, kernel=changed).step("operands", item.name, reason, edit, checks=(check,))


def unused_name(kernel: Kernel, name: str, reserved: Collection[str]) -> str:
    """`name`, made longer until no parameter and no reserved name is the same."""
    taken = {p.name for p in kernel.params} | set(reserved)
    while name in taken:
        name += "_operand"
    return name


def _strides(kernel: Kernel, name: str, axes: tuple[str, ...]) -> tuple[tuple[Expr, ...], tuple[str, ...]]:
    """A constant 0 for axes of size 1, 1 for the last real axis (it must be contiguous), a parameter for the others."""
    real = [n for n, extent in enumerate(axes) if extent != "1"]
    strides: list[Expr] = []
    names: list[str] = []
    for n, extent in enumerate(axes):
        if extent == "1":
            strides.append(Const(0))
        elif n == real[-1]:
            strides.append(Const(1))
        else:
            text = f"{name}_stride_{_AXES.get(extent, f'axis{n}')}"
            text = text if text not in names else f"{name}_stride_axis{n}"
            names.append(text)
            strides.append(Var(text))
    return tuple(strides), tuple(names)


def _pointer_type(ctype: str, old: str, new: str) -> str:
    """The pointer type of Q with another element type, const in any case."""
    text = re.sub(rf"\b{re.escape(old)}\b", new, ctype, count=1) if old else f"const {new} *"
    return text if "const" in text else f"const {text}"


def _half_spelling(dtype: str) -> str:
    return {"float16": "__half", "bfloat16": "__nv_bfloat16"}[dtype]


def _stride_type(kernel: Kernel) -> str:
    """The type the kernel's own strides have; 64 bits where it has none."""
    return next((p.ctype for p in kernel.params if p.role.startswith("stride")), "long long")


RULE = Rule(
    "operands",
    "Append a pointer and its strides for every extra tensor the target program reads.",
    ("parameter-has-effect",),
    _apply,
    Example(
        {"score": "s * 0.125 + bias[0, h, i, j]", "operand": "bias:1,H,Sq,Sk:float16"},
        'param 6 causal : "int" : flag',
        (
            'param 7 bias : "const half *" : operand:bias',
            'param 8 bias_stride_h : "long long" : stride:bias.h',
            'param 9 bias_stride_row : "long long" : stride:bias.row',
        ),
    ),
)
