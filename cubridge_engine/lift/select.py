"""Which kernel of a file to read, with which template values and which block size."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from ..source import SourceFile
from . import calls, dispatch
from .ctypes_table import TYPES, named
from .machine import Definition, Machine, Scope
from .syntax import Syn, convert, parse_fragment
from .values import CType, Node, NotUnderstood

Block = tuple[int, tuple[int, int, int]]
_DTYPES = {
    "float16": "__half",
    "bfloat16": "__nv_bfloat16",
    "float32": "float",
    "fp16": "__half",
    "bf16": "__nv_bfloat16",
}
_CANONICAL = {"half": "float16", "bf16": "bfloat16"}
_GUESSED_THREADS = (128, 256, 64, 32, 512)


@dataclass(frozen=True)
class Chosen:
    """A kernel with its template values; `blocks` are the (threads, block) shapes to try, the likeliest first."""

    name: str
    start: int  # byte offset of the body
    template: dict[str, Any]
    record: dict[str, int | str]
    blocks: tuple[Block, ...]
    guessed_template: bool
    guessed_block: bool
    node: Any  # source.Function


def choose(source: SourceFile, name: str, given: Mapping[str, int | str]) -> Chosen | None:
    """The kernel `name` of `source`; None when there is none."""
    function = next((f for f in source.kernels() if f.name == name), None)
    if function is None:
        return None
    m = Machine(source, 32, (32, 1, 1))
    definition = definition_of(m, name, function.body.start_byte)
    if definition is None:
        return None
    template, guessed = _template(m, source, definition, given)
    scope = Scope(m.globals, dict(template))
    blocks, guessed_block = _blocks(m, source, function, scope)
    record = {k: _canonical(v) for k, v in template.items()}
    return Chosen(name, definition.body.start, template, record, blocks, guessed, guessed_block, function)


def definition_of(m: Machine, name: str, body_start: int) -> Definition | None:
    """The definition whose body starts there."""
    return next((d for d in m.functions.get(name, []) if d.body.start == body_start), None)


def _canonical(value: Any) -> int | str:
    if isinstance(value, CType):
        return _CANONICAL.get(value.kind, "float32" if value.name == "float" else value.name)
    return int(value) if isinstance(value, bool | int) else str(value)


def _template(
    m: Machine, source: SourceFile, definition: Definition, given: Mapping[str, int | str]
) -> tuple[dict[str, Any], bool]:
    if not definition.template:
        return {}, False
    found = _instantiations(m, source, definition)
    bound = dict(found[0]) if found else {}
    guessed = False
    for n, param in enumerate(definition.template):
        name = calls.parameter_name(param)
        if name in given:
            bound[name] = _given(given[name])
        elif name not in bound:
            # A default may be written with the parameters before it: ``int DV = D``.
            earlier = [bound[calls.parameter_name(p)] for p in definition.template[:n]]
            try:
                default = calls.bind_template(m, definition.template[: n + 1], earlier)
            except NotUnderstood:  # a constant of a header that is not there
                default = {}
            if name in default:
                bound[name] = default[name]
                continue
            guessed = True
            bound[name] = _default(source, param)
    return bound, guessed


def _given(value: int | str) -> Any:
    if isinstance(value, str):
        if value.lstrip("-").isdigit():
            return int(value)
        return named(_DTYPES.get(value, value)) or value
    return value


def _default(source: SourceFile, param: Syn) -> Any:
    kind = param.get("type")
    if "type_parameter" in param.type:
        tensor_cores = any(word in source.data for word in (b"mma.sync", b"ldmatrix", b"wgmma"))
        return TYPES["__half"] if tensor_cores else TYPES["float"]
    return False if kind is not None and kind.text == "bool" else 64


def _instantiations(m: Machine, source: SourceFile, definition: Definition) -> list[dict[str, Any]]:
    """Template values that the file itself gives: explicit instantiations, launches, calls of launchers."""
    result: list[dict[str, Any]] = []
    names = [calls.parameter_name(p) for p in definition.template]
    for syn in _template_uses(source, definition.name):
        try:
            values = calls.template_arguments(m, syn, m.globals)
        except NotUnderstood:
            continue
        usable = [v for v in values if isinstance(v, int) or (isinstance(v, CType) and v.kind not in ("other", "auto"))]
        if len(usable) == len(values) and values:
            result.append(dict(zip(names, values, strict=False)))
    return result


def _template_uses(source: SourceFile, name: str) -> list[Syn]:
    found: list[Syn] = []
    stack = [source.root]
    while stack:
        node = stack.pop()
        if node.type == "template_function":
            inner, arguments = node.child_by_field_name("name"), node.child_by_field_name("arguments")
            if inner is not None and arguments is not None and source.clean_text(inner) == name:
                found.append(convert(arguments, source.clean))
        stack.extend(node.named_children)
    return sorted(found, key=lambda s: s.start)


def _blocks(m: Machine, source: SourceFile, function: Any, scope: Scope) -> tuple[tuple[Block, ...], bool]:
    shapes: list[Block] = []
    for launch in source.launches():
        if launch.kernel == function.name and launch.block is not None:
            shape = _block_shape(m, source, convert(launch.block, source.clean), launch.node, scope)
            if shape is not None:
                shapes.append(shape)
    bounds = function.attributes.get("__launch_bounds__")
    if bounds is None:
        node = next((c for c in function.node.children if c.type == "launch_bounds"), None)
        bounds = source.clean_text(node).partition("(")[2].rpartition(")")[0] if node is not None else None
    if bounds and not shapes:
        threads = _evaluate(m, bounds.split(",")[0], scope)
        if isinstance(threads, int) and 0 < threads <= 1024:
            shapes.append((threads, (threads, 1, 1)))
    if shapes:
        return tuple(dict.fromkeys(shapes)), False
    told = _strides(m, function, scope, source)
    return tuple((n, (n, 1, 1)) for n in dict.fromkeys((*told, *_GUESSED_THREADS))), True


def _strides(m: Machine, function: Any, scope: Scope, source: SourceFile) -> list[int]:
    """Numbers of threads that loops over a tile step by: ``for (i = threadIdx.x; i < n; i += 256)``."""
    found: list[int] = []
    body = convert(function.body, source.clean)
    own = {"threadIdx"}  # names that differ between threads
    for declared in body.walk():
        value = declared.get("value") if declared.type == "init_declarator" else None
        if value is not None and own & {x.text for x in value.walk()} and (name := declared.get("declarator")):
            own.add(name.text)
    for loop in body.walk():
        update, start = (loop.get("update"), loop.get("initializer")) if loop.type == "for_statement" else (None, None)
        if update is None or start is None or update.op != "+=" or (right := update.get("right")) is None:
            continue
        if not own & {x.text for x in start.walk()}:
            continue
        try:
            step = dispatch.evaluate(m, right, scope)
        except NotUnderstood:
            continue
        if isinstance(step, int) and 32 <= step <= 1024 and step % 32 == 0:
            found.append(step)
    return sorted(set(found), key=lambda n: -found.count(n))


def _evaluate(m: Machine, text: str, scope: Scope) -> Any:
    body = parse_fragment(text, (0, 0))
    if body is None or not body.kids or not body.kids[0].kids:
        return None
    try:
        return dispatch.evaluate(m, body.kids[0].kids[0], scope)
    except NotUnderstood:
        return None


def _block_shape(m: Machine, source: SourceFile, syn: Syn, launch: Any, scope: Scope) -> Block | None:
    """A launch's block: a number, dim3(...), or a variable of the enclosing function."""
    values = _dimensions(m, syn, scope)
    if values is None and syn.type == "identifier":
        node = launch
        while node is not None and node.type != "function_definition":
            node = node.parent
        text = source.clean_text(node) if node is not None else ""
        # ``dim3 block(kCols, kRows);`` is read as a function declaration, so the text is what tells.
        found = re.search(rf"\b{re.escape(syn.text)}\s*(?:=\s*(?:dim3\s*)?)?[({{]?([^;{{}}]*?)[)}}]?\s*;", text)
        if found is not None:
            inner = parse_fragment(f"f({found.group(1)})", (0, 0))
            call = inner.kids[0].kids[0] if inner is not None and inner.kids and inner.kids[0].kids else None
            values = _dimensions(m, call, scope) if call is not None else None
    if values is None:
        return None
    x, y, z = (*values, 1, 1)[:3]
    threads = x * y * z
    return (threads, (x, y, z)) if 0 < threads <= 1024 else None


def _dimensions(m: Machine, syn: Syn, scope: Scope) -> list[int] | None:
    kids = syn.kids if syn.type in ("argument_list", "initializer_list") else [syn]
    if syn.type == "call_expression" and (arguments := syn.get("arguments")) is not None:
        kids = arguments.kids
    values: list[int] = []
    for kid in kids:
        try:
            value = dispatch.evaluate(m, kid, scope)
        except NotUnderstood:
            return None
        if isinstance(value, Node) and value.op == "vec":
            values.extend(v for v in value.args if isinstance(v, int))
        elif isinstance(value, int):
            values.append(value)
        else:
            return None
    return values or None
