"""Calls: functions of the file and lambdas are executed in place, CUDA's own functions and PTX by table."""

from __future__ import annotations

import math
import re
from typing import Any

from . import (
    arithmetic,
    asm_table,
    dispatch,
    expressions,
    intrinsics,
    persistent,
    places,
    statements,
    structs,
    unsigned,
    wmma,
)
from .ctypes_table import TYPES, stars
from .machine import MAX_DEPTH, Definition, Frame, Machine, Scope, copied, value_kind
from .syntax import Syn
from .values import UNDEFINED, Cells, CType, Function, NotUnderstood, Ptr, Record, Value

_CASTS = frozenset({"static_cast", "reinterpret_cast", "const_cast"})
_BUILTIN = {"threadIdx": "thread", "blockIdx": "block", "blockDim": "dim", "gridDim": "grid"}


def call(m: Machine, syn: Syn, scope: Scope) -> Value:
    """The value of a call expression."""
    callee = syn.get("function")
    arguments = syn.get("arguments")
    if callee is None or arguments is None:
        raise NotUnderstood("a call without a name")
    template: Syn | None = None
    if callee.type in ("field_expression", "qualified_identifier", "identifier"):
        bound = _method(m, callee, scope)
        if bound is not None:
            return structs.call(m, bound, arguments, scope, syn)
    while callee.type == "qualified_identifier" and (inner := callee.get("name")) is not None:
        callee = inner
    if callee.type == "template_function":
        template = callee.get("arguments")
        name = places.child(callee, "name").text
    elif callee.type == "field_expression":
        raise NotUnderstood(f"the method {callee.text}")
    else:
        name = callee.text
    if name in _CASTS and template is not None:
        target = _type_arguments(m, template, scope)[0]
        value = dispatch.evaluate(m, arguments.kids[0], scope)
        if not isinstance(target, CType):
            raise NotUnderstood(f"the type of {name}")
        if target.kind == "float" and not target.pointer:
            unsigned.refuse_wrapped(m, arguments.kids[0], value, scope)
        if isinstance(value, Ptr) and not target.pointer and target.kind != "int" and "&" in template.text:
            pointer = places.cast(m, value, CType(target.name, target.size, target.kind, 1))
            if isinstance(pointer, Ptr):
                return places.load(m, pointer)
        return places.cast(m, value, target)
    if callee.type == "lambda_expression":
        return _invoke_lambda(m, Function(callee, scope), arguments, scope, syn)
    macro = m.source.macros.get(name)
    if macro is not None and macro.params is not None and scope.find(name) is None:
        body = m.expand(name, [k.text for k in arguments.kids], syn)
        if body is None:
            raise NotUnderstood(f"the macro {name}")
        return run_expansion(m, body, scope)
    found = scope.find(name)
    if isinstance(found, Cells):
        found = found.values[0]
    if isinstance(found, Function):
        return _invoke_lambda(m, found, arguments, scope, syn)
    if name in m.functions:
        return _invoke(m, name, template, arguments, scope, syn)
    if isinstance(found, CType) or callee.type == "primitive_type" or (places.type_named(m, name, scope) is not None):
        ctype = found if isinstance(found, CType) else places.type_named(m, name, scope)
        if ctype is not None:
            return construct(m, ctype, [dispatch.evaluate(m, k, scope) for k in arguments.kids])
    if name in wmma.RULES:
        return wmma.call(m, name, arguments.kids, scope, syn)
    rule = intrinsics.TABLE.get(name)
    if rule is None:
        raise NotUnderstood(f"the function {name} is not defined in this file")
    values = [dispatch.evaluate(m, k, scope) for k in arguments.kids]
    if name in ("min", "max"):
        unsigned.extremes(m, syn, values, scope)
    try:
        return rule(m, values)
    except IndexError:
        raise NotUnderstood(f"{name} with {len(values)} arguments") from None


def _method(m: Machine, callee: Syn, scope: Scope) -> structs.Bound | None:
    """The method that a call names, or None."""
    if callee.type == "field_expression":
        return structs.method_at(m, callee, scope)
    found = structs.static_member(m, callee, scope) if callee.type != "identifier" else scope.find(callee.text)
    return found if isinstance(found, structs.Bound) else None


def qualified(m: Machine, syn: Syn, scope: Scope) -> Value:
    """``ns::name`` as a value: namespaces are ignored."""
    member = structs.static_member(m, syn, scope)
    if isinstance(member, int | float):
        return member
    if "numeric_limits" in syn.text:
        for word, value in (("infinity", math.inf), ("lowest", -3.4028234663852886e38), ("max", 3.4028234663852886e38)):
            if syn.text.rstrip("()").endswith(word):
                return value
    name = syn.get("name")
    if name is None:
        raise NotUnderstood(syn.text)
    return dispatch.evaluate(m, name, scope)


