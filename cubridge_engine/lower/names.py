"""Scopes: the source spelling of every canonical name at a site, and how operands are read there."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field

import numpy as np

from ..ir.anchors import Names
from ..ir.expr import Call, Const, Expr, Read, Var, conjoin, free_vars
from ..ir.nodes import Kernel
from ..transfer.model import Operand
from ..transfer.ranges import tidy
from ..transfer.sampling import Env, points, value_at
from .cuda_expr import PRIMARY, TERNARY, Scope, float_literal, print_cuda
from .style import NameMaker, Style

_BR = ("br", "blockm", "brows", "tileq", "qtile", "bm", "blockq")
_BC = ("bc", "blockn", "bcols", "tilek", "kvtile", "bn", "blockkv", "blockk")
_WIDE = re.compile(r"\b(long|int64_t|size_t|ptrdiff_t|uint64_t)\b")


@dataclass(frozen=True)
class Declaration:
    """A line hoisted to the setup of the kernel."""

    text: str  # without indentation and newline
    name: str


@dataclass
class Hoisted:
    """Loop-invariant values that were given a name, in order of first use."""

    maker: NameMaker
    lines: list[Declaration] = field(default_factory=list[Declaration])
    known: dict[tuple[str, str], str] = field(default_factory=dict[tuple[str, str], str])

    def declare(self, kind: str, wanted: str, value: str) -> str:
        """The name of ``const <kind> <name> = <value>;``, declared once."""
        key = (kind, value)
        if key not in self.known:
            name = self.maker.make(wanted)
            self.known[key] = name
            joint = "" if kind.endswith((" *", " &")) else " "
            self.lines.append(Declaration(f"{kind}{joint}{name} = {value};", name))
        return self.known[key]


@dataclass(frozen=True)
class Scopes:
    """Everything needed to print expressions of one kernel in its file."""

    kernel: Kernel
    style: Style
    operands: Mapping[str, Operand]
    types: Mapping[str, str]
    setup: Names
    hoisted: Hoisted
    spelling: Mapping[str, str] = field(
        default_factory=dict[str, str]
    )  # parameters whose CuIR name is not the source's
    hoisted_types: dict[str, str] = field(default_factory=dict[str, str])  # types of hoisted values
    local: dict[str, str] = field(default_factory=dict[str, str])  # names of the program that a rule brought in

    def names_at(self, names: Names, extra: Mapping[str, str] | None = None) -> dict[str, str]:
        """Canonical name -> text at a site: the site's own, the setup's, parameters, tile sizes."""
        found: dict[str, str] = {}
        for p in self.kernel.params:
            found[p.role if p.role in ("B", "H", "Hkv", "Sq", "Sk") else p.name] = self.spelling.get(p.name, p.name)
        found["Br"] = self.style.constant_named(self.kernel.Br, _BR) or str(self.kernel.Br)
        found["Bc"] = self.style.constant_named(self.kernel.Bc, _BC) or str(self.kernel.Bc)
        found["D"] = self._head_dim()
        for operand in self.operands.values():
            found.update({name: self.spelling.get(name, name) for name in operand.stride_params})
        return {**found, **self.setup.text, **names.text, **self.local, **(extra or {})}

    def _head_dim(self) -> str:
        """The template parameter that is the head dimension, if it is one, so that other instantiations stay right."""
        same = [n for n, value in self.kernel.instantiation.items() if value == self.kernel.D]
        return same[0] if len(same) == 1 else str(self.kernel.D)

    def at(self, names: Names, extra: Mapping[str, str] | None = None, *, inside: bool = False) -> Scope:
        """The scope of a site. `inside`: reads are known to be inside their tensors there."""
        types = {**self.types, **self.hoisted_types}
        return Scope(
            self.names_at(names, extra), types, self._read, self.style.float_suffix, self.style.float_constants, inside
        )

    def at_setup(self) -> Scope:
        """The scope where hoisted values are declared."""
        return self.at(self.setup)

    # ---- operands ----

    def _read(self, read: Read, scope: Scope) -> tuple[str, int]:
        operand = self.operands[read.tensor]
        fixed, moving = self._offsets(read, operand)
        base = self.spelled(operand)
        if moving is None:
            text = f"{base}[{print_cuda(fixed or Const(0), scope)}]"
        else:
            if fixed is not None:
                base = self._base_pointer(operand, fixed)
            text = f"{base}[{print_cuda(moving, scope)}]"
        text = self._converted(text, operand, scope.wide)
        guard = None if scope.inside else self.predicate(read)
        if guard is None:
            return text, PRIMARY
        condition = print_cuda(guard, scope, 30)
        if operand.dtype == "bool":
            return f"{condition} && {text}", 30
        zero = "0" if operand.dtype in ("int32", "int64") else float_literal(0.0, self.style.float_suffix)
        return f"{condition} ? {text} : {zero}", TERNARY

    def spelled(self, operand: Operand) -> str:
        """How the pointer of an operand is written where scores are."""
        return self.spelling.get(operand.param, operand.param)

    def _offsets(self, read: Read, operand: Operand) -> tuple[Expr | None, Expr | None]:
        """The element offset, split into what is the same for the CTA and what varies with the element."""
        fixed: list[Expr] = []
        moving: list[Expr] = []
        for index, stride in zip(read.index, operand.strides, strict=True):
            if stride == Const(0) or index == Const(0):
                continue
            term = index if stride == Const(1) else index * stride
            if stride != Const(1) and not self._is_wide(stride):
                term = Call("mul", (Call("int", (index,)), stride))
            (moving if free_vars(index) & {"i", "j"} else fixed).append(term)
        return _sum(fixed), _sum(moving)

    def _is_wide(self, stride: Expr) -> bool:
        """True when a stride parameter has 64 bits, so that the product has too."""
        ctypes = {p.name: p.ctype for p in self.kernel.params}
        return all(bool(_WIDE.search(ctypes.get(name, "long long"))) for name in free_vars(stride))

    def row_offset(self, operand: Operand, index: tuple[Expr, ...]) -> Expr:
        """The place, in elements, of the first element of `operand` behind these leading indices."""
        fixed, _ = self._offsets(Read(operand.name, (*index, Const(0))), operand)
        return fixed or Const(0)

    def row_pointer(self, operand: Operand, index: tuple[Expr, ...], wanted: str) -> str:
        """The name of a pointer, declared at setup, to the elements of `operand` behind these leading indices."""
        fixed = self.row_offset(operand, index)
        base = self.spelled(operand)
        value = base if fixed == Const(0) else f"{base} + {print_cuda(fixed, self.at_setup(), 60)}"
        ctype = next(p.ctype for p in self.kernel.params if p.name == operand.param)
        return self.hoisted.declare(re.sub(r"\s*\b__restrict__\b\s*", "", ctype).strip(), wanted, value)

    def _base_pointer(self, operand: Operand, fixed: Expr) -> str:
        value = f"{self.spelled(operand)} + {print_cuda(fixed, self.at_setup(), 61)}"
        suffix = "".join(sorted(free_vars(fixed) & {"b", "h", "hk"})) or "base"
        ctype = next(p.ctype for p in self.kernel.params if p.name == operand.param)
        kind = re.sub(r"\s*\b__restrict__\b\s*", "", ctype).strip()
        return self.hoisted.declare(kind, f"{operand.param}_{suffix}", value)

    def _converted(self, text: str, operand: Operand, wide: bool) -> str:
        ctype = next(p.ctype for p in self.kernel.params if p.name == operand.param)
        if operand.dtype == "float32" or (operand.dtype == "io" and re.search(r"\bfloat\b", ctype)):
            return text
        if operand.dtype in ("bool", "int32"):
            return text
        if operand.dtype == "int64":
            if wide:
                return text  # an identifier compared with another may need all its bits
            return f"static_cast<int>({text})"
        for word, function in (
            ("__half", "__half2float"),
            ("half", "__half2float"),
            ("__nv_bfloat16", "__bfloat162float"),
        ):
            if re.search(rf"\b{word}\b", ctype):
                return f"{function}({text})"
        return f"static_cast<float>({text})"

    def predicate(self, read: Read) -> Expr | None:
        """Where a read is inside its tensor; None: always.

        Rows and columns of the last tiles lie beyond the tensor; other indices are bounded where they can leave their
        axis.
        """
        operand = self.operands[read.tensor]
        used: set[str] = set()
        for index in read.index:
            used |= free_vars(index)
        parts: list[Expr] = []
        if "i" in used:
            parts.append(Call("lt", (Var("i"), Var("Sq"))))
        if "j" in used:
            parts.append(Call("lt", (Var("j"), Var("Sk"))))
        for index, extent in zip(read.index, operand.axes, strict=True):
            if index in (Var("i"), Var("j"), Var("b"), Var("h"), Var("hk"), Const(0)):
                continue
            limit: Expr = Const(int(extent)) if extent.isdigit() else Var(extent)
            parts += _escapes(index, limit, points((index,), tile=(self.kernel.Br, self.kernel.Bc)), self.types)
        return conjoin(parts) if parts else None


def _sum(parts: list[Expr]) -> Expr | None:
    total: Expr | None = None
    for part in parts:
        total = part if total is None else total + part
    return total


def _escapes(index: Expr, limit: Expr, env: Env, types: Mapping[str, str]) -> list[Expr]:
    """Bounds that `index` can break inside a problem."""
    value = np.asarray(value_at(index, {**env, "D": 64}, types))
    top = np.asarray(value_at(limit, {**env, "D": 64}, types))
    out: list[Expr] = []
    if bool((value < 0).any()):
        out.append(Call("ge", (tidy(index, types), Const(0))))
    if bool((value >= top).any()):
        out.append(Call("lt", (tidy(index, types), limit)))
    return out
