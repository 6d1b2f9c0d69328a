"""CB859: products in 32 bits that a large tensor takes past 2^31, where an address is worked out.

The type of an expression is read off its syntax by C's rules; what is not known is not said. A product counts where
both factors are known at run time only and one of them is a size or stride of the signature.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace

from tree_sitter import Node

from ...diagnostics import Related
from ...ir.nodes import Kernel
from ...source import Function, SourceFile
from ..model import Edit, Finding, Fix
from ..subject import Subject, finding

_WIDE = re.compile(r"\b(long|int64_t|uint64_t|size_t|ptrdiff_t|intptr_t|index_t|uintptr_t)\b")
_INTS = re.compile(r"^(const |constexpr |unsigned |signed |static )*(int|unsigned|uint|int32_t|uint32_t|short|char)\b")
_DEEP = 2  # calls that are followed
_TENSORS = ("k", "v", "q", "o")


@dataclass(frozen=True, slots=True)
class _Scope:
    """Names of one function: declared type in words (``int``, ``wide``, ``pointer``), and which are run-time sizes."""

    types: Mapping[str, str]
    sizes: frozenset[str]
    moving: frozenset[str]  # derived from block indices or loops: not the same for the whole launch
    known: dict[int, str] = field(default_factory=dict[int, str], compare=False)  # by node: sums nest as deep as long


def overflow(subject: Subject) -> Iterator[Finding]:
    """One finding for a kernel, at the first product; the others are related places."""
    function, kernel = subject.function, subject.kernel
    if function is None:
        return
    source = subject.source
    sizes = _sizes(kernel) if kernel is not None else _integers(source, function.params)
    found: list[Node] = []
    _collect(source, function, frozenset(sizes), False, found, 0)
    if not found:
        return
    first = found[0]
    related = tuple(Related(source.span(n), "and here") for n in found[1:4])
    wide = _widened(source, first).text
    fix = Fix(f"Compute in 64 bits: {wide}", tuple(_widened(source, n) for n in found))
    product = " ".join(source.text(first).split())
    yield finding(
        "CB859", source.span(first), "overflow", related=related, confidence="likely", fix=fix, product=product,
        wide=wide,
    )  # fmt: skip


def _sizes(kernel: Kernel) -> list[str]:
    strides = [p.name for p in kernel.params if p.role.startswith("stride:") and p.role[7:8] in _TENSORS]
    return [*strides, *(p.name for p in kernel.params if p.role in ("Sq", "Sk", "H", "Hkv"))]


def _integers(source: SourceFile, params: Node) -> list[str]:
    """Names of parameters that are plain integers."""
    types = _names(source, [params], frozenset()).types
    return [name for name, kind in types.items() if kind == "int"]


def _collect(
    source: SourceFile, function: Function, sizes: frozenset[str], called: bool, found: list[Node], depth: int
) -> None:
    """Products of a function and of those that it passes sizes to. In a function that is `called`, all that is not
    constant moves.
    """
    outer = [n for n in source.root.named_children if n.type == "declaration"]
    scope = _names(source, [*outer, function.template or function.params, function.params, function.body], sizes)
    if called:
        own = _names(source, [function.params, function.body], sizes).types
        scope = replace(scope, moving=frozenset(n for n, kind in own.items() if kind == "int" and n not in sizes))
    products = [n for n in _offsets(source, function.body, scope) if _passes(source, n, scope)]
    known = {(n.start_byte, n.end_byte) for n in found}
    found += [
        n for n in products
        if (n.start_byte, n.end_byte) not in known and not any(o is not n and _holds(o, n) for o in products)
    ]  # fmt: skip
    if depth >= _DEEP:
        return
    for callee, passed in _calls(source, function.body, sizes):
        _collect(source, callee, passed, True, found, depth + 1)


def _calls(source: SourceFile, body: Node, sizes: frozenset[str]) -> Iterator[tuple[Function, frozenset[str]]]:
    """Functions of the file that are called with sizes or strides, and what those are called there."""
    functions = source.functions()
    done: set[tuple[int, frozenset[str]]] = set()
    for node in _walk(body):
        callee = node.child_by_field_name("function") if node.type == "call_expression" else None
        arguments = node.child_by_field_name("arguments") if callee is not None else None
        if callee is None or arguments is None:
            continue
        name = callee.child_by_field_name("name") if callee.type == "template_function" else callee
        for function in functions.get(source.clean_text(name or callee), ()):
            parameters = [source.clean_text(n) for n in _declared(function.params)]
            given = [source.clean_text(a) for a in arguments.named_children if a.type != "comment"]
            passed = frozenset(p for p, a in zip(parameters, given, strict=False) if a in sizes)
            if passed and (function.node.id, passed) not in done:
                done.add((function.node.id, passed))
                yield function, passed


def _declared(params: Node) -> Iterator[Node]:
    """The names of parameters, in order."""
    for node in params.named_children:
        declarator = node.child_by_field_name("declarator")
        while declarator is not None and declarator.type != "identifier":
            inner = declarator.child_by_field_name("declarator")
            declarator = inner or next((c for c in reversed(declarator.named_children) if c.type == "identifier"), None)
        if declarator is not None:
            yield declarator


def _leftmost(node: Node) -> Node:
    """The first factor of a chain of products, which is computed first."""
    while node.type == "binary_expression" and _operator(node) == "*":
        inner = node.child_by_field_name("left")
        if inner is None:
            break
        node = inner
    return node


def _widened(source: SourceFile, node: Node) -> Edit:
    left = node.child_by_field_name("left")
    assert left is not None
    inner = _leftmost(left)
    text = source.text(inner)
    bare = text[1:-1] if inner.type == "parenthesized_expression" else text
    return Edit(source.span(inner), f"static_cast<long long>({bare})")


def _holds(outer: Node, inner: Node) -> bool:
    return outer.start_byte <= inner.start_byte and inner.end_byte <= outer.end_byte


def _operator(node: Node) -> str:
    operator = node.child_by_field_name("operator")
    return operator.type if operator is not None else ""


def _names(source: SourceFile, roots: Sequence[Node], sizes: frozenset[str]) -> _Scope:
    types: dict[str, str] = {}
    moving: set[str] = set()
    values: list[tuple[str, str]] = []
    for node in _walk(*roots):
        if node.type in ("parameter_declaration", "optional_parameter_declaration"):
            _declare(source, node, node.child_by_field_name("declarator"), types, values)
        elif node.type == "declaration":
            for declarator in node.children_by_field_name("declarator"):
                _declare(source, node, declarator, types, values)
    for _ in range(3):  # a few steps of derivation are enough for an offset
        for name, text in values:
            if "blockIdx" in text or any(re.search(rf"\b{re.escape(m)}\b", text) for m in moving):
                moving.add(name)
    return _Scope(types, sizes, frozenset(moving))


def _declare(
    source: SourceFile, node: Node, declarator: Node | None, types: dict[str, str], values: list[tuple[str, str]]
) -> None:
    kind = node.child_by_field_name("type")
    text = source.clean_text(kind) if kind is not None else ""
    value = None
    stars = 0
    while declarator is not None and declarator.type != "identifier":
        stars += declarator.type in ("pointer_declarator", "array_declarator")
        value = value or declarator.child_by_field_name("value")
        inner = declarator.child_by_field_name("declarator")
        declarator = inner or next((c for c in reversed(declarator.named_children) if c.type == "identifier"), None)
    if declarator is None:
        return
    name = source.clean_text(declarator)
    if stars:
        types[name] = "pointer"
    elif _WIDE.search(text):
        types[name] = "wide"
    elif _INTS.match(text):
        types[name] = "int"
    if value is not None:
        values.append((name, source.clean_text(value)))


def _walk(*roots: Node) -> Iterator[Node]:
    stack = list(reversed(roots))
    while stack:
        node = stack.pop()
        yield node
        stack.extend(reversed(node.named_children))


def _offsets(source: SourceFile, body: Node, scope: _Scope) -> Iterator[Node]:
    """Products that are terms of an index of a pointer, or of a sum with one."""
    for node in _walk(body):
        if node.type == "subscript_expression":
            base = node.child_by_field_name("argument")
            indices = node.child_by_field_name("indices")
            if base is not None and indices is not None and scope.types.get(source.clean_text(base)) == "pointer":
                for child in indices.named_children:
                    yield from _terms(child)
        elif node.type == "binary_expression" and _operator(node) == "+":
            sides = [node.child_by_field_name(f) for f in ("left", "right")]
            kinds = [_type(source, s, scope) if s is not None else "" for s in sides]
            for at in (0, 1):
                side = sides[1 - at]
                if kinds[at] == "pointer" and side is not None:
                    yield from _terms(side)


def _terms(node: Node) -> Iterator[Node]:
    """The products of a sum."""
    if node.type == "parenthesized_expression" and node.named_children:
        yield from _terms(node.named_children[0])
    elif node.type == "binary_expression" and _operator(node) in ("+", "-"):
        for field in ("left", "right"):
            if (side := node.child_by_field_name(field)) is not None:
                yield from _terms(side)
    elif node.type == "binary_expression" and _operator(node) in ("/", "%"):
        if (side := node.child_by_field_name("left")) is not None:
            yield from _terms(side)
    elif node.type == "binary_expression" and _operator(node) == "*":
        yield node


def _type(source: SourceFile, node: Node, scope: _Scope) -> str:
    """'int' (32 bits), 'wide', 'pointer', or '' where it is not known."""
    if node.id not in scope.known:
        scope.known[node.id] = _type_of(source, node, scope)
    return scope.known[node.id]


def _type_of(source: SourceFile, node: Node, scope: _Scope) -> str:
    if node.type == "identifier":
        return scope.types.get(source.clean_text(node), "")
    if node.type == "number_literal":
        return "wide" if "l" in source.clean_text(node).lower() else "int"
    if node.type == "parenthesized_expression" and node.named_children:
        return _type(source, node.named_children[0], scope)
    if node.type == "field_expression":
        base = node.child_by_field_name("argument")
        return "int" if base is not None and source.clean_text(base) in ("blockIdx", "threadIdx", "blockDim") else ""
    if node.type == "binary_expression" and _operator(node) in ("+", "-", "*", "/", "%"):
        sides = [node.child_by_field_name(f) for f in ("left", "right")]
        kinds = {_type(source, s, scope) if s is not None else "" for s in sides}
        for kind in ("pointer", "", "wide"):
            if kind in kinds:
                return kind
        return "int"
    return ""


def _passes(source: SourceFile, node: Node, scope: _Scope) -> bool:
    """True for a 32-bit product of a position (of a block, or in a loop) with a run-time size or stride."""
    if _type(source, node, scope) != "int":
        return False
    names = set(re.findall(r"[A-Za-z_]\w*", source.clean_text(node)))
    return bool(names & scope.sizes) and ("blockIdx" in names or bool(names & scope.moving))