def run_expansion(m: Machine, body: Syn, scope: Scope) -> Value:
    """Execute the expansion of a macro; its value is that of the last expression."""
    result: Value = None
    inner = Scope(scope)
    if m.expanding > 2 * MAX_DEPTH:
        raise NotUnderstood("macros that expand to each other")
    m.expanding += 1
    try:
        for kid in body.kids:
            if kid.type == "expression_statement" and kid.kids:
                result = dispatch.evaluate(m, kid.kids[0], inner)
            elif kid.type != "expression_statement":
                statements.execute(m, kid, inner)
    finally:
        m.expanding -= 1
    return result


def construct(m: Machine, ctype: CType, values: list[Value]) -> Value:
    """``T(a, b, ...)``."""
    if not values:
        return 0.0 if ctype.kind in ("float", "half", "bf16") else 0
    if ctype.name == "dim3":
        return m.store.node("vec", tuple(values), "int", "wide")
    return places.to_type(m, values[0], ctype)


# ---- functions of the file
# --------------------------------------------------------------------------------------------


def template_arguments(m: Machine, syn: Syn | None, scope: Scope) -> list[Any]:
    """The evaluated arguments of ``name<...>``: types and values."""
    return _type_arguments(m, syn, scope) if syn is not None else []


def _type_arguments(m: Machine, syn: Syn, scope: Scope) -> list[Any]:
    result: list[Any] = []
    for kid in syn.kids:
        if kid.type == "type_descriptor":
            inner = kid.get("type")
            if inner is not None and inner.type == "qualified_identifier":
                member = structs.static_member(m, inner, scope)
                if member is not None:
                    result.append(member)
                    continue
            if inner is not None and inner.type == "type_identifier" and kid.get("declarator") is None:
                found = scope.find(inner.text)
                if found is None and inner.text in m.constants:
                    result.append(expressions.constant(m, inner.text, []))
                    continue
                if (
                    found is None
                    and inner.text in m.source.macros
                    and (body := m.expand(inner.text, None, kid)) is not None
                ):
                    result.append(run_expansion(m, body, scope))
                    continue
                if found is not None and not isinstance(found, CType):
                    result.append(
                        places.load(m, Ptr("local", found, 0, found.ctype)) if isinstance(found, Cells) else found
                    )
                    continue
            result.append(places.read_type(m, kid, scope))
        else:
            result.append(dispatch.evaluate(m, kid, scope))
    return result


def parameter_name(param: Syn) -> str:
    """The declared name of a (template) parameter."""
    d: Syn | None = param.get("declarator") or param.get("name")
    if param.type == "type_parameter_declaration" or param.type == "optional_type_parameter_declaration":
        return param.kids[0].text if param.kids else ""
    while d is not None and d.type not in ("identifier", "type_identifier"):
        d = d.get("declarator") or next(
            (k for k in reversed(d.kids) if "declarator" in k.type or k.type == "identifier"), None
        )
    return d.text if d is not None else ""


def bind_template(m: Machine, params: list[Syn], arguments: list[Any]) -> dict[str, Any]:
    """Template parameter names to their arguments; defaults where there are fewer."""
    bound: dict[str, Any] = {}
    for at, param in enumerate(params):
        name = parameter_name(param)
        if at < len(arguments):
            bound[name] = arguments[at]
        elif (default := param.get("default_value") or param.get("default_type")) is not None:
            scope = Scope(m.globals, bound)
            bound[name] = (
                places.read_type(m, default, scope)
                if default.type in ("type_descriptor", "primitive_type", "type_identifier")
                else dispatch.evaluate(m, default, scope)
            )
    return bound


def _invoke(m: Machine, name: str, template: Syn | None, arguments: Syn, scope: Scope, syn: Syn) -> Value:
    given = template_arguments(m, template, scope)
    candidates = [d for d in m.functions[name] if len(d.params) >= len(arguments.kids)]
    if not candidates:
        raise NotUnderstood(f"no {name} with {len(arguments.kids)} parameters")
    special = [d for d in candidates if "<" in d.qualified and _specialised_for(m, d, given, scope)]
    if len(special) > 1:
        special = [d for d in special if _extents_fit(m, d, arguments, scope)] or special
    general = [d for d in candidates if "<" not in d.qualified]
    exact = [d for d in general if len(d.params) == len(arguments.kids)] or general
    if not special and not exact:
        raise NotUnderstood(f"no definition of {name} for these template arguments")
    definition = special[0] if special else exact[0]
    if len(m.frames) > MAX_DEPTH:
        raise NotUnderstood("calls nested too deeply")
    inner = Scope(m.globals, {} if special else bind_template(m, definition.template, given))
    _bind_parameters(m, definition.params, arguments, scope, inner, definition)
    return _run(m, definition.body, inner, syn, definition.result)


