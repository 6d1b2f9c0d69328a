"""The drop-in of a spec that is the attention alone, for a kernel that takes a tensor which the spec does not have, or
is wider than the spec.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from .attention import Attention, TensorInput
from .dropin import DropIn, shape_text
from .dropin_derived import Derived, argument_names
from .dropin_padding import FUNCTION, Padding, functions, statement
from .program import Program

_ORDER = {"q": "bhid", "k": ("b", "hk", "j", "d"), "v": ("b", "hk", "j", "d"), "o": "bhid", "lse": "bhi"}


def plain_drop_in(
    program: Program,
    attention: Attention,
    derived: Derived | None,
    notes: Sequence[str] = (),
    padding: Padding | None = None,
) -> DropIn:
    """The file: `attention` with the spec's tensors as arguments, which makes the tensor `derived`, if there is one,
    and calls the kernel, whose widths `padding` gives where they are not the spec's.

    `notes` are added to its docstring.
    """
    made = {derived.name, *derived.names} if derived is not None else set[str]()
    names = argument_names([i.name for i in attention.inputs], {"kernel", "torch", "F", FUNCTION, *made})
    lines = [
        *_head(program, attention, derived, padding, notes),
        "",
        "import torch",
        *(["import torch.nn.functional as F"] if padding is not None else []),
        *(["", *derived.source.splitlines()] if derived is not None else []),
        *functions(padding, attention),
        "",
        "",
        f"def attention({', '.join(names)}, *, kernel{f', {derived.name}=None' if derived is not None else ''}):",
        *(
            f"    {line}"
            for line in (*_summary(program, derived), *statement(padding), *_body(attention, derived, names))
        ),
    ]
    return DropIn("\n".join(lines) + "\n", None, attention, program, "attention", derived)


def _summary(program: Program, derived: Derived | None) -> list[str]:
    if derived is None:
        return [f'"""The computation of {program.entry}."""']
    return [
        f'"""The computation of {program.entry}. Calls with the same lengths and inputs of the mask may share',
        f"`{derived.name}`, the result of {derived.function}; None builds it for this call.",
        '"""',
    ]


def _head(
    program: Program,
    attention: Attention,
    derived: Derived | None,
    padding: Padding | None,
    notes: Sequence[str],
) -> list[str]:
    given = ", ".join([*(i.name for i in attention.inputs), *([derived.name] if derived is not None else [])])
    returns = "(o [B, H, Sq, Dv], lse [B, H, Sq])" if _returns_lse(attention) else "o [B, H, Sq, Dv]"
    what = f"computed by a kernel that follows {derived.name}" if derived is not None else "computed by a kernel"
    return [
        f'"""{program.entry} of {Path(program.path).name}, {what}.',
        "",
        f"``kernel({given})`` returns {returns}. It is called with",
        "",
        *(f"- {i.name}: {shape_text(_four(i))}, {i.dtype}" for i in attention.inputs),
        *([f"- {derived.name}: {derived.what}"] if derived is not None else []),
        "",
        "Strides are as they come: use `.contiguous()` in `kernel` if it needs that.",
        *([padding.note(attention)] if padding is not None else []),
        *notes,
        '"""',
    ]


def _returns_lse(attention: Attention) -> bool:
    return any(output.role == "lse" for output in attention.outputs)


def _four(item: TensorInput) -> TensorInput:
    return item if item.role == "operand" else replace(item, axes=tuple(_ORDER[item.role]))


def _body(attention: Attention, derived: Derived | None, names: Sequence[str]) -> list[str]:
    lines: list[str] = []
    by_role: dict[str, str] = {}
    for item, name in zip(attention.inputs, names, strict=True):
        if item.role == "operand":
            continue
        by_role[item.role] = name
        moved = _moved(name, item.axes, _ORDER[item.role])
        if moved != name:
            lines.append(f"{name} = {moved}")
    name_of = {i.name: n for i, n in zip(attention.inputs, names, strict=True)}
    given = list(names)
    if derived is not None:
        made = derived.call(name_of, by_role["q"], by_role["k"])
        lines += [f"if {derived.name} is None:", f"    {derived.name} = {made}"]
        given.append(derived.name)
    call = f"kernel({', '.join(given)})"
    if not _returns_lse(attention):
        return [*lines, f"return {_back(call, attention.outputs[0].axes, 'bhid')}"]
    results = [_back(o.role, o.axes, _ORDER[o.role]) for o in attention.outputs]
    return [*lines, f"o, lse = {call}", f"return {', '.join(results)}{',' if len(results) == 1 else ''}"]


def _moved(text: str, axes: Sequence[str], order: Sequence[str]) -> str:
    """`text` of these axes with all of `order`, those that it lacks of one element."""
    have = [a for a in order if a in axes]
    if have != list(axes):
        text += f".permute({', '.join(str(axes.index(a)) for a in have)})"
    for n, axis in enumerate(order):
        if axis not in axes:
            text += f".unsqueeze({n})"
    return text


def _back(text: str, axes: Sequence[str], order: Sequence[str]) -> str:
    """`text` of the axes of `order`, as the spec returns it."""
    for n, axis in reversed(list(enumerate(order))):
        if axis not in axes:
            text += f".squeeze({n})"
    have = [a for a in order if a in axes]
    if have != list(axes):
        text += f".permute({', '.join(str(have.index(a)) for a in axes)})"
    return text
