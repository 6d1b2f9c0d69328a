"""What a call does: by the table of the library, or by going through the user's own function."""

from __future__ import annotations

from dataclasses import replace

from ...diagnostics import Span
from ..syntax import Syn
from . import kinds, table
from .find import Defined, last_name, parameter_name, split_arguments
from .kinds import LOST, NONE, Target, Value
from .walk import Scope, Struct, Walk

MAX_DEPTH = 14
_OPERANDS = 3  # A, B, C


def call(walk: Walk, node: Syn, scope: Scope, target: Target) -> Value:
    """The value of a call, its effects done."""
    callee, listed = node.get("function"), node.get("arguments")
    if callee is None or listed is None:
        return Value()
    before, name, template = last_name(callee.text)
    base = callee.get("argument") if callee.type == "field_expression" else None
    named = scope.find(callee.text) if callee.type == "identifier" else None
    if callee.type == "field_expression" and named is None and _is_field(walk, callee, scope):
        named = walk.evaluate(callee, scope, target)
    if name in table.WAITS and named is None:
        walk.note("wait", node, scope, table.WAITS[name])
        return Value()
    if named is not None and not isinstance(named.thing, Struct):
        return _element(walk, name, node, scope, named)
    holder = walk.evaluate(base, scope, target) if base is not None else Value()
    arguments = [walk.evaluate(kid, scope, target) for kid in listed.kids]
    if named is not None and isinstance(named.thing, Struct):
        return _object_call(walk, node, scope, target, named.thing, arguments)
    own = _own(walk, before, name, scope, holder, len(arguments))
    if own is not None:
        return _follow(walk, own, node, scope, target, holder, arguments, template)
    return _library(walk, name, node, scope, target, holder, arguments)


def _element(walk: Walk, name: str, node: Syn, scope: Scope, named: Value) -> Value:
    """``t(i, j)``: an element, or a part of the tensor. Called with numbers of a tensor, it is a function."""
    listed = node.get("arguments")
    given = [walk.evaluate(kid, scope, Target()) for kid in listed.kids] if listed is not None else []
    return _unknown(walk, name, node, scope, given) if any(v.kinds for v in given) else walk.now(named)


def _is_field(walk: Walk, callee: Syn, scope: Scope) -> bool:
    """``softmax.row_max(i)``: an element of a member."""
    base, name = callee.get("argument"), callee.get("field")
    if base is None or name is None:
        return False
    held = scope.this if base.text in ("this", "(*this)") else walk.evaluate(base, scope, Target()).thing
    return isinstance(held, Struct) and name.text in held.fields


def _own(walk: Walk, before: str, name: str, scope: Scope, holder: Value, count: int) -> Defined | None:
    """The user's own function that is meant."""
    if before.rstrip().endswith("cute::"):
        return None
    if isinstance(holder.thing, Struct):
        return walk.definitions.choose(name, holder.thing.kind, count)
    if before.rstrip().endswith((".", "->")):
        return None
    owner = last_name(before.rstrip()[:-2])[1] if before.rstrip().endswith("::") else ""
    if owner in walk.definitions.members or any(d.owner == owner for d in walk.definitions.named(name) if owner):
        return walk.definitions.choose(name, owner, count)
    found = walk.definitions.choose(name, "", count)
    if found is None and scope.this is not None:
        found = walk.definitions.choose(name, scope.this.kind, count)
    return found


def _object_call(walk: Walk, node: Syn, scope: Scope, target: Target, thing: Struct, arguments: list[Value]) -> Value:
    if thing.kind in table.CONVERTERS and arguments:
        return walk.cell("r", arguments[0].origin, arguments[0].kinds)
    if thing.body is None:
        own = walk.definitions.choose("operator()", thing.kind, len(arguments))
        if own is None:
            return _unknown(walk, f"{thing.kind}::operator()", node, scope, arguments)
        return _follow(walk, own, node, scope, target, Value(thing=thing), arguments, "")
    declarator, body = thing.body.get("declarator"), thing.body.get("body")
    listed = declarator.get("parameters") if declarator is not None else None
    names = [parameter_name(p) for p in listed.kids] if listed is not None else []
    assert thing.scope is not None
    inner = Scope(thing.scope.source, _chain(node, scope), dict(zip(names, arguments, strict=False)), outer=thing.scope)
    return _through(walk, body, inner) if body is not None else Value()


