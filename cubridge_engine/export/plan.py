"""What an exported module must know of a kernel: from its contract, its lifted program and the lines of its header."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from ..compile import Contract, Instance, Parameter
from ..compile.size_text import SIZES, evaluate_size
from ..diagnostics import Diagnostic, make
from ..ir.evaluate import UnboundName, evaluate
from ..ir.nodes import Kernel
from ..ir.text_expr import ExprSyntaxError, parse_expr
from ..lower import Header
from ..spec.dropin_derived import argument_names
from ..verify.bindings import layouts_of
from ..verify.contracts import contract_type, extended
from .parts import defined_names
from .sources import Sources

Scales = Mapping[int, float | int]  # the value of a scale by head dimension
SCALE_ROLES = ("scale", "scale_log2")
# Names that the module uses for itself.
_OWN = (
    "q k v o lse B H Hkv Sq Sk D Dv group scale causal return_lse torch math columns element_bytes grid block shared "
    "device instance arguments check forward fake result given SCALES INSTANCES DTYPES KERNELS"
)
RESERVED = frozenset(_OWN.split(" "))


@dataclass(frozen=True, slots=True)
class Extra:
    """A tensor that the kernel takes besides q, k and v: the argument `name`, for the parameter `param`.

    `axes` are extents (sizes, integers; None: any), `dense` the axes that must lie one behind the other.
    `strides` gives the axis for each of the kernel's stride parameters.
    """

    name: str
    param: str
    type: str
    axes: tuple[str | None, ...]
    dense: tuple[int, ...]
    strides: Mapping[str, int] = field(hash=False)
    what: str = ""


@dataclass(frozen=True, slots=True)
class Number:
    """A number that the caller must give: the argument `name`, of the parameter's `type`."""

    name: str
    type: str


@dataclass(frozen=True, slots=True)
class Plan:
    """All of it. `values` are numbers that never change, by parameter; `scales` those of the scale parameter by head
    dimension (empty: the caller may choose); `page` the rows of a page (0: k and v are [B, Hkv, Sk, D]) and `table`
    the argument that says where pages are; `order` the names of the spec's inputs, if known, and `requires` its
    conditions on sizes.
    """

    name: str
    contract: Contract
    instances: tuple[Instance, ...]
    sources: Sources
    extras: tuple[Extra, ...] = ()
    numbers: tuple[Number, ...] = ()
    values: Mapping[str, float | int] = field(default_factory=dict[str, "float | int"], hash=False)
    scales: Scales = field(default_factory=dict[int, "float | int"], hash=False)
    page: int = 0
    table: str = ""
    order: tuple[str, ...] = ()
    requires: tuple[str, ...] = ()
    lse: bool = True
    adapted: bool = False
    spec: str = ""

    @property
    def causal(self) -> bool:
        """True when the caller chooses."""
        flags = [p for p in self.contract.parameters if p.role == "flag:causal"]
        return any(p.name not in self.values for p in flags) and "causal_bottom_right" in self.contract.masks

    @property
    def scale(self) -> bool:
        """True when the caller chooses."""
        own = [p for p in self.contract.parameters if p.role in SCALE_ROLES]
        return not self.scales and any(p.name not in self.values for p in own)


class _Refused(Exception):
    def __init__(self, code: str, **facts: str) -> None:
        super().__init__(code)
        facts_only: dict[str, Any] = dict(facts)
        self.diagnostic = make(code, None, **facts_only)


def plan_export(
    name: str,
    contract: Contract,
    kernel: Kernel | None,
    names: tuple[str, ...],
    header: Header,
    sources: Sources,
    given: Mapping[str, float | int],
    head_dim: int | None,
) -> tuple[Plan | None, tuple[Diagnostic, ...]]:
    """The plan of an operator `name`, or why there is none (CB671 to CB674, CB677).

    `kernel` is the lifted program (None where lifting does not read it), `names` the parameters in the text, `given`
    values from the user; `head_dim` is what the header's values are for, where the header does not say it.
    """
    try:
        return _plan(name, contract, kernel, names, header, sources, given, head_dim), ()
    except _Refused as refused:
        return None, (refused.diagnostic,)


