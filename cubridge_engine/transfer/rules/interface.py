"""What must hold before any edit: a softmax, a type, a head dimension, layouts and outputs the kernel has."""

from __future__ import annotations

import numpy as np

from ...ir.expr import Expr, Read, free_vars, walk
from ...ir.nodes import Alloc, Kernel, Param
from ...ir.text_expr import print_expr
from ...spec.attention import TensorInput, TensorOutput, widths_of
from ..draft import Draft
from ..model import Check
from ..one_length import one_length
from ..sampling import value_at
from ..semantics import walk_ops
from .rule import Rule

_BYTES = {"float32": 4, "float16": 2, "bfloat16": 2}
# A parameter's element type as people spell it in CUDA.
_CTYPES = {
    "float": "float32",
    "__half": "float16",
    "half": "float16",
    "__nv_bfloat16": "bfloat16",
    "nv_bfloat16": "bfloat16",
    "double": "float64",
}
_HALVES = ("float16", "bfloat16")


def element_types(kernel: Kernel) -> tuple[str, ...]:
    """The dtypes Q may have: from its pointer type, or those a template parameter can stand for in this family."""
    base = base_type(kernel)
    if base in _CTYPES:
        return (_CTYPES[base],)
    return _HALVES if kernel.family == "mma" else ("float32", *_HALVES)


def tensor_pointer(kernel: Kernel) -> Param | None:
    """The parameter that shows how the kernel writes a pointer to its elements: Q, or O where Q is a tensor map."""
    pointers = {p.role: p for p in kernel.params if "*" in p.ctype or "&" in p.ctype}
    return next((pointers[role] for role in ("q", "o") if role in pointers), None)


def base_type(kernel: Kernel) -> str:
    """The element type of Q as written: ``__half``, ``float`` or a template parameter's name."""
    model = tensor_pointer(kernel)
    words = (model.ctype if model else "").replace("*", " ").replace("&", " ").split()
    return next((w for w in words if w not in ("const", "__restrict__", "restrict", "volatile")), "")


def shared_bytes(kernel: Kernel) -> int:
    """Bytes of the shared tiles of the program."""
    element = min(_BYTES[t] for t in element_types(kernel) if t in _BYTES)
    total = 0
    for op in walk_ops(kernel.body):
        if isinstance(op, Alloc) and op.space == "shared":
            total += op.slots * op.rows * op.cols * _BYTES.get(op.dtype, element)
    return total


def _apply(draft: Draft) -> Draft:
    for check in (_normaliser, _dtype, _head_dim, _layouts, _outputs, _operand_reads):
        draft = check(draft)
    if draft.refused:
        return draft
    return draft.step(
        "interface", "function", "types, head dimension, layouts and outputs agree", checks=(Check("interface", True),)
    )


def _normaliser(draft: Draft) -> Draft:
    want, have = draft.attention.normaliser, draft.sem.normaliser
    if want not in ("softmax", "none", "sum", "abs_sum") or have != "softmax":
        words = {"softmax": "a softmax", "none": "weights of single scores"}
        have = words.get(have, "weights of single scores over a row sum")
        return draft.refuse("CB301", "normaliser", normaliser=want, kernel=draft.kernel.name, have=have)
    return draft


def _dtype(draft: Draft) -> Draft:
    have = element_types(draft.kernel)
    dtype = draft.attention.input("q").dtype
    if dtype not in have:
        # The example's type is no part of the mathematics: the kernel's own types are what it can be verified in.
        return draft.note("CB303", "function", dtype=dtype, have=" or ".join(have), kernel=draft.kernel.name)
    return draft


def _head_dim(draft: Draft) -> Draft:
    """Equal widths: a spec that is padded is handed over with the kernel's."""
    have = draft.kernel.D, draft.kernel.Dv
    want, dv = widths_of(draft.attention, have)
    if (want, dv) == have:
        return draft
    if want != dv and have[0] == have[1]:
        return draft.refuse("CB302", "function", dv=dv, d=want, kernel=draft.kernel.name)
    size, said = shared_bytes(draft.kernel), f"D={have[0]}" if have[0] == have[1] else f"D={have[0]}, Dv={have[1]}"
    wanted = want if want == dv else f"{want} with values of {dv}"
    return draft.refuse("CB304", "function", want=wanted, have=said, bytes=size, kernel=draft.kernel.name)