def _chain(node: Syn, scope: Scope) -> tuple[Span, ...]:
    return (*scope.chain, scope.source.span_of(node.start, node.end))


def _follow(
    walk: Walk, own: Defined, node: Syn, scope: Scope, target: Target, holder: Value, arguments: list[Value],
    template: str,
) -> Value:  # fmt: skip
    """Through the body, parameters bound to the caller's tensors."""
    if walk.stack.count(own.body) or len(walk.stack) >= MAX_DEPTH:
        return replace(kinds.union([a for a in arguments if a.thing is None]), cells=())  # recursion changes no kind
    names = {name: value for (name, _), value in zip(own.parameters, arguments, strict=False) if name}
    for name, _ in own.parameters[len(arguments) :]:
        names[name] = Value()
    this = holder.thing if isinstance(holder.thing, Struct) else scope.this if own.owner else None
    inner = Scope(own.source, _chain(node, scope), names, _flags(walk, own, template, scope), this)
    walk.stack.append(own.body)
    try:
        found = _through(walk, own.body, inner)
    finally:
        walk.stack.pop()
    accumulates = target.cell is not None and any(target.cell in a.cells for a in arguments)
    if found.kinds == frozenset({"P"}) and accumulates and found.made & {"row_sum"}:
        return replace(found, kinds=frozenset("l"))
    return found


def _through(walk: Walk, body: Syn, inner: Scope) -> Value:
    inner.returned = []
    walk.run(body, inner) if body.type == "compound_statement" else walk.evaluate(body, inner, Target())
    return kinds.union(inner.returned) if len(inner.returned) != 1 else inner.returned[0]


def _flags(walk: Walk, own: Defined, template: str, scope: Scope) -> dict[str, str]:
    given = split_arguments(template)
    found: dict[str, str] = {}
    for number, (name, default) in enumerate(own.flags):
        text = given[number] if number < len(given) else default
        text = walk.flag(text, scope) or text
        if text in ("true", "false") or text.isdigit():
            found[name] = text
    return found


def _library(
    walk: Walk, name: str, node: Syn, scope: Scope, target: Target, holder: Value, arguments: list[Value]
) -> Value:
    """A call of the library, by the table."""
    everything = kinds.union([holder, *arguments])
    first = arguments[0] if arguments else holder
    if name in table.PRODUCTS:
        return _product(walk, node, scope, arguments)
    if name in table.COPIES | table.PREDICATED_COPIES:
        return _copy(walk, node, scope, arguments)
    if name in table.CLEARS:
        walk.put(first, NONE)
        return Value()
    if name in table.POINTERS:
        return _pointer(walk, name, node, first)
    if name == "make_tensor":
        return _tensor(walk, node, first)
    if name in table.FRESH:
        return walk.cell("r")
    if name in table.VIEWS:
        return walk.now(
            arguments[-1] if name in table.VIEWS_OF_LAST and arguments else first if first.cells else holder
        )
    if name in table.CONVERSIONS:
        return walk.cell("r", first.origin, first.kinds) if first.cells else first
    if name in table.EXPONENTIALS:
        return kinds.exponential(first)
    if name in table.LOGARITHMS:
        return kinds.logarithm(first)
    if name in table.MAXIMA:
        return kinds.maximum(arguments, target.cell)
    if name in table.CAPS:
        capped = everything.made - {"scale"} | ({"softcap"} if everything.kinds == frozenset({"S"}) else NONE)
        return Value(everything.kinds, made=capped)
    if name in table.SHUFFLES and len(arguments) > 1:
        return Value(arguments[1].kinds, arguments[1].cells, arguments[1].made)
    if name in table.RECIPROCALS and len(arguments) == 1:
        return kinds.divided(Value(), first)
    if name in table.OPERATORS:
        return _arithmetic(table.OPERATORS[name], arguments, target)
    written = any(isinstance(a.thing, Struct) for a in arguments)
    if name in table.HARMLESS or not (everything.cells or everything.kinds or written):
        return Value(made=everything.made)
    return _unknown(walk, name, node, scope, [holder, *arguments])