# arguments that the module's text has no words for
_UNFIT: tuple[tuple[Callable[[Parameter], bool], str], ...] = (
    (lambda p: p.optional, "an optional argument"),
    (lambda p: p.role == "scratch", "scratch memory that grows with the sizes"),
    (lambda p: p.role == "struct", "a struct"),
    (lambda p: p.role == "value", "a number that the host works out"),
    (lambda p: p.fill is not None, "memory that is filled before the launch"),
    (lambda p: p.layout != "bhsd", "a tensor that lies in memory as the kernel alone knows"),
)


def _plan(
    name: str,
    contract: Contract,
    kernel: Kernel | None,
    names: tuple[str, ...],
    header: Header,
    sources: Sources,
    given: Mapping[str, float | int],
    head_dim: int | None,
) -> Plan:
    _same_parameters(contract, names)
    for p in contract.parameters:
        for unfit, reason in _UNFIT:
            if unfit(p):
                raise _Refused("CB677", kernel=contract.name, name=p.name, reason=reason)
    operands = {param: operand for param, (operand, _) in header.operands.items()}
    extras: tuple[Extra, ...] = ()
    if len(names) > len(contract.parameters):
        if kernel is None or tuple(p.name for p in kernel.params) != names:
            raise _Refused("CB671", kernel=contract.name, reason="it has more, and lifting does not read the kernel")
        contract = extended(contract, kernel, {**operands, **{p: p for p in (*header.tiles, *header.pages)}})
        extras = _extras(kernel, contract, header)
    unknown = [n for n in given if n not in names]
    if unknown:
        raise _Refused("CB673", name=unknown[0], reason=f"the kernel has {', '.join(names)}")
    adapted = bool(header.spec)
    scale = next((p.name for p in contract.parameters if p.role in SCALE_ROLES), "")
    scales, instances = _instances(contract, header, scale if scale not in given else "", head_dim)
    values = {n: v for n in header.bindings if n != scale and (v := _value(header.bindings[n], 0)) is not None}
    values |= given
    owned = {s for extra in extras for s in extra.strides}
    free = [p for p in contract.parameters if p.role.startswith("scalar:") and p.name not in values]
    numbers = tuple(Number(p.name, p.type) for p in free if p.name not in owned)
    tables = [extra.name for extra in extras if extra.param in header.pages]
    unused = kernel is not None and any(p.role == "unused" and _is_lse(contract, p.name) for p in kernel.params)
    return Plan(
        name=name,
        contract=contract,
        instances=instances,
        sources=sources,
        extras=extras,
        numbers=numbers,
        values=values,
        scales=scales,
        page=next(iter(header.pages.values()), 0),
        table=tables[0] if tables else "",
        order=header.inputs,
        requires=header.requires,
        lse=any(p.role == "lse" for p in contract.parameters) and contract.lse != "none" and not unused,
        adapted=adapted,
        spec=header.spec,
    )


def _same_parameters(contract: Contract, names: tuple[str, ...]) -> None:
    wanted = [p.name for p in contract.parameters]
    for place, (want, have) in enumerate(zip(wanted, names, strict=False)):
        if want != have:
            raise _Refused("CB671", kernel=contract.name, reason=f"number {place + 1} is {have}, not {want}")
    if len(names) < len(wanted):
        raise _Refused("CB671", kernel=contract.name, reason=f"{wanted[len(names)]} is missing")


def _is_lse(contract: Contract, name: str) -> bool:
    return any(p.name == name and p.role == "lse" for p in contract.parameters)


# ---- values


def _value(text: str, head_dim: int) -> float | int | None:
    """The number that an expression over D is; None where it is none."""
    try:
        return np.asarray(evaluate(parse_expr(text), {"D": head_dim} if head_dim else {})).item()
    except (ExprSyntaxError, UnboundName):
        return None


