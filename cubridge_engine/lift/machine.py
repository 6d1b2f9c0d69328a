"""The state of symbolic execution: scopes, memory cells, predicates, events. What it executes is in the sibling
modules.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cached_property
from typing import TYPE_CHECKING, Any
from weakref import WeakKeyDictionary

import numpy as np
from numpy.typing import NDArray

from ..source import Function, SourceFile
from . import budget, macro_definitions
from .in_flight import InFlight
from .observed import Observer
from .syntax import Syn, convert, parse_fragment
from .trace import Assign, Event, Place, Trace, Unknown
from .values import UNDEFINED, Cells, CType, Node, NotUnderstood, Poly, Ptr, Record, Store, Value, is_uniform, same

if TYPE_CHECKING:
    from .persistent import Work
    from .roles import Roles
    from .rotation import Rotation

MAX_DEPTH = 16
_EXTREMES = {"gt": "max", "ge": "max", "lt": "min", "le": "min"}
_MIRRORED = {"gt": "lt", "ge": "le", "lt": "gt", "le": "ge"}
DEFAULT_BUDGET = 600_000


class Stopped(Exception):
    """A what-if run has reached its end."""


class OutOfBudget(Exception):
    """Execution took too many steps."""


class Scope:
    """Names visible at a point. `parent` is the enclosing scope."""

    __slots__ = ("names", "parent")

    def __init__(self, parent: Scope | None, names: dict[str, Any] | None = None) -> None:
        self.parent = parent
        self.names: dict[str, Any] = names if names is not None else {}

    def find(self, name: str) -> Any:
        """The binding of `name`, or None."""
        scope: Scope | None = self
        while scope is not None:
            if name in scope.names:
                return scope.names[name]
            scope = scope.parent
        return None


@dataclass(slots=True)
class Frame:
    """One call in progress."""

    call: Syn | None  # the call expression; None for the kernel itself
    base: int = 0  # how many conditions held when the call began
    returned: list[tuple[Value, Value]] = field(default_factory=list[tuple[Value, Value]])  # (condition, value)
    result: tuple[Syn, Scope] | None = None  # the declared type of what it returns, for ``return {...}``


@dataclass(eq=False)
class Definition:
    """A function of the file, its syntax converted on first use."""

    function: Function
    data: bytes
    at: tuple[int, int] | None = None  # of a definition by a macro: where that is used

    @property
    def name(self) -> str:
        """Its name, without what qualifies it."""
        return self.function.name

    @property
    def qualified(self) -> str:
        """Its name as written."""
        return self.function.qualified_name

    @cached_property
    def params(self) -> list[Syn]:
        """Its parameter declarations."""
        return [
            k for k in convert(self.function.params, self.data, at=self.at).kids if "parameter_declaration" in k.type
        ]

    @cached_property
    def body(self) -> Syn:
        """Its compound statement."""
        return convert(self.function.body, self.data, at=self.at)

    @cached_property
    def result(self) -> Syn | None:
        """The declared type of what it returns."""
        return convert_child(self.function.node, "type", self.data, self.at)

    @cached_property
    def template(self) -> list[Syn]:
        """Its template parameters."""
        template = self.function.template
        return (
            [] if template is None else _template_parameters(convert_child(template, "parameters", self.data, self.at))
        )


# Several machines run for one lift, each on the same functions.
_DEFINITIONS: WeakKeyDictionary[SourceFile, dict[str, list[Definition]]] = WeakKeyDictionary()


# What is not understood may hold a barrier if it calls something.
_MAY_MEET = frozenset({"call_expression", "gnu_asm_expression"})


class Machine:
    """Executes one kernel for all threads of a block. Execution proper: `statements.py`, `expressions.py`,
    `calls.py`.
    """

    def __init__(
        self, source: SourceFile, threads: int, block: tuple[int, int, int], roles: Roles | None = None
    ) -> None:
        self.source = source
        self.threads = threads  # of a block; with roles, only the consumers are executed
        self.roles = roles
        self.store = Store(threads if roles is None else len(roles.consumer))
        self.block = block
        self.produced: list[Any] = []  # events of the producer, and where in the trace its branch is
        self.produced_at = 0
        self.producing = False  # the producer's side is being executed
        self.work: Work | None = None  # what a persistent producer has published
        self.struct_types: dict[str, Any] = {}  # by name with template arguments (structs.StructType)
        self.rotation: Rotation | None = None  # the software-pipelined loop that is being executed, or was
        self.raw: dict[tuple[int, int], Value] | None = None  # what products left in each element, where asked for
        self.noting = True  # scopes and expressions are remembered
        self.row_counts: set[Node] = set()  # parameters that a copy takes for the rows of its tensor
        self.deep = False  # the kernel works in methods: their scopes and expressions are remembered too
        self.trace = Trace()
        self.items: list[Any] = self.trace.items
        self.frames: list[Frame] = []
        self.predicates: list[Value] = []  # divergent conditions that hold here
        self.path: list[Value] = []  # all conditions that hold here, uniform ones too
        self.logs: list[dict[tuple[int, int], tuple[Cells, int, Value]]] = []
        self.silent = 0  # > 0: events are not recorded (a rehearsal, or inside a divergent branch)
        self.stayed: Value = True  # threads where this does not hold have left the kernel before its work
        self.unset: dict[int, Value] = {}  # elements that nothing has set where this condition does not hold (tails)
        self.taking_part = 0  # > 0: only some threads are here; variables made after that one are their own
        self.rehearsal = False
        self.thorough = False  # a rehearsal that runs inner loops to their end
        self.order = 0
        self.oid = 0
        self.epoch = 0
        self.steps = 0
        self.statement: Syn | None = None
        self.shared_top = 0
        self.shared_declared: dict[tuple[int, int, int], Ptr] = {}  # by place, and by syntax: a header is one place
        self.shared_values: list[tuple[Value, Value]] = []
        self.globals = Scope(None)
        self.constants: dict[str, tuple[list[Syn], Syn, Syn]] = {}  # name -> template parameters, declaration, value
        self.aliases: dict[str, tuple[list[Syn], Syn]] = {}
        self.functions: dict[str, list[Definition]] = {}
        self.parameters: list[Any] = []  # of the kernel, by parameters.Parameter
        self.param_sizes: dict[int, int] = {}  # element size of pointer parameters, by number
        self.snapshots: dict[tuple[int, int], dict[str, Value]] = {}  # statement of the kernel -> visible scalars
        self.snapshots_again: dict[tuple[int, int], dict[str, Value]] = {}  # the same, the second time
        self.noted: dict[tuple[int, int], Value] = {}  # expression of the kernel -> its first value
        self.noted_again: dict[tuple[int, int], Value] = {}  # and its second
        self.notes: tuple[dict[tuple[int, int], Any], ...] = (
            self.snapshots, self.snapshots_again, self.noted, self.noted_again
        )  # fmt: skip
        self.overrides: dict[tuple[int, int], Value] = {}  # expression -> value instead of its own (what-if runs)
        self.stop_at: tuple[int, int] | None = None  # loop before which a what-if run ends
        self.expanding = 0  # macro expansions in progress
        self.in_flight = InFlight()
        self.observer = Observer()
        self.macro_cache: dict[tuple[str, str], Syn | None] = {}
        self.see(np.arange(threads, dtype=np.int64) if roles is None else roles.consumer)
        self._read_file()

    def see(self, ids: NDArray[np.int64]) -> None:
        """Execute for the threads of these linear ids from now on."""
        bx, by, _ = self.block
        self.ids = ids
        self.thread: dict[str, Value] = {
            "x": self.store.array(ids % bx),
            "y": self.store.array(ids // bx % by),
            "z": self.store.array(ids // (bx * by)),
        }

    # ---- the file -----------------------------------------------------------------------------------------------

    def _read_file(self) -> None:
        if self.source not in _DEFINITIONS:
            functions = self.source.functions().items()
            known = {n: [Definition(f, self.source.clean) for f in found] for n, found in functions}
            for function, data, at in macro_definitions.definitions(self.source):
                known.setdefault(function.name, []).append(Definition(function, data, at))
            for header in self.source.headers:
                for name, several in header.source.functions().items():
                    known.setdefault(name, []).extend(Definition(f, header.source.clean, header.at) for f in several)
                for function, data, _ in macro_definitions.definitions(header.source):
                    known.setdefault(function.name, []).append(Definition(function, data, header.at))
            _DEFINITIONS[self.source] = known
        self.functions = {name: list(found) for name, found in _DEFINITIONS[self.source].items()}
        for header in self.source.headers:
            self._read_declarations(header.source.root, header.source.clean, header.at)
        self._read_declarations(self.source.root, self.source.clean)

    def _read_declarations(self, root: Any, data: bytes, at: tuple[int, int] | None = None) -> None:
        for child in root.named_children:
            if child.type in ("namespace_definition", "linkage_specification", "declaration_list"):
                body = child.child_by_field_name("body") if child.type != "declaration_list" else child
                if body is not None:
                    self._read_declarations(body, data, at)
                continue
            template: list[Syn] = []
            if child.type == "template_declaration":
                template = _template_parameters(convert_child(child, "parameters", data, at))
                inner = [c for c in child.named_children if c.type in ("declaration", "alias_declaration")]
                if not inner:
                    continue
                child = inner[0]
            if child.type in ("declaration", "alias_declaration", "type_definition", "enum_specifier"):
                self.read_declaration(convert(child, data, at=at), template)

    def read_declaration(self, syn: Syn, template: list[Syn]) -> None:
        """Remember a file-level constant or type name; it is evaluated when used."""
        kind = syn.get("type")
        if syn.type == "alias_declaration" and (name := syn.get("name")) and kind:
            self.aliases[name.text] = (template, kind)
        elif syn.type == "type_definition" and kind:
            for d in syn.lists.get("declarator", []):
                self.aliases[d.text] = (template, kind)
        elif syn.type == "declaration":
            for d in syn.lists.get("declarator", []):
                name, value = d.get("declarator"), d.get("value")
                if d.type == "init_declarator" and name is not None and value is not None:
                    self.constants[name.text] = (template, syn, value)

    # ---- places and events ----------------------------------------------------------------------------------------

    def place(self, syn: Syn | None = None) -> Place:
        """Where execution is: the call in the kernel's body, and the statement inside the callee."""
        here = syn or self.statement
        at = (here.start, here.end) if here else (0, 0)
        calls = [(f.call.start, f.call.end) for f in self.frames if f.call is not None]
        if not calls:
            return Place(at)
        # What inline PTX is for, the phase says: a call in the body, or in the method that is the body.
        wrapped = here is not None and any(s.type == "gnu_asm_expression" for s in (here, *here.kids))
        return Place(calls[0], at, calls[min(int(self.deep), len(calls) - 1)] if wrapped else at)

    def next_order(self) -> int:
        """A new position in program order."""
        self.order += 1
        return self.order

    def record(self, event: Event) -> None:
        """Append an event unless this is a rehearsal."""
        if not self.rehearsal:
            self.items.append(event)

    def tick(self) -> None:
        """Count a step."""
        self.steps += 1
        budget.spend()
        if self.steps > DEFAULT_BUDGET:
            raise OutOfBudget

    def unknown(self, syn: Syn, why: str) -> None:
        """A statement without meaning: recorded, and execution goes on."""
        if self.rehearsal:
            return
        self.trace.unknown_statements.add((syn.start, syn.end))
        if any(n.type in _MAY_MEET for n in syn.walk()):
            self.observer.meeting(self, "unknown")
        self.items.append(Unknown(self.next_order(), self.place(syn), why))

    def snapshot(self, syn: Syn, scope: Scope) -> None:
        """Remember what the visible scalars hold before a statement of the kernel's body runs for the first time."""
        key = (syn.start, syn.end)
        if (
            self.rehearsal
            or not self.noting
            or (len(self.frames) != 1 and not self.deep)
            or key in self.snapshots_again
        ):
            return
        found: dict[str, Value] = {}
        here: Scope | None = scope
        while here is not None and here is not self.globals:
            for name, binding in here.names.items():
                if name not in found and isinstance(binding, Cells) and not binding.dims:
                    value = binding.values[0]
                    if isinstance(value, int | Poly | Node) and not isinstance(value, bool):
                        found[name] = value
                elif isinstance(binding, Record) and name != "this":
                    found |= {k: v for k, v in members(binding, f"{name}.").items() if k not in found}
            here = here.parent
        (self.snapshots_again if key in self.snapshots else self.snapshots)[key] = found

    # ---- cells ------------------------------------------------------------------------------------------------------

    def new_cells(self, name: str, ctype: CType, dims: tuple[int, ...], start: int) -> Cells:
        """A local variable or array with undefined contents."""
        self.oid += 1
        return Cells(self.oid, name, ctype, dims, start)

    def write(self, cells: Cells, index: int, value: Value, place: Place | None = None) -> None:
        """Assign an element (here, or at `place`), remembering the old value for branches that are being merged."""
        if not 0 <= index < len(cells.values):
            raise NotUnderstood(f"an element of {cells.name} that does not exist")
        if self.logs:
            self.logs[-1].setdefault((cells.oid, index), (cells, index, cells.values[index]))
        if tracked(cells, value) and not self.rehearsal:
            node = self.store.fresh("ver", (value,), (cells.oid, index), value_kind(value), is_uniform(value))
            cells.values[index] = node
            if not self.silent or cells.oid > self.taking_part > 0:
                self.items.append(Assign(self.next_order(), place or self.place(), cells, index, value, node))
        else:
            cells.values[index] = value

    def write_quietly(self, cells: Cells, index: int, value: Value) -> None:
        """Assign without an event (loop counters and loop-carried values), but so that an enclosing branch can undo
        it.
        """
        if self.logs:
            self.logs[-1].setdefault((cells.oid, index), (cells, index, cells.values[index]))
        cells.values[index] = value

    def merge_branches(
        self,
        condition: Value,
        then: Mapping[tuple[int, int], tuple[Cells, int, Value]],
        orelse: Mapping[tuple[int, int], tuple[Cells, int, Value]],
        then_values: Mapping[tuple[int, int], Value],
        *,
        divergent: bool,
        inner: Place | None,
    ) -> None:
        """After both branches ran (cells now hold the else values): every element written becomes a selection."""
        for key in {**then, **orelse}:
            cells, index, _ = then.get(key) or orelse[key]
            a = then_values[key] if key in then else orelse[key][2]
            b = cells.values[index]
            if key not in orelse:
                b = then[key][2]
            value = self.select(condition, a, b)
            if self.logs:
                old = then[key][2] if key in then else orelse[key][2]
                self.logs[-1].setdefault(key, (cells, index, old))
            if divergent and tracked(cells, value) and not self.rehearsal:
                node = self.store.fresh("ver", (value,), key, value_kind(value), is_uniform(value))
                cells.values[index] = node
                if not self.silent or cells.oid > self.taking_part > 0:
                    self.items.append(Assign(self.next_order(), self.place(), cells, index, value, node, inner))
            elif not divergent and tracked(cells, value) and not self.rehearsal and not same(a, b):
                cells.values[index] = self.store.fresh(
                    "join", (condition, a, b), key, value_kind(value), is_uniform(value)
                )
            else:
                cells.values[index] = value

    def select(self, condition: Value, a: Value, b: Value) -> Value:
        """``condition ? a : b``."""
        if isinstance(condition, bool | int):
            return a if condition else b
        if same(a, b):
            return a
        if a is UNDEFINED or a is None:
            return b
        if b is UNDEFINED or b is None:
            return a
        if isinstance(a, Ptr) and isinstance(b, Ptr) and a.space == b.space and a.root is b.root:
            return Ptr(a.space, a.root, self.select(condition, a.offset, b.offset), a.ctype, a.dims)
        if isinstance(condition, Node) and condition.op == "not":
            return self.select(condition.args[0], b, a)
        kind = "float" if "float" in (value_kind(a), value_kind(b)) else value_kind(a)
        if (wrapped := self._wrapped(condition, a, b)) is not None:
            return wrapped
        if isinstance(condition, Node) and condition.op in _EXTREMES and kind in ("float", "int"):
            # ``if (x > m) m = x;`` is how many people write a maximum.
            x, y = condition.args
            if same(bare(x), bare(a)) and same(bare(y), bare(b)):
                return self.store.node(_EXTREMES[condition.op], (x, y), kind=kind)
            if same(bare(x), bare(b)) and same(bare(y), bare(a)):
                return self.store.node(_EXTREMES[_MIRRORED[condition.op]], (x, y), kind=kind)
        return self.store.node("select", (condition, a, b), kind=kind)

    def _wrapped(self, condition: Value, a: Value, b: Value) -> Value | None:
        """``x % n + 1 == n ? 0 : x % n + 1``, the next place of a ring, as ``(x + 1) % n``."""
        if a != 0 or not isinstance(b, Poly) or not isinstance(condition, Node) or condition.op != "eq":
            return None
        if not same(condition.args[0], b) or b.terms.get(()) != 1 or len(b.terms) != 2:
            return None
        ((place,), factor) = next((m, c) for m, c in b.terms.items() if m)
        if not isinstance(factor, int) or factor != 1 or place.op != "mod" or place.args[1] != condition.args[1]:
            return None
        return self.store.remainder(self.store.add(place.args[0], 1), place.args[1], floor=True)

    # ---- macros -----------------------------------------------------------------------------------------------------

    def expand(self, name: str, arguments: list[str] | None, at: Syn) -> Syn | None:
        """The parsed expansion of a macro, or None when `name` is none (or its text cannot be parsed)."""
        macro = self.source.macros.get(name)
        if macro is None or (macro.params is None) != (arguments is None):
            return None
        text = macro.body
        if macro.params is not None and arguments is not None:
            params = [p.strip() for p in macro.params]
            if len(params) != len(arguments):
                return None
            text = substitute_words(text, dict(zip(params, arguments, strict=True)))
        key = (name, text)
        if key not in self.macro_cache:
            self.macro_cache[key] = parse_fragment(text, (at.start, at.end))
        return self.macro_cache[key]