def _unknown(walk: Walk, name: str, node: Syn, scope: Scope, arguments: list[Value]) -> Value:
    """A call that is not known may have changed every tensor that it was given."""
    functions = [a.thing for a in arguments if isinstance(a.thing, Struct) and a.thing.body is not None]
    touched = [*(a for a in arguments if a.kinds), *(v for f in functions for v in _named_in(walk, f))]
    if not touched:
        return Value()
    walk.unknown.setdefault(name, scope.source.span_of(node.start, node.end))
    for one in touched:
        walk.put(one, LOST)
    return Value(LOST)


def _named_in(walk: Walk, function: Struct) -> list[Value]:
    """The tensors that a function written in place names: who calls it is not known, so it may be run or not."""
    assert function.body is not None
    assert function.scope is not None
    names = dict.fromkeys(n.text for n in function.body.walk() if n.type == "identifier")
    found = [walk.now(value) for name in names if (value := function.scope.find(name)) is not None]
    return [value for value in found if value.cells and value.cells[0].space]


def _arithmetic(op: str, arguments: list[Value], target: Target) -> Value:
    if op == "*":
        return kinds.multiplied(arguments[0], arguments[1])
    if op == "/":
        return kinds.divided(arguments[0], arguments[1])
    if op == "fma" and len(arguments) == _OPERANDS:
        return kinds.added(kinds.multiplied(arguments[0], arguments[1]), arguments[2], target.cell)
    return kinds.added(arguments[0], arguments[1], target.cell, minus=op == "-")


def _pointer(walk: Walk, name: str, node: Syn, first: Value) -> Value:
    """Storage in a memory; of global memory with the pointer that it goes back to."""
    space = table.POINTERS[name]
    if first.cells and first.cells[0].space:
        return first
    return walk.cell(space, frozenset({_root(node)}) if space == "g" else NONE)


def _root(node: Syn) -> str:
    """``params.q_ptr`` of the arguments of a call: the first name in them that is no type."""
    listed = node.get("arguments")
    stack = [listed] if listed is not None else []
    while stack:
        one = stack.pop()
        if one.type in ("identifier", "field_expression"):
            return one.text
        if one.type == "call_expression" and (inner := one.get("arguments")) is not None:
            stack.append(inner)
        elif one.type not in ("template_argument_list", "type_descriptor", "qualified_identifier"):
            stack.extend(reversed(one.kids))
    return ""


def _tensor(walk: Walk, node: Syn, first: Value) -> Value:
    """``make_tensor``: a view of a pointer; at an offset it is other storage; of a layout alone it is new registers."""
    listed = node.get("arguments")
    if not first.cells or listed is None:
        return walk.cell("r")
    pointer = listed.kids[0]
    moved = pointer.type == "call_expression" and "+" in pointer.text and "make_" not in pointer.text
    if moved or pointer.type == "binary_expression":
        return walk.cell(first.cells[0].space, first.cells[0].origin if first.cells[0].space == "g" else NONE)
    return walk.now(first)


def _copy(walk: Walk, node: Syn, scope: Scope, arguments: list[Value]) -> Value:
    tensors = [walk.now(a) for a in arguments if a.cells and a.cells[0].space]
    if len(tensors) < 2:
        return Value()
    source, into = tensors[-2], tensors[-1]
    spaces = f"{source.cells[0].space}->{into.cells[0].space}"
    step = "store" if source.kinds == frozenset({"On"}) and spaces.endswith("g") else "copy"
    walk.note(step, node, scope, spaces, (source.origin,))
    walk.put(into, source.kinds, source.origin if into.cells[0].space != "g" else None)
    return Value()


def _product(walk: Walk, node: Syn, scope: Scope, arguments: list[Value]) -> Value:
    tensors = [walk.now(a) for a in arguments if a.cells]
    if len(tensors) < _OPERANDS:
        return _unknown(walk, "gemm", node, scope, arguments)
    a, b, c = tensors[-3:]
    walk.products += 1
    if a.kinds == frozenset({"P"}) and not b.kinds and c.kinds <= {"O"}:
        step, held = "pv", "O"
    elif not a.kinds and not b.kinds and c.kinds <= {"S"}:
        step, held = "qk", "S"
    else:
        walk.note("other", node, scope)
        walk.put(c, LOST)
        return Value()
    walk.note(step, node, scope, held, (a.origin, b.origin))
    walk.put(c, frozenset({held}))
    return Value()