def _instances(
    contract: Contract, header: Header, scale: str, head_dim: int | None
) -> tuple[Scales, tuple[Instance, ...]]:
    """The values of the scale parameter `scale` by head dimension, and the instances that they are for.

    An adapted text holds numbers of the head dimension that it was adapted at: it is offered there, and where its
    report says that it was executed with other values.
    """
    if not header.spec:
        return {}, contract.instances
    widths = header.widths or ((head_dim, head_dim) if head_dim else None)
    text = header.bindings.get(scale, "")
    if widths is None:
        raise _Refused("CB672", name=scale or "what it computes")
    own = _value(text, widths[0]) if text else None
    if scale and own is None:
        raise _Refused("CB673", name=scale, reason="the header gives no value for it")
    elsewhere = {d: values[scale] for d, values in header.elsewhere.items() if scale in values}
    scales = {widths[0]: own, **elsewhere} if own is not None else {}
    allowed = {widths, *((d, d) for d in elsewhere if widths[0] == widths[1])}
    if head_dim and not scale and head_dim != widths[0]:
        allowed.add((head_dim, head_dim))  # the value that depends on it was given
    listed = [i for i in contract.instances if i.widths in allowed]
    if contract.rule is not None and not any(i.widths == widths for i in listed):
        listed += [contract.rule.instance(dtype, widths) for dtype in contract.dtypes]
    if not listed:
        raise _Refused("CB674", widths=f"{widths[0]} (values of {widths[1]})")
    return {d: value for d, value in scales.items() if any(i.head_dim == d for i in listed)}, tuple(listed)


# ---- extra tensors


def _extras(kernel: Kernel, contract: Contract, header: Header) -> tuple[Extra, ...]:
    """The tensors of the header's lines, in the order in which a drop-in passes them."""
    layouts = layouts_of(
        kernel,
        {
            **header.operands,
            **{param: ("", axes) for param, axes in header.tiles.items()},
            **dict.fromkeys(header.pages, ("", ("B", ""))),
        },
    )
    order = {name: n for n, name in enumerate(header.inputs)}
    params = sorted(header.operands, key=lambda p: order.get(header.operands[p][0], len(order)))
    params += [*header.pages, *header.tiles]
    wanted = argument_names(
        [header.operands[p][0] if p in header.operands else p for p in params], RESERVED | defined_names()
    )
    known = {p.name: p for p in contract.parameters}
    missing = [p.name for p in kernel.params if p.role.startswith("operand:") and p.name not in params]
    if missing:
        raise _Refused("CB673", name=missing[0], reason="no line of the header says which tensor it is")
    found: list[Extra] = []
    for name, param in zip(wanted, params, strict=True):
        if param not in layouts.kept or param not in known:
            raise _Refused("CB673", name=param, reason="the kernel does not index it as its header says")
        found.append(_extra(name, known[param], header, layouts.kept[param], layouts.stride_params[param], kernel.Br))
    return tuple(found)


def _extra(
    name: str, param: Parameter, header: Header, kept: tuple[int, ...], strides: Mapping[str, int], br: int
) -> Extra:
    if param.name in header.operands:
        axes: tuple[str | None, ...] = header.operands[param.name][1]
        what = f"`{header.operands[param.name][0]}` of the spec"
    elif param.name in header.pages:
        size = header.pages[param.name]
        axes, what = ("B", None), f"key j of sequence b is row j % {size} of page {name}[b, j // {size}]"
    else:
        axes = tuple(_tile_extent(axis, br) for axis in header.tiles[param.name])
        what = "the KV tiles that each Q tile visits, from `build_tile_list` of the drop-in"
    bad = next((a for a in axes if a is not None and not _is_size(a)), None)
    if bad is not None:
        raise _Refused("CB673", name=param.name, reason=f"its extent {bad!r} is no size")
    dense = tuple(axis for axis in sorted(kept) if axis not in strides.values())
    return Extra(name, param.name, contract_type_of(param), axes, dense, dict(strides), what)


def contract_type_of(param: Parameter) -> str:
    """The contract's type of an operand."""
    return param.type if param.type.endswith("*") else contract_type(param.type)


def _tile_extent(axis: str, br: int) -> str | None:
    return {"Q tiles": f"cdiv(Sq, {br})", "entries": None}.get(axis, axis)


def _is_size(text: str) -> bool:
    try:
        evaluate_size(text, dict.fromkeys(SIZES, 1))
    except (ValueError, KeyError, ZeroDivisionError):
        return False
    return True


def stem_name(path: str) -> str:
    """A name for the operator of a file."""
    words = "".join(c if c.isalnum() or c == "_" else "_" for c in Path(path).stem)
    return words if words and not words[0].isdigit() else f"_{words}"