def run_method(
    m: Machine, params: list[Syn], body: Syn, result: Syn | None, arguments: Syn, scope: Scope, outer: Scope, syn: Syn
) -> Value:
    """A call of a method, whose members are in `outer`."""
    if len(m.frames) > MAX_DEPTH:
        raise NotUnderstood("calls nested too deeply")
    inner = Scope(outer)
    _bind_parameters(m, params, arguments, scope, inner, None)
    return _run(m, body, inner, syn, result)


def _extents_fit(m: Machine, definition: Definition, arguments: Syn, scope: Scope) -> bool:
    """True unless an array argument has other extents than its parameter: ``float (&c)[8][4]``."""
    for param, argument in zip(definition.params, arguments.kids, strict=False):
        found = scope.find(argument.text) if argument.type == "identifier" else None
        sizes = _extents(param)
        if isinstance(found, Cells | Ptr) and found.dims and sizes:
            wanted = [dispatch.evaluate(m, s, m.globals) for s in sizes]
            if list(found.dims) != wanted:
                return False
    return True


def _extents(param: Syn) -> list[Syn]:
    """The extents of an array parameter."""
    sizes: list[Syn] = []
    d = param.get("declarator")
    while d is not None:
        if d.type == "array_declarator" and (size := d.get("size")) is not None:
            sizes.insert(0, size)
        d = d.get("declarator") or next((k for k in d.kids if "declarator" in k.type), None)
    return sizes


def _specialised_for(m: Machine, definition: Definition, given: list[Any], scope: Scope) -> bool:
    words = [w.strip() for w in definition.qualified[definition.qualified.index("<") + 1 : -1].split(",")]
    if len(words) > len(given):
        return False
    for word, value in zip(words, given, strict=False):
        if isinstance(value, CType):
            known = places.type_named(m, word, m.globals)
            if known is None or (known.kind, known.pointer) != (value.kind, value.pointer):
                return False
        elif word != str(value) and word != str(value).lower():
            return False
    return True


def _invoke_lambda(m: Machine, function: Function, arguments: Syn, scope: Scope, syn: Syn) -> Value:
    if function.scope is None:
        return _invoke(m, str(function.node), None, arguments, scope, syn)
    node: Syn = function.node
    declarator, body = node.get("declarator"), node.get("body")
    if body is None:
        raise NotUnderstood("a lambda without a body")
    inner = Scope(function.scope)
    params: list[Syn] = []
    if declarator is not None and (listed := declarator.get("parameters")) is not None:
        params = [k for k in listed.kids if "parameter_declaration" in k.type]
    _bind_parameters(m, params, arguments, scope, inner, None)
    return _run(m, body, inner, syn)


def _run(m: Machine, body: Syn, scope: Scope, syn: Syn, declared: Syn | None = None) -> Value:
    frame = Frame(syn, len(m.path), result=(declared, scope) if declared is not None else None)
    m.frames.append(frame)
    outer = m.statement
    try:
        statements.execute(m, body, scope)
    finally:
        m.frames.pop()
        m.statement = outer
    result: Value = None
    for condition, value in reversed(frame.returned):
        if isinstance(value, Record) and isinstance(result, Record) and condition is not True:
            result = structs.choose(m, condition, value, result)
        else:
            result = value if result is None or condition is True else m.select(condition, value, result)
    return persistent.drawn(m, result, body) if m.producing and isinstance(result, Record) else result


def _bind_parameters(
    m: Machine, params: list[Syn], arguments: Syn, scope: Scope, inner: Scope, definition: Definition | None
) -> None:
    for at, param in enumerate(params):
        name = parameter_name(param)
        declarator, kind = param.get("declarator"), param.get("type")
        if at >= len(arguments.kids):
            default = param.get("default_value")
            if default is None:
                raise NotUnderstood(f"a call without the argument {name}")
            value: Value = dispatch.evaluate(m, default, m.globals)
        elif isinstance(several := scope.find(arguments.kids[at].text), structs.Records):
            inner.names[name] = several
            continue
        elif (record := structs.record_at(m, arguments.kids[at], scope)) is not None and not stars(declarator):
            inner.names[name] = record if _is_reference(declarator) else copied(m, record)
            continue
        elif _is_reference(declarator):
            argument = arguments.kids[at]
            try:
                target, field = places.place(m, argument, scope)
            except NotUnderstood:
                target, field = None, None
            if target is not None and field is None:
                _deduce(m, definition, param, inner, target.ctype, target.dims)
                inner.names[name] = target
                continue
            value = dispatch.evaluate(m, argument, scope)
        else:
            value = dispatch.evaluate(m, arguments.kids[at], scope)
        if isinstance(value, Record):
            inner.names[name] = value
            continue
        _deduce(m, definition, param, inner, _type_of_value(value), value.dims if isinstance(value, Ptr) else ())
        ctype = places.read_type(m, kind, inner) if kind is not None else TYPES["auto"]
        levels = stars(declarator)
        if levels:
            ctype = CType(ctype.name, ctype.size, ctype.kind, ctype.pointer + levels, ctype.signed)
        if isinstance(value, Ptr | Function):
            cells = m.new_cells(name, ctype, (), param.start)
            cells.values[0] = value
        else:
            cells = m.new_cells(name, ctype, (), param.start)
            cells.values[0] = value if ctype.kind == "auto" else places.to_type(m, value, ctype)
        inner.names[name] = cells