def substitute_words(text: str, mapping: Mapping[str, str]) -> str:
    """Replace whole identifiers outside string literals."""
    import re

    def swap(match: re.Match[str]) -> str:
        word = match.group(0)
        return mapping.get(word, word)

    return re.sub(r'"(?:\\.|[^"\\])*"|[A-Za-z_]\w*', swap, text)


def members(record: Record, prefix: str) -> dict[str, Value]:
    """The scalar members of a record by the text that names them."""
    found: dict[str, Value] = {}
    for name, member in record.fields.items():
        if isinstance(member, Record):
            found |= members(member, f"{prefix}{name}.")
        elif not member.dims and isinstance(value := member.values[0], int | Poly | Node) and value is not UNDEFINED:
            found[prefix + name] = value
    return found


def copied(m: Machine, record: Record) -> Record:
    """Another record with the same values."""
    result = Record(record.ctype, {})
    for name, member in record.fields.items():
        if isinstance(member, Record):
            result.fields[name] = copied(m, member)
        else:
            cells = m.new_cells(member.name, member.ctype, member.dims, member.start)
            cells.values[:] = member.values
            result.fields[name] = cells
    return result


def bare(value: Value) -> Value:
    """A value without the versions of variables around it."""
    while isinstance(value, Node) and value.op == "ver":
        value = value.args[0]
    return value


def tracked(cells: Cells, value: Value) -> bool:
    """True for what can become part of a tile or a row vector: floats, packed registers."""
    return (
        isinstance(value, float)
        or (isinstance(value, Node) and value.kind in ("float", "reg", "wide"))
        or (cells.ctype.kind in ("float", "half", "bf16") and not isinstance(value, Ptr))
    )


def value_kind(value: Value) -> str:
    """int | float | bool | reg | wide | pointer | other."""
    if isinstance(value, bool):
        return "bool"
    if isinstance(value, int | Poly):
        return "int"
    if isinstance(value, float):
        return "float"
    if isinstance(value, Node):
        return value.kind
    return "pointer" if isinstance(value, Ptr) else "other"


def convert_child(node: Any, name: str, data: bytes, at: tuple[int, int] | None = None) -> Syn | None:
    """The converted child of that field name."""
    child = node.child_by_field_name(name)
    return convert(child, data, at=at) if child is not None else None


def _template_parameters(syn: Syn | None) -> list[Syn]:
    return [k for k in syn.kids if "parameter_declaration" in k.type] if syn is not None else []