def _layouts(draft: Draft) -> Draft:
    for item in (*(draft.attention.input(r) for r in ("q", "k", "v")), *draft.attention.outputs):
        if item.role == "lse" or _natural_order(item) or _as_kernel(draft.kernel, item):
            continue
        strides = draft.kernel.tensors.get(item.role, ())
        if not strides or not all(_is_stride(draft.kernel, s) for s in strides):
            draft = draft.refuse(
                "CB305", "function", role=item.role, axes=", ".join(item.axes), kernel=draft.kernel.name
            )
    return draft


def _natural_order(item: TensorInput | TensorOutput) -> bool:
    return [a for a in item.axes if a in ("b", "h", "hk", "i", "j")] == list(item.axes[:-1]) and (
        len(item.axes) < 4 or item.axes[1] in ("h", "hk")
    )


# Sizes at which no two orders of axes have the same strides.
_SAMPLES = ({"B": 2, "H": 6, "Hkv": 3, "Sq": 5, "Sk": 7}, {"B": 3, "H": 8, "Hkv": 2, "Sq": 11, "Sk": 13})


def _as_kernel(kernel: Kernel, item: TensorInput | TensorOutput) -> bool:
    """True where the kernel works its strides out from the sizes, and they are those of this order without gaps."""
    return all(_strides_agree(kernel, item, dict(sizes)) for sizes in _SAMPLES)


def _strides_agree(kernel: Kernel, item: TensorInput | TensorOutput, sizes: dict[str, int]) -> bool:
    strides = kernel.tensors.get(item.role, ())
    sizes |= {"D": kernel.D, "Dv": kernel.Dv}
    sizes |= {"Sk": sizes["Sq"]} if one_length(kernel) else {}
    sizes |= {} if any(p.role in ("Hkv", "group") for p in kernel.params) else {"Hkv": sizes["H"]}
    env = sizes | {p.name: sizes[p.role] for p in kernel.params if p.role in sizes}
    env |= {p.name: sizes["H"] // sizes["Hkv"] for p in kernel.params if p.role == "group"}
    if len(strides) != 3 or any(free_vars(s) - env.keys() for s in strides):
        return False
    extents = {"b": sizes["B"], "h": sizes["H"], "hk": sizes["Hkv"], "i": sizes["Sq"], "j": sizes["Sk"]}
    step, wanted = kernel.Dv if item.role in ("v", "o") else kernel.D, dict[str, int]()
    for axis in reversed(item.axes[:-1]):
        if axis not in extents:
            return False
        wanted[axis] = step
        step *= extents[axis]
    order = ("b", "hk", "j") if item.role in ("k", "v") else ("b", "h", "i")
    have = [int(np.asarray(value_at(s, env))) for s in strides]
    return all(axis in wanted for axis in order) and have == [wanted[axis] for axis in order]


def _is_stride(kernel: Kernel, stride: Expr) -> bool:
    """True for a stride that comes from a stride parameter, so that any layout can be passed."""
    roles = {p.name: p.role for p in kernel.params}
    return any(roles.get(name, "").startswith("stride") for name in free_vars(stride))


def _outputs(draft: Draft) -> Draft:
    if not any(o.role == "lse" for o in draft.attention.outputs):
        return draft
    if draft.sem.lse == "none":
        return draft.refuse("CB306", "lse", kernel=draft.kernel.name)
    if draft.sem.lse != "ln":
        return draft.refuse("CB315", "lse", kernel=draft.kernel.name, detail=draft.sem.lse)
    return draft


def _operand_reads(draft: Draft) -> Draft:
    att = draft.attention
    axes = {item.name: item.axes for item in att.operands}
    used: set[str] = set()
    for expr in (att.score, att.mask, att.sink, att.divisor):
        for e in walk(expr) if expr is not None else ():
            if isinstance(e, Read) and e.tensor in axes:
                used.add(e.tensor)
                if len(e.index) != len(axes[e.tensor]):
                    got, want = len(e.index), len(axes[e.tensor])
                    draft = draft.refuse("CB309", e.tensor, name=e.tensor, read=print_expr(e), got=got, want=want)
    for name in axes:
        if name not in used:
            draft = draft.note("CB316", name, name=name)
    return draft


RULE = Rule(
    "interface",
    "Refuse what no edit can give: another normaliser, element type, head dimension, layout or output.",
    ("interface",),
    _apply,
)