def _type_of_value(value: Value) -> CType:
    if isinstance(value, Ptr):
        return value.ctype
    return TYPES[{"float": "float", "int": "int", "bool": "bool"}.get(value_kind(value), "auto")]


def _deduce(
    m: Machine, definition: Definition | None, param: Syn, inner: Scope, ctype: CType, dims: tuple[int, ...]
) -> None:
    """Template parameters that the argument's type fixes: ``const T*``, ``float (&x)[N][M]``."""
    if definition is None or not definition.template:
        return
    names = {parameter_name(t) for t in definition.template}
    kind = param.get("type")
    if kind is not None and kind.text in names and kind.text not in inner.names:
        inner.names[kind.text] = CType(ctype.name, ctype.size, ctype.kind, 0, ctype.signed)
    for size, extent in zip(_extents(param), dims, strict=False):
        if size.type == "identifier" and size.text in names and size.text not in inner.names:
            inner.names[size.text] = extent


def _is_reference(declarator: Syn | None) -> bool:
    while declarator is not None:
        if "reference_declarator" in declarator.type:
            return True
        declarator = declarator.get("declarator") or next((k for k in declarator.kids if "declarator" in k.type), None)
    return False


# ---- CUDA's own names ------------------------------------------------------------------------------------------------


def builtin_field(m: Machine, syn: Syn, scope: Scope) -> Value:
    """``threadIdx.x`` and relatives; None for other fields."""
    argument, field = syn.get("argument"), syn.get("field")
    if argument is None or field is None or argument.text not in _BUILTIN or field.text not in ("x", "y", "z"):
        return None
    what = _BUILTIN[argument.text]
    if what == "thread":
        return m.thread[field.text]
    if what == "dim":
        return m.block["xyz".index(field.text)]
    return m.store.node(what, (), field.text, "int")


_ASM_PIECE = re.compile(r'\s*(?:"((?:\\.|[^"\\])*)"|([A-Za-z_]\w*)|(/\*.*?\*/|//[^\n]*\n))', re.S)


def run_asm(m: Machine, syn: Syn, scope: Scope) -> Value:
    """An inline PTX statement."""
    outputs: list[Ptr] = []
    values: list[Value] = []
    for operand in (syn.get("output_operands"), syn.get("input_operands")):
        for item in operand.kids if operand is not None else []:
            constraint, value = item.get("constraint"), item.get("value")
            if constraint is None or value is None:
                continue
            if operand is syn.get("output_operands"):
                target, _ = places.place(m, value, scope)
                outputs.append(target)
                values.append(places.load(m, target) if "+" in constraint.text else UNDEFINED)
            else:
                values.append(dispatch.evaluate(m, value, scope))
    asm_table.run(m, _asm_text(m, syn), outputs, values, syn)
    return None


def _asm_text(m: Machine, syn: Syn) -> str:
    text = syn.text
    if syn.end - syn.start == len(text.encode()):
        # The user's own text: the sanitiser blanks macros between string literals.
        text = m.source.data[syn.start : syn.end].decode("utf-8", "replace")
    at = text.index("(") + 1
    parts: list[str] = []
    while match := _ASM_PIECE.match(text, at):
        at = match.end()
        if match.group(1) is not None:
            parts.append(match.group(1))
        elif match.group(2) is not None:
            macro = m.source.macros.get(match.group(2))
            if macro is None:
                raise NotUnderstood(f"{match.group(2)} inside asm")
            parts.extend(re.findall(r'"((?:\\.|[^"\\])*)"', macro.body))
    return "".join(parts).replace("\\n", "\n").replace("\\t", " ")


def returned(m: Machine, value: Value) -> None:
    """A return statement under the conditions of this call."""
    condition: Value = True
    for p in m.path[m.frames[-1].base :]:
        condition = p if condition is True else arithmetic.logical(m, "and", condition, p)
    m.frames[-1].returned.append((condition, value))
