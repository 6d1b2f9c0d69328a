"""Extra tensors of a spec: a member of the struct that the kernel is passed, or a parameter of the kernel itself."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from ..compile import Contract, Field, Parameter
from ..diagnostics import Diagnostic, make
from ..ir.expr import Read
from ..lower import Hunk
from ..lower.cuda_expr import PRIMARY, Scope, print_cuda
from ..spec.attention import Attention, TensorInput
from .model import Place, Refused
from .text import Block, Text

# dtype in the spec -> (C++, type in a contract); others would have to be those of Q.
_TYPES = {
    "float32": ("float", "float*"),
    "int32": ("int", "int32*"),
    "int64": ("long long", "int64*"),
    "bool": ("bool", "bool*"),
}


@dataclass(frozen=True, slots=True)
class Passed:
    """How the operands reach the places: the C++ of each pointer, the hunks by file, the contract that has them."""

    spelled: Mapping[str, str]
    hunks: Mapping[Path, tuple[Hunk, ...]]
    contract: Contract


def pass_operands(
    operands: Sequence[TensorInput], places: Sequence[Place], contract: Contract, texts: Mapping[Path, Text],
    attention: Attention,
) -> Passed:  # fmt: skip
    """Give the kernel a pointer for each of `operands`. Raises Refused."""
    if not operands:
        return Passed({}, {}, contract)
    for item in operands:
        if item.dtype not in _TYPES:
            raise Refused(_cannot(f"the {item.dtype} tensor {item.name}", attention, item))
    structs = [p for p in contract.parameters if p.fields]
    if len(structs) == 1 and all(_has(place, structs[0].name) for place in places):
        return _in_struct(operands, structs[0], contract, texts, attention)
    return _in_signature(operands, places, contract, texts, attention)


def _cannot(what: str, attention: Attention, item: TensorInput) -> Diagnostic:
    return make("CB434", attention.spans.get(item.name) or item.span, what=what)


def _has(place: Place, name: str) -> bool:
    head = place.body[: place.body.find("{")]
    return re.search(rf"\b{name}\b\s*[,)]", head) is not None


def _in_struct(
    operands: Sequence[TensorInput], struct: Parameter, contract: Contract, texts: Mapping[Path, Text],
    attention: Attention,
) -> Passed:  # fmt: skip
    members = [field.parameter.name for field in sorted(struct.fields, key=lambda f: f.offset)]
    found: list[tuple[int, Path, Block]] = []
    for last in reversed(members):  # a derived struct has the last ones; a contract may name what is no member
        found = [
            (_declared(members, text, block), path, block)
            for path, text in texts.items()
            for block in structs_of(text)
            if _declared([last], text, block)
        ]
        if found:
            break
    found.sort(key=lambda f: f[0])
    if not found or [count for count, *_ in found].count(found[-1][0]) != 1:
        what = f"{operands[0].name}, for which no struct with {members[-1]} was found,"
        raise Refused(_cannot(what, attention, operands[0]))
    _, path, block = found[-1]
    text = texts[path]
    offset = -(-struct.size // 8) * 8
    fields, lines, spelled = list(struct.fields), list[str](), dict[str, str]()
    at = text.code.rfind("\n", 0, block.end - 1) + 1
    last_line = text.code.rfind(";", block.start, block.end)
    indent = text.indent(last_line)
    for item in operands:
        c, kind = _TYPES[item.dtype]
        name = _free(item.name, text.code[block.start : block.end])
        lines.append(f"{indent}const {c} *{name};  // {_shape(item)}\n")
        fields.append(Field(offset, Parameter(name, f"operand:{item.name}", kind)))
        spelled[item.name] = f"{struct.name}.{name}"
        offset += 8
    if text.code[at : block.end - 1].strip():  # the brace is not on a line of its own
        at, lines = block.end - 1, [f" {line.strip().partition('  //')[0]}" for line in lines]
    hunk = Hunk(at, at, "", "".join(lines), "operand", text.line_of(at), attention.spans.get(operands[0].name))
    changed = replace(struct, fields=tuple(fields), size=offset)
    parameters = tuple(changed if p is struct else p for p in contract.parameters)
    return Passed(spelled, {path: (hunk,)}, replace(contract, parameters=parameters))


def _declared(names: Sequence[str], text: Text, block: Block) -> int:
    """How many of the names a struct declares itself."""
    own = text.own_text(block, block.end - 1)
    return sum(re.search(rf"\b{name}\b\s*[;,]", own) is not None for name in names)


def structs_of(text: Text) -> list[Block]:
    """The bodies of structs and classes."""
    out: list[Block] = []
    for start, end in text.pairs.items():
        if text.code[start] == "{":
            head = text.statement_start(start)
            header = text.code[head:start]
            if re.search(r"\b(struct|class)\s+\w+[^()]*$", header):
                out.append(Block(start, end, header, head))
    return out


def _in_signature(
    operands: Sequence[TensorInput], places: Sequence[Place], contract: Contract, texts: Mapping[Path, Text],
    attention: Attention,
) -> Passed:  # fmt: skip
    hunks: dict[Path, tuple[Hunk, ...]] = {}
    spelled = {item.name: _free(item.name, places[0].body) for item in operands}
    added = "".join(f", const {_TYPES[item.dtype][0]} *__restrict__ {spelled[item.name]}" for item in operands)
    for place in places:
        text = texts[place.path]
        function = text.function_around(place.at)
        if function is None or "__global__" not in function.header:
            raise Refused(
                _cannot(
                    f"{operands[0].name}, which would have to pass through several functions,", attention, operands[0]
                )
            )
        at = function.header_start + function.header.rfind(")")
        span = attention.spans.get(operands[0].name)
        hunks[place.path] = (Hunk(at, at, "", added, "operand", text.line_of(at), span),)
    extra = tuple(Parameter(spelled[i.name], f"operand:{i.name}", _TYPES[i.dtype][1]) for i in operands)
    return Passed(spelled, hunks, contract.with_parameters(extra))


def _free(name: str, text: str) -> str:
    while re.search(rf"\b{name}\b", text):
        name += "_"
    return name


def _shape(item: TensorInput) -> str:
    return f"[{', '.join(item.axes)}]"


def reader(operands: Mapping[str, TensorInput], spelled: Mapping[str, str]) -> Callable[[Read, Scope], tuple[str, int]]:
    """The ``Scope.read`` of contiguous operands: 64-bit offsets, axes of one element left out."""

    def read(expr: Read, scope: Scope) -> tuple[str, int]:
        item = operands[expr.tensor]
        offset = ""
        many = sum(axis != "1" for axis in item.axes) > 1
        for axis, index in zip(item.axes, expr.index, strict=True):
            if axis == "1":
                continue
            one = print_cuda(index, scope, 61)
            if not offset:
                offset = f"static_cast<long long>({one})" if many else one
                continue
            left = f"({offset})" if " + " in offset else offset
            offset = f"{left} * {axis if axis.isdigit() else scope.spelled(axis)[0]} + {one}"
        return f"{spelled[expr.tensor]}[{offset or '0'}]", PRIMARY

    return read
