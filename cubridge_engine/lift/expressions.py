"""Evaluation of expressions: a table from syntax node type to function."""

from __future__ import annotations

import math
import re
from collections.abc import Callable
from functools import lru_cache

from . import calls, causes, persistent, structs, unsigned
from .arithmetic import arithmetic, as_int, boolean, float_op, logical, negate
from .ctypes_table import OTHER, TYPES, VECTORS
from .dispatch import TABLE, Rule, evaluate
from .machine import Machine, Scope, value_kind
from .places import FIELDS, assign, cast, child, component, load, place, read_type, to_type, type_named
from .syntax import Syn
from .values import Cells, CType, Function, NotUnderstood, Ptr, Record, Value

_NAMED: dict[str, Value] = {
    "INFINITY": math.inf,
    "CUDART_INF_F": math.inf,
    "HUGE_VALF": math.inf,
    "FLT_MAX": 3.4028234663852886e38,
    "FLT_MIN": 1.1754943508222875e-38,
    "INT_MAX": 2147483647,
    "M_LOG2E": math.log2(math.e),
    "M_LN2": math.log(2),
    "warpSize": 32,
    "nullptr": 0,
    "NULL": 0,
}


# ---- arithmetic -----------------------------------------------------------------------------------------------------


# ---- places ---------------------------------------------------------------------------------------------------------


# ---- types ----------------------------------------------------------------------------------------------------------


# ---- the table
# --------------------------------------------------------------------------------------------------------


_NUMBER = re.compile(r"(?i)^(-?)(0x[0-9a-f]+|0b[01]+|\d+)(u|l|ll|ul|ull|lu|llu|z|uz)?$")


def _number(m: Machine, syn: Syn, scope: Scope) -> Value:
    return number_of(syn.text)


@lru_cache(maxsize=1024)
def number_of(literal: str) -> int | float:
    """The value of a literal. Raises NotUnderstood."""
    text = literal.replace("'", "")
    match = _NUMBER.match(text)
    if match:
        sign, digits = match.group(1), match.group(2)  # the grammar takes the sign of a literal into it
        base = 0 if digits[:2].lower() in ("0x", "0b") else 8 if re.match(r"0\d", digits) else 10
        return int(digits, base) * (-1 if sign else 1)
    try:
        return float.fromhex(text.rstrip("fFlL")) if text[:2].lower() == "0x" else float(text.rstrip("fFlL"))
    except ValueError as error:
        raise NotUnderstood(f"the number {literal}") from error


def _identifier(m: Machine, syn: Syn, scope: Scope) -> Value:
    name = syn.text
    found = scope.find(name)
    if isinstance(found, Cells):
        if not found.dims:
            return found.values[0]  # a variable by its own name is read as it was declared
        return load(m, Ptr("local", found, 0, found.ctype, found.dims))
    if isinstance(found, Ptr):
        return load(m, found) if not found.dims else found
    if found is not None and not isinstance(found, CType):
        return found
    if name in m.constants:
        return constant(m, name, [])
    if name in m.source.macros:
        body = m.expand(name, None, syn)
        if body is not None:
            return calls.run_expansion(m, body, scope)
    if name in _NAMED:
        return _NAMED[name]
    if name in m.functions:
        return Function(name, None)
    raise causes.undeclared(name)


def constant(m: Machine, name: str, arguments: list[Value]) -> Value:
    template, declaration, value = m.constants[name]
    bound = calls.bind_template(m, template, arguments)
    scope = Scope(m.globals, bound)
    kind = declaration.get("type")
    ctype = read_type(m, kind, scope) if kind is not None else OTHER
    if value.type == "initializer_list" and value.kids:
        value = value.kids[0]
    result = to_type(m, evaluate(m, value, scope), ctype)
    if not arguments and isinstance(result, bool | int | float):
        m.globals.names[name] = result
    return result


def _template_value(m: Machine, syn: Syn, scope: Scope) -> Value:
    name = child(syn, "name").text
    if name in m.constants:
        return constant(m, name, calls.template_arguments(m, syn.get("arguments"), scope))
    raise NotUnderstood(f"template {name} as a value")


def _binary(m: Machine, syn: Syn, scope: Scope) -> Value:
    a = evaluate(m, child(syn, "left"), scope)
    if syn.op in ("&&", "||") and not isinstance(a, Ptr):
        decided = boolean(m, a)
        if isinstance(decided, bool) and decided == (syn.op == "||"):
            return decided
        right = _guarded(m, decided if syn.op == "&&" else negate(m, decided), child(syn, "right"), scope)
        return logical(m, "and" if syn.op == "&&" else "or", decided, boolean(m, right))
    return unsigned.binary(m, syn, a, evaluate(m, child(syn, "right"), scope), scope)


def _guarded(m: Machine, holds: Value, syn: Syn, scope: Scope) -> Value:
    """The value of what is evaluated only where a condition holds."""
    m.observer.guards.append(holds)
    try:
        return evaluate(m, syn, scope)
    finally:
        m.observer.guards.pop()


def _unary(m: Machine, syn: Syn, scope: Scope) -> Value:
    value = evaluate(m, child(syn, "argument"), scope)
    if syn.op == "!":
        return negate(m, boolean(m, value))
    if syn.op == "-":
        return float_op(m, "neg", value) if value_kind(value) == "float" else m.store.mul(as_int(m, value), -1)
    if syn.op == "+":
        return value
    if syn.op == "~":
        return m.store.add(-1, as_int(m, value), -1)
    raise NotUnderstood(f"operator {syn.op}")


