"""The variables of a whole file: locals, parameters and members, so that an edit may reach into called functions.

A call is looked into when its function is the only one of that name, is used in no other way than by calls with all
arguments, and stands in no macro. Parameters of other functions are not followed: what they are given has an effect.
Members that are used through an object, or filled by position, stay.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterator

from tree_sitter import Node

from ..source import Function, SourceFile
from .liveness import NO_CODE, Callee, Reader, Uses, Variable, arguments_of, called_name, declared

_WORD = re.compile(rb"[A-Za-z_]\w*")
_STRUCTS = frozenset({"struct_specifier", "class_specifier"})
_DIRECTIVES = frozenset({"preproc_def", "preproc_function_def"})
_NAMES = frozenset({"identifier", "field_identifier"})


def uses_of_file(source: SourceFile, kernel_body: Node) -> Uses:
    """Uses over every function body of a file; the kernel's comes first."""
    functions = [f for listed in source.functions().values() for f in listed]
    facts = _Facts(source)
    callees = {f.name: c for f in functions if (c := _callee(source, f, facts)) is not None}
    bodies = [f.body for f in functions if f.body != kernel_body]
    uses = Uses((kernel_body, *bodies), callees=callees)
    members = {s: _members(source, s, facts) for s in {_struct_of(f) for f in functions} - {None} if s is not None}
    for owned in members.values():
        for variable, declarator in owned:
            uses.definitions.setdefault(variable, []).append(declarator)
    for callee in callees.values():
        for param, place in zip(callee.params, callee.places, strict=True):
            uses.definitions.setdefault(param, []).append(place)
    for f in sorted(functions, key=lambda f: f.body != kernel_body):
        struct = _struct_of(f)
        scope = {v.name: v for v, _ in members[struct]} if struct is not None else {}
        callee = callees.get(f.name)
        for name in _parameter_names(source, f):
            scope.pop(name, None)
        if callee is not None:
            scope |= {p.name: p for p in callee.params if p.name}
        Reader(uses, source.clean, callee.result if callee is not None else None).visit(f.body, scope, None)
    return uses


def reachable(source: SourceFile, kernel: Function) -> list[Function]:
    """The functions of the file whose names stand in what a kernel calls, from call to call."""
    known = source.functions()
    found: list[Function] = []
    stack = [kernel]
    while stack:
        f = stack.pop()
        words = {w.decode() for w in _WORD.findall(source.code[f.body.start_byte : f.body.end_byte])}
        more = [g for word in words for g in known.get(word, ()) if g not in found and not g.is_kernel]
        found += more
        stack += more
    return found


class _Facts:
    """What one walk over the file's tree finds."""

    def __init__(self, source: SourceFile) -> None:
        self.named: Counter[str] = Counter()  # names in the code, by occurrence
        self.fields: set[str] = set()  # names used through an object, or in a list of member initialisers
        self.calls: dict[str, list[Node]] = {}
        self.filled: dict[str, int] = {}  # type -> how many members a list of values fills
        self.loose_list = False  # a list of values whose type is not said
        self.macros: set[str] = set()
        for node in _walk(source.root):
            self._note(source, node)

    def _note(self, source: SourceFile, node: Node) -> None:
        if node.type in _NAMES:
            self.named[source.clean_text(node)] += 1
            if node.parent is not None and node.parent.type in ("field_expression", "field_initializer"):
                self.fields.add(source.clean_text(node))
        elif node.type == "call_expression":
            name = called_name(node)
            if name is not None:
                self.calls.setdefault(source.clean_text(name), []).append(node)
        elif node.type in _DIRECTIVES:
            text = source.data[node.start_byte : node.end_byte]
            self.macros |= {w.decode() for w in _WORD.findall(text)}
        elif node.type == "initializer_list":
            self._list(source, node)

    def _list(self, source: SourceFile, node: Node) -> None:
        around = node.parent
        if around is not None and around.type == "init_declarator":
            around = around.parent
        count = len([c for c in node.named_children if c.type != "comment"])
        if around is not None and around.type in ("declaration", "compound_literal_expression", "field_declaration"):
            kind = around.child_by_field_name("type")
            name = _type_name(source, kind)
            self.filled[name] = max(self.filled.get(name, 0), count)
        elif around is not None and around.type == "return_statement":
            made = around
            while made is not None and made.type != "function_definition":
                made = made.parent
            name = _type_name(source, made.child_by_field_name("type")) if made is not None else ""
            self.filled[name] = max(self.filled.get(name, 0), count)
        elif around is None or around.type != "initializer_list":
            self.loose_list = True


def _walk(node: Node) -> Iterator[Node]:
    stack = [node]
    while stack:
        found = stack.pop()
        yield found
        stack += found.children


def _type_name(source: SourceFile, kind: Node | None) -> str:
    while kind is not None and kind.type == "template_type":
        kind = kind.child_by_field_name("name")
    return source.clean_text(kind) if kind is not None else ""


