"""contract.toml: how to compile and call a kernel, and what it promises.

Fields of the file (schema 1)::

    schema = 1
    name, source, summary          texts; `source` is relative to the contract
    adaptable    false for a kernel that lifting does not read: it is not offered to start an adaptation from
    parameters = [{name, role, type}, ...]   every argument of the kernel, by position
    [launch]     grid (3 expressions), block (3 integers), dynamic_shared_bytes (expression or integer), persistent
                 (true where CTAs take work items until none is left, so that any number of them along x is right)
    [tiles]      br, bc, stages    query rows and keys per tile, stages of the K/V ring
    [semantics]  masks (full | causal_bottom_right | causal_top_left), gqa, scale, lse (natural | log2 | none),
                 empty_rows (zero | nan | undefined)
    [limits]     archs, alignment_bytes, scale_positive, grid_max, and optional requires: conditions on the sizes of a
                 call, such as "Sq == Sk", "H == Hkv" or "Sq % 32 == 0"
    [widths]     optional, for a template over the widths: expression (the C++ name with {T}, {D} and {Dv} for the
                 template arguments), d_multiple, dv_multiple, largest: what D and Dv may be besides the instances
    [[instances]]  expression (a C++ name expression, or a plain name), dtype, head_dim (D, the width of Q and K),
                 value_dim (Dv, the width of V and O; head_dim where it is not given), rows (for kernels that pack
                 query heads: the most rows H / Hkv * Sq that it is for; any number where it is not given)

Types: ``T*`` (pointer to the dtype of the instance), ``float*``, ``half*``, ``bfloat16*``, ``int32*``, ``int64*``,
``bool*``, ``int32``, ``int64``, ``float32``, ``float64``, ``bool``, ``tensor_map`` with ``box = [columns, rows]`` and
``swizzle`` for a TMA descriptor of q, k or v (compile/tensor_maps.py), and ``struct`` (its role too) with its size in
``bytes`` and ``fields = [{offset, name, role, type, ...}, ...]``; bytes that no field covers are zero. Roles:
compile/parameters.py. A ``workspace`` or ``scratch`` names its number of ``elements`` (an expression); ``fill`` is what
a scratch, o or lse holds before each launch (a number, "inf" or "-inf"). A ``value`` has a ``value`` (an expression, or
a number). ``layout`` is the order of the axes in memory of a q, k, v or o that has no stride parameters (default
"bhsd"), or "k" (or "q") where it has the strides of that tensor. ``optional = true`` on an operand, a scalar or a
stride of an operand: null, or 0, where the caller gives none.
Expressions use the sizes B, H, Hkv, Sq, Sk, D, Dv and element_bytes, integers, + - * // % and cdiv, min, max.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path

from ..diagnostics import Diagnostic, make
from .parameters import Parameter
from .size_text import cdiv, evaluate_size

DTYPE_BYTES = {"float32": 4, "float16": 2, "bfloat16": 2}
ELEMENT_NAMES = {"float32": "float", "float16": "__half", "bfloat16": "__nv_bfloat16"}  # in C++
MASKS = ("full", "causal_bottom_right", "causal_top_left")
LSE_UNITS = ("natural", "log2", "none")
EMPTY_ROWS = ("zero", "nan", "undefined")
Widths = tuple[int, int]  # (D, Dv)


@dataclass(frozen=True, slots=True)
class Instance:
    """One compiled form of the kernel: a name expression for NVRTC, the dtype of T, the widths, and the most rows
    H / Hkv * Sq that it is for (0: any number).
    """

    expression: str
    dtype: str
    head_dim: int
    value_dim: int
    rows: int = 0

    @property
    def widths(self) -> Widths:
        """(D, Dv)."""
        return self.head_dim, self.value_dim


@dataclass(frozen=True, slots=True)
class WidthRule:
    """What D and Dv of a template may be besides the instances: multiples, up to `largest`.

    `expression` is the C++ name with ``{T}``, ``{D}`` and ``{Dv}`` in the place of template arguments.
    """

    expression: str
    d_multiple: int
    dv_multiple: int
    largest: int

    def at_least(self, widths: Widths) -> Widths | None:
        """The smallest widths that hold these; None where they are too large."""
        found = (
            cdiv(widths[0], self.d_multiple) * self.d_multiple,
            cdiv(widths[1], self.dv_multiple) * self.dv_multiple,
        )
        return found if max(found) <= self.largest else None

    def instance(self, dtype: str, widths: Widths) -> Instance:
        """The kernel at these widths."""
        d, dv = widths
        return Instance(self.expression.format(T=ELEMENT_NAMES[dtype], D=d, Dv=dv), dtype, d, dv)


@dataclass(frozen=True, slots=True)
class LaunchShape:
    """Grid and block (x, y, z), and dynamic shared memory in bytes."""

    grid: tuple[int, int, int]
    block: tuple[int, int, int]
    dynamic_shared_bytes: int


@dataclass(frozen=True, slots=True)
class Contract:
    """A contract.toml, checked. See the module's text for the fields."""

    path: str
    name: str
    source: str
    summary: str
    parameters: tuple[Parameter, ...]
    grid: tuple[str, str, str]
    block: tuple[int, int, int]
    dynamic_shared_bytes: str
    br: int
    bc: int
    stages: int
    masks: tuple[str, ...]
    gqa: bool
    scale: str
    lse: str
    empty_rows: str
    archs: tuple[str, ...]
    alignment_bytes: int
    scale_positive: bool
    grid_max: tuple[int, int, int]
    instances: tuple[Instance, ...]
    rule: WidthRule | None = None
    adaptable: bool = True
    persistent: bool = False
    requires: tuple[str, ...] = ()

    @property
    def source_path(self) -> Path:
        """The kernel's file."""
        return Path(self.path).parent / self.source

    @property
    def leaves(self) -> tuple[Parameter, ...]:
        """The parameters, with the fields of a struct in its place."""
        return tuple(leaf for p in self.parameters for leaf in p.leaves)

    @property
    def dtypes(self) -> tuple[str, ...]:
        """The dtypes of its instances, in order, each once."""
        return tuple(dict.fromkeys(instance.dtype for instance in self.instances))

    @property
    def head_dims(self) -> tuple[int, ...]:
        """The head dimensions of its instances, in order, each once."""
        return tuple(dict.fromkeys(instance.head_dim for instance in self.instances))

    @property
    def widths(self) -> tuple[Widths, ...]:
        """(D, Dv) of its instances, in order, each once."""
        return tuple(dict.fromkeys(instance.widths for instance in self.instances))

    @property
    def largest(self) -> int:
        """The largest head dimension."""
        return max((*self.head_dims, self.rule.largest if self.rule is not None else 0))

    def candidates(self, widths: Widths) -> tuple[Widths, ...]:
        """Widths of the kernel that hold these, the least wasteful first: those of an instance, and by the rule."""
        ruled = self.rule.at_least(widths) if self.rule is not None else None
        listed = [w for w in self.widths if w[0] >= widths[0] and w[1] >= widths[1]]
        return tuple(sorted({*listed, *([ruled] if ruled is not None else [])}, key=lambda w: (sum(w), w)))

    def for_widths(self, widths: Widths) -> Contract:
        """The contract for a spec of these widths: all instances with one width for all where that is what it has and
        what is listed, else those of these widths, made by the rule where none is listed.
        """
        alike = tuple(i for i in self.instances if i.head_dim == i.value_dim)
        own = tuple(i for i in self.instances if i.widths == widths)
        if own and widths[0] == widths[1]:
            return replace(self, instances=alike)
        if not own and self.rule is not None:
            own = tuple(self.rule.instance(dtype, widths) for dtype in self.dtypes)
        return replace(self, instances=own)

    @property
    def expressions(self) -> tuple[str, ...]:
        """The name expressions of all instances, for ``compile_source``."""
        return tuple(instance.expression for instance in self.instances)

    def instance(self, dtype: str, head_dim: int, value_dim: int | None = None, rows: int = 1) -> Instance | None:
        """The first instance for a dtype (``float16``, ``bfloat16``, ``float32``), its widths (None: as the head
        dimension) and H / Hkv * Sq rows.
        """
        widths = (head_dim, head_dim if value_dim is None else value_dim)
        fitting = (i for i in self.instances if i.dtype == dtype and i.widths == widths)
        return next((i for i in fitting if not i.rows or rows <= i.rows), None)

    def missing_instance(self, dtype: str, head_dim: int) -> Diagnostic:
        """The diagnostic for a dtype and head dimension that no instance has."""
        available = ", ".join(dict.fromkeys(f"{i.dtype} D={i.head_dim}" for i in self.instances))
        return make("CB622", None, dtype=dtype, head_dim=head_dim, available=available)

    def launch(self, sizes: Mapping[str, int], dtype: str) -> LaunchShape:
        """Grid, block and shared bytes for `sizes` (B, H, Hkv, Sq, Sk, D, Dv if other). KeyError: one is missing."""
        values = {**_widths(sizes), "element_bytes": DTYPE_BYTES[dtype]}
        x, y, z = (evaluate_size(text, values) for text in self.grid)
        return LaunchShape((x, y, z), self.block, evaluate_size(self.dynamic_shared_bytes, values))

    def scratch(self, sizes: Mapping[str, int]) -> dict[Parameter, int]:
        """The scratch parameters and their numbers of elements. Raises KeyError when a size they need is missing."""
        return {p: evaluate_size(p.elements, _widths(sizes)) for p in self.leaves if p.is_scratch}

    def dynamic_shared(self, instance: Instance) -> int:
        """Dynamic shared bytes of `instance`, whatever the lengths. Raises KeyError when they depend on a length."""
        return self.shared_at(instance.widths, instance.dtype)

    def shared_at(self, widths: Widths, dtype: str) -> int:
        """Dynamic shared bytes at these widths. Raises KeyError when they depend on a length."""
        sizes = {"D": widths[0], "Dv": widths[1], "element_bytes": DTYPE_BYTES[dtype]}
        return evaluate_size(self.dynamic_shared_bytes, sizes)

    def with_parameters(self, extra: tuple[Parameter, ...]) -> Contract:
        """The contract of an adapted kernel, whose edit appended `extra` to the parameter list."""
        return replace(self, parameters=(*self.parameters, *extra))


def _widths(sizes: Mapping[str, int]) -> dict[str, int]:
    """`sizes`, with Dv."""
    return {**({"Dv": sizes["D"]} if "D" in sizes else {}), **sizes}
