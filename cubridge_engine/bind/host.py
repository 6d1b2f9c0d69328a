"""Evaluating host expressions as numbers: what a launch in the file passes when the sizes are ours.

A name that stands for a size (by what it is called) is that size of the problem; anything else is what its definition
in the function or in the file says. ``Unknown`` names what could not be evaluated.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

from tree_sitter import Node

from ..source import Function, SourceFile
from . import hints
from .host_tables import (
    CALLS,
    CONSTANTS,
    FLOAT,
    INTEGER,
    INTEGRAL,
    MAKERS,
    MOST_STEPS,
    OPERATORS,
    SIZEOF,
    Tensor,
    Unknown,
    Value,
    named_values,
    nodes_before,
    single_return,
)  # fmt: skip
from .samples import Memory, Pointer, shape_of, strides_of


@dataclass(slots=True)
class Host:
    """The surroundings of one launch, for one problem. `sizes` has B, H, Hkv, Sq, Sk and D; `layout` says how a tensor
    lies; `given` are values of names that come first (template arguments).
    """

    source: SourceFile
    function: Function | None
    before: int  # byte offset of the launch: what is assigned behind it does not count
    sizes: Mapping[str, int]
    scale: float
    layout: str
    dtype: str
    given: Mapping[str, Value] = field(default_factory=dict[str, Any])
    steps: int = 0
    busy: set[str] = field(default_factory=set[str])
    outer: Host | None = None  # whose names those of an expression without a place are

    # ---- names

    def name(self, name: str) -> Value:
        """The value of a name. Raises Unknown."""
        if name in self.given:
            return self.given[name]
        if name in CONSTANTS:
            return CONSTANTS[name]
        if self.outer is not None:
            return self.outer.name(name)
        if name in self.busy:
            raise Unknown(name)
        self.busy.add(name)
        try:
            return self._defined(name)
        finally:
            self.busy.discard(name)

    def _defined(self, name: str) -> Value:
        local = self._local(name)
        if local is not None:
            return local
        parameter = self._parameter(name)
        if parameter is not None:
            return parameter
        value = self._global(name)
        if value is not None:
            return value
        role = hints.size_role(name)
        if role:
            return self.size(role)
        raise Unknown(name)

    def size(self, role: str) -> int:
        """B, H, Hkv, Sq, Sk, D, Dv or group of the problem."""
        extra = {"Dv": self.sizes["D"], "group": self.sizes["H"] // max(self.sizes["Hkv"], 1)}
        return {**extra, **self.sizes}[role]

    def tensor(self, role: str) -> Tensor:
        """The tensor with a role, in the layout at hand."""
        shape = shape_of(role, self.sizes, self.layout)
        steps = tuple(strides_of(role, self.sizes, self.layout).values())
        dtype = "float32" if role == "lse" else self.dtype
        return Tensor(Memory(role, role, math.prod(shape), dtype), shape, (*steps, 1))

    def _local(self, name: str) -> Value | None:
        """A variable of the function: a size where it is a number that is written down, else what it is given."""
        if self.function is None:
            return None
        found: Node | None = None
        declared = ""
        for node in nodes_before(self.function.body, self.before):
            if node.type == "init_declarator" and self._declares(node, name):
                found, declared = node.child_by_field_name("value"), self._type(node)
            elif node.type == "declaration" and self._pointer_declared(node, name):
                return self.pointer_of(name)
            elif node.type == "declaration" and (given := self._looks_like_function(node, name)):
                # ``dim3 block(THREADS);`` reads as the declaration of a function too.
                return self.text_value(f"dim3{given}")
            elif node.type == "assignment_expression" and self._text(node.child_by_field_name("left")) == name:
                found = node.child_by_field_name("right")
        if found is None:
            return None
        role = hints.size_role(name)
        if role and self._is_written_down(found) and "constexpr" not in declared:
            return self.size(role)
        if "*" in declared and (hints.tensor_role(name) or found.type == "null"):
            return self.pointer_of(name)
        return self._typed(declared, found, name)

    def _typed(self, declared: str, node: Node, name: str) -> Value:
        if re.search(r"\bdim3\b", declared):
            parts = named_values(node) if node.type in ("argument_list", "initializer_list") else [node]
            values = [self.value(part) for part in parts]
            return values[0] if len(values) == 1 and isinstance(values[0], tuple) else tuple(values)
        if node.type in ("argument_list", "initializer_list") and len(named_values(node)) == 1:
            node = named_values(node)[0]
        try:
            value = self.value(node)
        except Unknown:
            if re.search(r"\bTensor\b|\bauto\b", declared) and hints.tensor_role(name):
                return self.tensor(hints.tensor_role(name))
            if re.search(r"\bTensor\b|\bauto\b", declared) and self._text(node).partition("(")[0].endswith(MAKERS):
                return self._made(node, name)
            raise
        return int(value) if INTEGRAL.search(declared) and isinstance(value, float) else value

    def _made(self, node: Node, name: str) -> Tensor:
        """A tensor that the launcher makes: scratch memory of one element per row, as far as its text says."""
        text = self._text(node)
        fill = "0" if "zeros" in text else "-inf" if re.search(r"-\s*(INFINITY|inf)", text) else ""
        rows = self.sizes["B"] * self.sizes["H"] * self.sizes["Sq"]
        return Tensor(Memory(name, "", rows, "float32", fill), (rows,), (1,))

    def _declares(self, node: Node, name: str) -> bool:
        declarator = node.child_by_field_name("declarator")
        while declarator is not None and declarator.type != "identifier":
            declarator = declarator.child_by_field_name("declarator") or (
                declarator.named_children[-1] if declarator.named_children else None
            )
        return declarator is not None and self._text(declarator) == name

    def _type(self, node: Node) -> str:
        declaration = node.parent
        if declaration is None:
            return ""
        first = next((c for c in declaration.children if c.type.endswith("declarator")), node)
        words = self.source.clean[declaration.start_byte : first.start_byte].decode("utf-8", "replace")
        return words + ("*" if self._text(node.child_by_field_name("declarator")).startswith("*") else "")

    def _pointer_declared(self, node: Node, name: str) -> bool:
        """``float *d_Q, *d_K;``: memory that is allocated later."""
        parts = [c for c in node.named_children if c.type == "pointer_declarator"]
        return any(self._text(part).lstrip("* ") == name for part in parts)

    def _looks_like_function(self, node: Node, name: str) -> str:
        """The parenthesised part of ``dim3 name(X)`` where the grammar took X for a type; '' elsewhere."""
        declarator = next((c for c in node.named_children if c.type == "function_declarator"), None)
        if declarator is None or "dim3" not in self._text(node.child_by_field_name("type")):
            return ""
        own = self._text(declarator.child_by_field_name("declarator")) == name
        return self._text(declarator.child_by_field_name("parameters")) if own else ""

    def pointer_of(self, name: str) -> Pointer:
        """The pointer that a name stands for: a tensor by what it is called, else memory of its own."""
        role = hints.tensor_role(name)
        return Pointer(self.tensor(role).memory if role else Memory(name, "", self._rows(), ""))

    def _rows(self) -> int:
        return self.sizes["B"] * self.sizes["H"] * self.sizes["Sq"]

    def _is_written_down(self, node: Node) -> bool:
        """A literal, or what a command line gives: a size of the example, not of the kernel."""
        text = self._text(node)
        return (
            node.type == "number_literal"
            or re.match(r"(std::)?(ato[il]|stoi|argc\b|argv\b)|.*\bargv\b", text) is not None
        )

    def _parameter(self, name: str) -> Value | None:
        function = self.function
        if function is None:
            return None
        for row in function.params.named_children:
            text = self._text(row).partition("=")[0]
            if not re.search(rf"\b{re.escape(name)}\s*(\[\s*\])?$", text.strip()):
                continue
            if re.search(r"\bTensor\b", text):
                return self.tensor(hints.tensor_role(name) or self._by_order(function, name))
            if "*" in text or text.strip().endswith("]"):
                return self.pointer_of(name)
            if hints.scale_role(name) or re.search(r"\b(float|double)\b", text):
                return 0.0 if hints.is_off_by_default(name) else self.scale
            if hints.is_causal(name) or re.search(r"\bbool\b", text):
                return 0
            stride = ".".join(hints.stride_of(name))
            steps = {k: v for r in "qkvo" for k, v in strides_of(r, self.sizes, self.layout).items()}
            role = hints.size_role(name)
            if stride in steps or role:
                return steps[stride] if stride in steps else self.size(role)
            raise Unknown(name)
        return None

    def _by_order(self, function: Function, name: str) -> str:
        rows = [self._text(r) for r in function.params.named_children if "Tensor" in self._text(r)]
        at = next((n for n, text in enumerate(rows) if text.partition("=")[0].strip().endswith(name)), 9)
        if at > 3:
            raise Unknown(name)
        return "qkvo"[at]

    def _global(self, name: str) -> Value | None:
        macro = self.source.macros.get(name)
        if macro is not None and macro.params is None:
            return self.text_value(macro.body)
        for node in nodes_before(self.source.root, self.before):
            if node.type == "init_declarator" and self._declares(node, name):
                value = node.child_by_field_name("value")
                inside = node.parent.parent if node.parent is not None else None
                if value is not None and inside is not None and inside.type in ("translation_unit", "declaration_list"):
                    return self.value(value)
            if node.type == "enumerator" and self._text(node.child_by_field_name("name")) == name:
                value = node.child_by_field_name("value")
                return self.value(value) if value is not None else None
        return None

    def templated(self, node: Node) -> Value:
        """``kBytes<D, 64>``: a variable template of the file, with its parameters as they are given."""
        name = self._text(node.child_by_field_name("name"))
        arguments = node.child_by_field_name("arguments")
        for found in nodes_before(self.source.root, self.before):
            if found.type != "template_declaration":
                continue
            declared = next((n for n in nodes_before(found, found.end_byte) if n.type == "init_declarator"), None)
            parameters = found.child_by_field_name("parameters")
            if declared is None or parameters is None or arguments is None or not self._declares(declared, name):
                continue
            names = [self._text(p).partition("=")[0].split()[-1] for p in parameters.named_children]
            values = {n: self.value(a) for n, a in zip(names, named_values(arguments), strict=False)}
            return Host(
                self.source, None, found.end_byte, self.sizes, self.scale, self.layout, self.dtype,
                {**self.given, **values}, self.steps,
            ).value(declared.child_by_field_name("value"))  # fmt: skip
        raise Unknown(self._text(node))

    # ---- expressions

    def text_value(self, text: str) -> Value:
        """The value of an expression that is not in the tree (the body of a macro)."""
        from ..source import parse

        wrapped = parse("<macro>", f"int x = {text.strip()};".encode())
        node = next((n for n in nodes_before(wrapped.root, 1 << 30) if n.type == "init_declarator"), None)
        value = node.child_by_field_name("value") if node is not None else None
        if value is None:
            raise Unknown(text)
        return Host(
            wrapped, None, 1 << 30, self.sizes, self.scale, self.layout, self.dtype, steps=self.steps, outer=self
        ).value(value)

    def value(self, node: Node | None) -> Value:
        """The value of an expression. Raises Unknown."""
        if node is None:
            raise Unknown("nothing")
        self.steps += 1
        if self.steps > MOST_STEPS:
            raise Unknown(self._text(node))
        rule = _RULES.get(node.type)
        if rule is None:
            raise Unknown(self._text(node))
        return rule(self, node)

    def _text(self, node: Node | None) -> str:
        return self.source.clean_text(node) if node is not None else ""

    def number(self, node: Node) -> Value:
        text = self._text(node)
        whole = INTEGER.match(text)
        if whole:
            return int(whole[1].replace("'", ""), 0) if "x" in whole[1].lower() else int(whole[1])
        real = FLOAT.match(text)
        if real:
            return float(real[1])
        raise Unknown(text)

    def binary(self, node: Node) -> Value:
        left, right = self.value(node.child_by_field_name("left")), self.value(node.child_by_field_name("right"))
        operator = self._text(node.child_by_field_name("operator"))
        if isinstance(left, Pointer) and isinstance(right, int) and operator == "+":
            return left if right == 0 else Pointer(left.memory, left.offset + right)
        if isinstance(left, (Pointer, Tensor, tuple)) or isinstance(right, (Pointer, Tensor, tuple)):
            raise Unknown(self._text(node))
        if operator in ("/", "%"):
            if right == 0:
                raise Unknown(self._text(node))
            whole = isinstance(left, int) and isinstance(right, int)
            if operator == "%":
                return left % right
            return int(left / right) if whole else left / right
        if operator not in OPERATORS:
            raise Unknown(self._text(node))
        return OPERATORS[operator](left, right)

    def unary(self, node: Node) -> Value:
        value = self.value(node.child_by_field_name("argument"))
        operator = self._text(node.children[0])
        if operator == "-":
            return -value
        if operator == "!":
            return not value
        if operator in ("+", "&", "*"):
            return value
        raise Unknown(self._text(node))

    def conditional(self, node: Node) -> Value:
        chosen = "consequence" if self.value(node.child_by_field_name("condition")) else "alternative"
        return self.value(node.child_by_field_name(chosen))

    def cast(self, node: Node) -> Value:
        return self._converted(
            self._text(node.child_by_field_name("type")), self.value(node.child_by_field_name("value"))
        )

    @staticmethod
    def _converted(kind: str, value: Value) -> Value:
        if isinstance(value, float) and INTEGRAL.search(kind) and "*" not in kind:
            return int(value)
        return (
            float(value)
            if isinstance(value, int) and re.search(r"\b(float|double)\b", kind) and "*" not in kind
            else value
        )

    def sizeof(self, node: Node) -> int:
        text = self._text(node)
        width = next((size for pattern, size in SIZEOF if re.search(pattern, text)), 0)
        if width or re.search(r"\b(float|int|unsigned|uint32_t)\b", text):
            return width or 4
        inner = re.sub(r"^sizeof\s*\(?\s*|\s*\)$", "", text)
        known = self.given.get(inner)
        if isinstance(known, str):
            return next((size for pattern, size in SIZEOF if re.search(pattern, known)), 4)
        return 4 if self.dtype == "float32" else 2

    def subscript(self, node: Node) -> Value:
        base = self.value(node.child_by_field_name("argument"))
        indices = node.child_by_field_name("indices")
        index = self.value(named_values(indices)[0]) if indices is not None and named_values(indices) else None
        if isinstance(base, tuple) and isinstance(index, int) and -len(base) <= index < len(base):
            return base[index]
        raise Unknown(self._text(node))

    def field(self, node: Node) -> Value:
        base = self.value(node.child_by_field_name("argument"))
        axis = {"x": 0, "y": 1, "z": 2}.get(self._text(node.child_by_field_name("field")), 9)
        if isinstance(base, tuple) and axis < 3:
            return base[axis] if axis < len(base) else 1
        raise Unknown(self._text(node))

    def call(self, node: Node) -> Value:
        function = node.child_by_field_name("function")
        arguments = node.child_by_field_name("arguments")
        nodes = named_values(arguments) if arguments is not None else []
        if function is None:
            raise Unknown(self._text(node))
        if function.type == "field_expression":
            return self._method(function, nodes)
        if function.type == "template_function" and "cast" in self._text(function.child_by_field_name("name")):
            return self._converted(self._text(function.child_by_field_name("arguments")), self.value(nodes[0]))
        name = self._text(function).partition("<")[0].split("::")[-1].strip()
        macro = self.source.macros.get(name)
        if macro is not None and macro.params is not None:
            return self._macro(macro.params, macro.body, nodes)
        own = self.source.functions().get(name, ())
        if len(own) == 1 and (result := single_return(own[0])) is not None:
            return self._own(own[0], result, nodes)
        if name in CALLS:
            return CALLS[name](*(self.value(n) for n in nodes))
        raise Unknown(self._text(node))

    def _macro(self, names: tuple[str, ...], body: str, nodes: list[Node]) -> Value:
        values = [self.value(n) for n in nodes]
        inner = Host(self.source, self.function, self.before, self.sizes, self.scale, self.layout, self.dtype,
                     {**self.given, **dict(zip(names, values, strict=False))}, self.steps)  # fmt: skip
        return inner.text_value(body)

    def _own(self, function: Function, result: Node, nodes: list[Node]) -> Value:
        names = [re.findall(r"\w+", self._text(p).partition("=")[0])[-1] for p in function.params.named_children]
        values = dict(zip(names, (self.value(n) for n in nodes), strict=False))
        inner = Host(self.source, function, function.node.end_byte, self.sizes, self.scale, self.layout, self.dtype,
                     {**self.given, **values}, self.steps)  # fmt: skip
        return inner.value(result)

    def _method(self, function: Node, nodes: list[Node]) -> Value:
        base = self.value(function.child_by_field_name("argument"))
        method = self._text(function.child_by_field_name("field")).partition("<")[0].strip()
        if isinstance(base, Tensor):
            if method in ("data_ptr", "data", "const_data_ptr", "mutable_data_ptr"):
                return Pointer(base.memory)
            if method in ("contiguous", "to", "cuda", "detach", "clone", "half"):
                return base
            if method in ("dim", "ndimension"):
                return len(base.shape)
            if method in ("sizes", "strides"):
                return base.shape if method == "sizes" else base.strides
            if method in ("size", "stride") and nodes:
                index = self.value(nodes[0])
                rows = base.shape if method == "size" else base.strides
                if isinstance(index, int) and -len(rows) <= index < len(rows):
                    return rows[index]
            if method == "numel":
                return math.prod(base.shape)
        if isinstance(base, Pointer) and method in ("get", "data"):
            return base
        raise Unknown(self._text(function))


_RULES: dict[str, Callable[[Host, Node], Value]] = {
    "number_literal": Host.number,
    "identifier": lambda host, node: host.name(host.source.clean_text(node)),
    "true": lambda host, node: True,
    "false": lambda host, node: False,
    "null": lambda host, node: Pointer(None),
    "qualified_identifier": lambda host, node: host.name(host.source.clean_text(node).split("::")[-1]),
    "parenthesized_expression": lambda host, node: host.value(named_values(node)[0] if named_values(node) else None),
    "binary_expression": Host.binary,
    "unary_expression": Host.unary,
    "pointer_expression": Host.unary,
    "conditional_expression": Host.conditional,
    "cast_expression": Host.cast,
    "sizeof_expression": Host.sizeof,
    "subscript_expression": Host.subscript,
    "field_expression": Host.field,
    "call_expression": Host.call,
    "template_function": Host.templated,
    # An argument of a template that is a name reads as a type.
    "type_descriptor": lambda host, node: host.name(host.source.clean_text(node).strip()),
    "initializer_list": lambda host, node: tuple(host.value(part) for part in named_values(node)),
    "compound_literal_expression": lambda host, node: tuple(
        host.value(part) for part in named_values(node.child_by_field_name("value") or node)
    ),
}