def _conditional(m: Machine, syn: Syn, scope: Scope) -> Value:
    condition = boolean(m, evaluate(m, child(syn, "condition"), scope))
    if isinstance(condition, bool):
        return evaluate(m, child(syn, "consequence" if condition else "alternative"), scope)
    a, b = (
        _guarded(m, holds, child(syn, side), scope)
        for holds, side in ((condition, "consequence"), (negate(m, condition), "alternative"))
    )
    if "float" in (value_kind(a), value_kind(b)):
        a, b = to_type(m, a, TYPES["float"]), to_type(m, b, TYPES["float"])
    return m.select(condition, a, b)


def _assignment(m: Machine, syn: Syn, scope: Scope) -> Value:
    op = syn.op
    value = evaluate(m, child(syn, "right"), scope)
    if isinstance(value, Record):
        return _assign_record(m, child(syn, "left"), value, scope)
    target, field = place(m, child(syn, "left"), scope)
    if op != "=":
        value = arithmetic(m, op[:-1], load(m, target, field), value)
    assign(m, target, field, value, syn)
    return load(m, target, field) if target.space == "local" else value


def _assign_record(m: Machine, left: Syn, value: Record, scope: Scope) -> Value:
    pointer = structs.pointer_at(m, left, scope)
    if pointer is not None:
        persistent.publish(m, pointer, value)
        return value
    target = structs.record_at(m, left, scope)
    if target is None:
        raise NotUnderstood(f"`{left.text[:40]}` as the target of a struct")
    structs.assign(m, target, value)
    return target


def _update(m: Machine, syn: Syn, scope: Scope) -> Value:
    target, field = place(m, child(syn, "argument"), scope)
    old = load(m, target, field)
    assign(m, target, field, arithmetic(m, "+" if syn.op == "++" else "-", old, 1), syn)
    return load(m, target, field) if syn.text.startswith(syn.op) else old


def _pointer(m: Machine, syn: Syn, scope: Scope) -> Value:
    argument = child(syn, "argument")
    if syn.op == "&":
        target, field = place(m, argument, scope)
        if field is not None and field in FIELDS and target.space != "local":
            base = TYPES[VECTORS[target.ctype.name][0]]
            return Ptr(target.space, target.root, m.store.add(target.offset, FIELDS[field] * base.size), base)
        return target
    record = structs.record_at(m, syn, scope)
    if record is not None:
        return record
    target, field = place(m, syn, scope)
    return load(m, target, field)


def _place_value(m: Machine, syn: Syn, scope: Scope) -> Value:
    if syn.type == "subscript_expression" and (record := structs.record_at(m, syn, scope)) is not None:
        return record
    if syn.type == "field_expression":
        special = calls.builtin_field(m, syn, scope)
        if special is not None:
            return special
        member = structs.member_at(m, syn, scope)
        if isinstance(member, Record):
            return member
        argument = child(syn, "argument")
        if argument.type not in (
            "identifier",
            "subscript_expression",
            "field_expression",
            "pointer_expression",
            "parenthesized_expression",
        ):
            return component(m, evaluate(m, argument, scope), child(syn, "field").text)
    target, field = place(m, syn, scope)
    return load(m, target, field)


def _cast(m: Machine, syn: Syn, scope: Scope) -> Value:
    value, ctype = evaluate(m, child(syn, "value"), scope), read_type(m, child(syn, "type"), scope)
    if ctype.kind == "float" and not ctype.pointer:
        unsigned.refuse_wrapped(m, child(syn, "value"), value, scope)
    return cast(m, value, ctype)


def _comma(m: Machine, syn: Syn, scope: Scope) -> Value:
    result: Value = None
    for kid in syn.kids:
        result = evaluate(m, kid, scope)
    return result


def _sizeof(m: Machine, syn: Syn, scope: Scope) -> Value:
    kind = syn.get("type")
    if kind is not None:
        ctype = read_type(m, kind, scope)
        return 8 if ctype.pointer else ctype.size
    inner = syn.get("value")
    while inner is not None and inner.type == "parenthesized_expression":
        inner = inner.kids[0]
    if inner is not None and inner.type == "identifier":
        ctype = type_named(m, inner.text, scope)
        if ctype is not None:
            return 8 if ctype.pointer else ctype.size
        found = scope.find(inner.text)
        if isinstance(found, Cells):
            return found.ctype.size * len(found.values)
    raise NotUnderstood("sizeof of an expression")


def _compound(m: Machine, syn: Syn, scope: Scope) -> Value:
    kind, values = child(syn, "type"), child(syn, "value")
    return calls.construct(m, read_type(m, kind, scope), [evaluate(m, k, scope) for k in values.kids])


def _lambda(m: Machine, syn: Syn, scope: Scope) -> Value:
    return Function(syn, scope)


def _constant_word(value: Value) -> Callable[[Machine, Syn, Scope], Value]:
    return lambda m, syn, scope: value


RULES: dict[str, Rule] = {
    "number_literal": _number,
    "true": _constant_word(True),
    "false": _constant_word(False),
    "null": _constant_word(0),
    "identifier": _identifier,
    "template_function": _template_value,
    "parenthesized_expression": _comma,
    "comma_expression": _comma,
    "binary_expression": _binary,
    "unary_expression": _unary,
    "conditional_expression": _conditional,
    "assignment_expression": _assignment,
    "update_expression": _update,
    "pointer_expression": _pointer,
    "subscript_expression": _place_value,
    "field_expression": _place_value,
    "cast_expression": _cast,
    "sizeof_expression": _sizeof,
    "compound_literal_expression": _compound,
    "lambda_expression": _lambda,
    "call_expression": lambda m, syn, scope: calls.call(m, syn, scope),
    "gnu_asm_expression": lambda m, syn, scope: calls.run_asm(m, syn, scope),
    "qualified_identifier": lambda m, syn, scope: calls.qualified(m, syn, scope),
}
TABLE.update(RULES)
