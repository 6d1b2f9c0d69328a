"""Where the text multiplies a row of K or V by the row stride: what must change for rows to be looked up in pages.

The row strides of the kernel are followed by name through the calls of device functions. A use of any other kind (a
pointer that is moved along, a stride in an expression), and there is no such site.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from itertools import pairwise
from typing import TYPE_CHECKING, Any

from ..ir.anchors import PageCall, PageFunction, PageProduct, PageSite
from ..ir.expr import Expr, Var
from . import tree
from .kernel_run import parameter_name
from .machine import Definition
from .syntax import Syn
from .values import Poly

if TYPE_CHECKING:
    from .anchors_find import Finder

_KERNEL = ""


class _Unclear(Exception):
    """A use of a row stride that is no product with a row and no argument."""


@dataclass
class _Way:
    products: list[PageProduct] = field(default_factory=list[PageProduct])
    calls: dict[tuple[int, int], tuple[str, str, Syn, Syn, dict[int, str]]] = field(
        default_factory=dict[tuple[int, int], "tuple[str, str, Syn, Syn, dict[int, str]]"]
    )
    seen: set[tuple[str, str]] = field(default_factory=set[tuple[str, str]])
    definitions: dict[str, Definition] = field(default_factory=dict[str, Definition])


def page_site(f: Finder) -> PageSite | None:
    """What to change, or None when the text has a use that pages would leave wrong."""
    if any("." in p.name for p in f.kernel.params):
        return None  # strides that are members of a struct are not followed through calls
    strides = {role: f.kernel.tensors.get(role, ()) for role in ("k", "v")}
    names = {p.name: parameter_name(f.definition.params[p.position]) for p in f.kernel.params}
    pairs: dict[str, str] = {}
    for found in strides.values():
        if len(found) != len(("b", "h", "row")) or not isinstance(found[0], Var) or not isinstance(found[2], Var):
            return None
        if found[0].name not in names or found[2].name not in names or names[found[2].name] in pairs:
            return None
        pairs[names[found[2].name]] = names[found[0].name]
    way = _Way()
    try:
        for name in pairs:
            _follow(f, way, _KERNEL, f.body, name)
        functions = tuple(_function(f, way, name) for name in way.definitions)
        calls = tuple(_call(f, way, call, functions) for call in way.calls.values())
        bases = tuple(base for role in ("k", "v") for base in _bases(f, strides[role][0]))
    except _Unclear:
        return None
    return PageSite(tuple(way.products), calls, functions, bases, pairs)


def _follow(f: Finder, way: _Way, function: str, body: Syn, name: str) -> None:
    """Every use of the row stride `name` in a function."""
    if (function, name) in way.seen:
        return
    way.seen.add((function, name))
    for node in body.walk():
        if node.type != "identifier" or node.text != name:
            continue
        path = tree.path_to(body, (node.start, node.end))
        while path and path[-1].start == node.start and path[-1].end == node.end:
            path.pop()
        parent = path[-1] if path else None
        if parent is not None and parent.type == "binary_expression" and parent.op == "*":
            way.products.append(_product(f, function, path, node))
        elif parent is not None and parent.type == "argument_list" and len(path) > 1:
            _into(f, way, function, path[-2], parent, node)
        else:
            raise _Unclear


def _product(f: Finder, function: str, path: list[Syn], stride: Syn) -> PageProduct:
    product = path[-1]
    left, right = product.get("left"), product.get("right")
    row = left if right is not None and right.start == stride.start else right
    if row is None or row.start == stride.start:
        raise _Unclear
    around = [(block, inner) for block, inner in pairwise(path) if block.type == "compound_statement"]
    span = f.span(around[-1][1]) if around else None
    return PageProduct(f.span(product), f.text(row), stride.text, span, around[-1][0].start if around else -1, function)


def _into(f: Finder, way: _Way, function: str, call: Syn, arguments: Syn, node: Syn) -> None:
    """A call that is given the row stride."""
    callee = call.get("function") if call.type == "call_expression" else None
    named = callee.get("name") if callee is not None and callee.type == "template_function" else callee
    place = next((n for n, kid in enumerate(arguments.kids) if kid.start == node.start and kid.end == node.end), None)
    known = f.e.machine.functions.get(named.text, []) if named is not None and named.type == "identifier" else []
    if place is None or named is None or len(known) != 1 or place >= len(known[0].params) or known[0].at is not None:
        raise _Unclear
    key = (call.start, call.end)
    way.calls.setdefault(key, (named.text, function, named, arguments, {}))[4][place] = node.text
    way.definitions.setdefault(named.text, known[0])
    _follow(f, way, named.text, known[0].body, parameter_name(known[0].params[place]))


def _function(f: Finder, way: _Way, name: str) -> PageFunction:
    definition = way.definitions[name]
    places = sorted({n for c in way.calls.values() if c[0] == name for n in c[4]})
    params = [definition.params[n] for n in places]
    strides = tuple(parameter_name(p) for p in params)
    ctypes = tuple(" ".join(p.text.rpartition(s)[0].split()) for p, s in zip(params, strides, strict=True))
    outer: Any = definition.function.template or definition.function.node
    own = sum(c[0] == name for c in way.calls.values())
    span = f.source.span_of(outer.start_byte, outer.end_byte)
    return PageFunction(name, strides, ctypes, definition.params[-1].end, span, _count_calls(f, name) != own)


def _call(
    f: Finder, way: _Way, call: tuple[str, str, Syn, Syn, dict[int, str]], functions: tuple[PageFunction, ...]
) -> PageCall:
    callee, function, named, arguments, given = call
    wanted = next(x for x in functions if x.name == callee)
    if len(given) != len(wanted.strides):
        raise _Unclear
    passed = tuple(given[n] for n in sorted(given))
    return PageCall(callee, f.span(named), arguments.kids[-1].end, passed, function)


def _count_calls(f: Finder, name: str) -> int:
    count = 0
    stack = [f.source.root]
    while stack:
        node = stack.pop()
        stack.extend(node.named_children)
        callee = node.child_by_field_name("function") if node.type == "call_expression" else None
        if callee is not None and callee.type == "template_function":
            callee = callee.child_by_field_name("name")
        count += callee is not None and f.source.clean_text(callee) == name
    return count


def _bases(f: Finder, stride: Expr) -> list[tuple[Any, str]]:
    """Sums of an address with its batch offset, and what is left without it. Raises _Unclear where there is none."""
    found: list[tuple[Any, str]] = []
    for node in f.body.walk():
        if node.type != "binary_expression" or node.op != "+":
            continue
        for side, other in ((node.get("left"), node.get("right")), (node.get("right"), node.get("left"))):
            if side is not None and other is not None and _is_offset(f, side, stride):
                found.append((f.span(node), f.text(other)))
    if len(found) != 1:
        raise _Unclear
    return found


def _is_offset(f: Finder, syn: Syn, stride: Expr) -> bool:
    """``b * stride``."""
    value = f.e.machine.noted.get((syn.start, syn.end))
    if not isinstance(value, Poly) or len(value.terms) != 1 or not isinstance(stride, Var):
        return False
    (atoms, factor), *_ = value.terms.items()
    batch = f.e.problem.b
    rest = [a for a in atoms if a is not batch]
    named = [f.e.writer.param_names.get(a.data) for a in rest if a.op == "param"]
    single = isinstance(factor, int) and factor == 1 and len(atoms) == len(("b", "stride"))
    return single and named == [stride.name]