def _struct_of(f: Function) -> Node | None:
    node = f.node.parent
    if node is not None and node.type == "template_declaration":
        node = node.parent
    found = node.parent if node is not None and node.type == "field_declaration_list" else None
    return found if found is not None and found.type in _STRUCTS else None


# ---- members


def _members(source: SourceFile, struct: Node, facts: _Facts) -> list[tuple[Variable, Node]]:
    """The data members of a struct, with their declarators."""
    body, name = struct.child_by_field_name("body"), struct.child_by_field_name("name")
    found: list[tuple[Variable, Node]] = []
    filled = facts.filled.get(_type_name(source, name), 0)
    for declaration in body.named_children if body is not None else ():
        text = source.clean_text(declaration)
        if declaration.type != "field_declaration" or text.startswith("static"):
            continue
        for declarator in declaration.children_by_field_name("declarator"):
            word, holds = declared(declarator)
            if word is None or declarator.type == "function_declarator":
                continue
            member = source.clean_text(word)
            stays = member in facts.fields or len(found) < filled or facts.loose_list or "__shared__" in text
            found.append((Variable(member, word.start_byte, "other" if stays else holds), declarator))
    return found


# ---- functions


def _parameters(f: Function) -> list[Node]:
    return [p for p in f.params.named_children if p.type.endswith("parameter_declaration")]


def _parameter_names(source: SourceFile, f: Function) -> list[str]:
    found: list[str] = []
    for parameter in _parameters(f):
        name = _name_in(parameter.child_by_field_name("declarator"))
        if name is not None:
            found.append(source.clean_text(name))
    return found


def _name_in(declarator: Node | None) -> Node | None:
    """The name inside a declarator of any kind."""
    while declarator is not None and declarator.type not in _NAMES:
        inner = declarator.child_by_field_name("declarator")
        endings = ("declarator", "identifier")
        declarator = inner or next((c for c in declarator.named_children if c.type.endswith(endings)), None)
    return declarator


def _callee(source: SourceFile, f: Function, facts: _Facts) -> Callee | None:
    """`f` as a function whose calls are looked into, or None."""
    parameters = _parameters(f)
    calls = facts.calls.get(f.name, [])
    whole = all(len(arguments_of(c)) == len(parameters) for c in calls)
    if f.is_kernel or f.name in facts.macros or not calls or not whole or facts.named[f.name] != len(calls) + 1:
        return None
    if len(source.functions()[f.name]) > 1 or any(p.type != "parameter_declaration" for p in parameters):
        return None
    made = [_parameter(source, p) for p in parameters]
    result = Variable(f"what {f.name} returns", f.node.start_byte, "other")
    params = tuple(variable for variable, _ in made)
    references = tuple(reference for _, reference in made)
    definition = f.template or f.node
    return Callee(f.name, definition, f.body, tuple(parameters), params, references, result, _is_quiet(source, f))


def _parameter(source: SourceFile, parameter: Node) -> tuple[Variable, bool]:
    """(a parameter as a variable, whether it is a reference)."""
    declarator = parameter.child_by_field_name("declarator")
    name = _name_in(declarator)
    if declarator is None or name is None:
        return Variable("", parameter.start_byte, "other"), False
    kinds = {declarator.type} | {n.type for n in _walk(declarator)}
    reference = "reference_declarator" in kinds
    plain = len(kinds & {"array_declarator", "pointer_declarator", "function_declarator"})
    if "function_declarator" in kinds or plain > 1 or ("array_declarator" in kinds and not reference):
        holds = "other"
    else:
        holds = "array" if "array_declarator" in kinds else "pointer" if "pointer_declarator" in kinds else "value"
    return Variable(source.clean_text(name), name.start_byte, holds), reference


def _is_quiet(source: SourceFile, f: Function) -> bool:
    """True when a call of a function changes nothing but its own variables."""
    own = {source.clean_text(n) for d in _walk(f.body) if d.type == "declaration" for n in _walk(d) if n.type in _NAMES}
    for node in _walk(f.body):
        if node.type == "gnu_asm_expression" and not _is_quiet_asm(node):
            return False
        if node.type == "expression_statement" and not _sets_own(source, node, own):
            return False
    return True


def _is_quiet_asm(asm: Node) -> bool:
    """True for an asm that is not volatile, or only reads a register (volatile: each time anew)."""
    code, clobbers = asm.child_by_field_name("assembly_code"), asm.child_by_field_name("clobbers")
    reads_only = b"mov." in (code.text or b"")[:6] and clobbers is None if code is not None else False
    return reads_only or not any(c.type == "gnu_asm_qualifier" for c in asm.named_children)


def _sets_own(source: SourceFile, statement: Node, own: set[str]) -> bool:
    code = [c for c in statement.named_children if c.type not in NO_CODE]
    if not code or code[0].type == "gnu_asm_expression":
        return True
    target = code[0].child_by_field_name("left") or code[0].child_by_field_name("argument")
    while target is not None and target.type == "subscript_expression":
        target = target.child_by_field_name("argument")
    return target is not None and target.type == "identifier" and source.clean_text(target) in own
