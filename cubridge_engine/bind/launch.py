"""A launch that stands in the file, evaluated for several problems (host.py)."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from tree_sitter import Node

from ..source import Function, Launch, SourceFile
from . import hints
from .host import Host
from .host_tables import Tensor, Unknown
from .samples import PROBLEMS, RAGGED, SCALES, Pointer, Sample, Value, strides_of
from .signature import Signature

ELEMENTS = {"half": "float16", "__half": "float16", "float16": "float16", "half_t": "float16", "float": "float32",
            "__nv_bfloat16": "bfloat16", "nv_bfloat16": "bfloat16", "bfloat16_t": "bfloat16"}  # fmt: skip
DEFAULT_TYPE = "__half"


@dataclass(frozen=True, slots=True)
class Evaluated:
    """A launch as samples. `template_args` are the template arguments as C++; `unknown` are argument positions (and
    ``grid``, ``block``, ``shared``) that the file does not tell, with the text that could not be evaluated.
    """

    launch: Launch
    samples: tuple[Sample, ...]
    template_args: tuple[str, ...]
    unknown: Mapping[str, str]
    layout: str
    line: int


def launches_of(source: SourceFile, kernel: str) -> list[Launch]:
    """The launches of a kernel, those through a local variable that holds its address too."""
    found: list[Launch] = []
    for launch in source.launches():
        function = enclosing(source, launch.node)
        alias = _alias(source, function, launch.kernel, kernel) if launch.kernel != kernel else None
        if launch.kernel == kernel or alias is not None:
            found.append(launch)
    return found


def _alias(source: SourceFile, function: Function | None, name: str, kernel: str) -> str | None:
    """``auto k = &kernel<float, 64>;``: the text of the template arguments."""
    text = source.clean_text(function.body) if function is not None else ""
    match = re.search(rf"\b{re.escape(name)}\s*=\s*&?\s*(?:\w+::)*{re.escape(kernel)}\b\s*(<[^;]*>)?\s*;", text)
    return (match[1] or "") if match else None


def enclosing(source: SourceFile, node: Node) -> Function | None:
    """The function that a node is in."""
    functions = [f for group in source.functions().values() for f in group]
    around = [f for f in functions if f.node.start_byte <= node.start_byte and node.end_byte <= f.node.end_byte]
    return min(around, key=lambda f: f.node.end_byte - f.node.start_byte, default=None)


def evaluate_launch(
    source: SourceFile, kernel: Signature, launch: Launch, dtype: str, head_dim: int, layout: str
) -> Evaluated:
    """The launch for each problem of samples.PROBLEMS at a head dimension; never raises."""
    function = enclosing(source, launch.node)
    given = _template_values(source, function, head_dim)
    unknown: dict[str, str] = {}
    problems = [*PROBLEMS, RAGGED]
    samples = tuple(
        _sample(source, function, launch, {**problem, "D": head_dim}, SCALES[n], layout, dtype, given, unknown)
        for n, problem in enumerate(problems)
    )
    arguments = _template_arguments(source, function, launch, kernel, given, samples[0], dtype)
    line = source.span(launch.node).line + 1
    return Evaluated(launch, samples, arguments, unknown, layout, line)


def _template_values(source: SourceFile, function: Function | None, head_dim: int) -> dict[str, object]:
    """Values of the template parameters of the launching function, by name where no call says them."""
    from .signature import signature_of

    if function is None or function.template is None:
        return {}
    values: dict[str, object] = {}
    signature = signature_of(source, function)
    calls = re.findall(rf"\b{re.escape(function.name)}\s*<([^;(){{}}]*)>\s*\(", source.clean.decode("utf-8", "replace"))
    told = [part.strip() for part in calls[0].split(",")] if calls else []
    for index, template in enumerate(signature.templates):
        text = told[index] if index < len(told) else template.default
        if template.kind in ("typename", "class"):
            values[template.name] = text if text in ELEMENTS else DEFAULT_TYPE
        elif re.fullmatch(r"\d+", text):
            values[template.name] = int(text)
        elif text in ("true", "false") or template.kind == "bool":
            values[template.name] = text == "true"
        elif hints.size_role(template.name) in ("D", "Dv"):
            values[template.name] = head_dim
    return values


def _sample(
    source: SourceFile, function: Function | None, launch: Launch, sizes: dict[str, int], scale: float, layout: str,
    dtype: str, given: Mapping[str, object], unknown: dict[str, str],
) -> Sample:  # fmt: skip
    if layout == "sd":
        sizes |= {"B": 1, "H": 1, "Hkv": 1}

    def evaluate(what: str, node: Node | None, default: object = None) -> object:
        if node is None and default is not None:
            return default
        # A fresh one each time: steps and names in use belong to one expression.
        host = Host(source, function, launch.node.start_byte, sizes, scale, layout, dtype, given)
        try:
            return host.value(node)
        except (Unknown, RecursionError, ArithmeticError, TypeError, ValueError) as problem:
            unknown[what] = str(problem) or (source.clean_text(node) if node is not None else what)
            return None

    grid, block = evaluate("grid", launch.grid), evaluate("block", launch.block)
    shared = evaluate("shared", launch.shared, 0)
    args = tuple(_passed(evaluate(str(n), node)) for n, node in enumerate(launch.args))
    strides: dict[str, int] = {}
    for role in ("q", "k", "v", "o"):
        strides |= strides_of(role, sizes, layout)
    whole = int(shared) if isinstance(shared, (int, float)) else 0
    return Sample(sizes, _triple(grid), _triple(block), whole, args, strides, scale)


def _passed(value: object) -> Value | None:
    if isinstance(value, Tensor):
        return Pointer(value.memory)
    return value if isinstance(value, (Pointer, int, float)) else None


def _triple(value: object) -> tuple[int, int, int]:
    parts = value if isinstance(value, tuple) else (value,)
    numbers = [int(v) if isinstance(v, (int, float)) else 0 for v in parts]
    x, y, z = (*numbers, 1, 1, 1)[:3]
    return x, y, z


def _template_arguments(
    source: SourceFile, function: Function | None, launch: Launch, kernel: Signature, given: Mapping[str, object],
    sample: Sample, dtype: str,
) -> tuple[str, ...]:  # fmt: skip
    texts = [source.clean_text(node) for node in launch.template_args]
    if not texts and launch.kernel != kernel.name:
        alias = _alias(source, function, launch.kernel, kernel.name) or ""
        texts = [part.strip() for part in alias[1:-1].split(",")] if alias else []
    host = Host(source, function, launch.node.start_byte, sample.sizes, 0.0, "bhsd", dtype, given)
    found: list[str] = []
    nodes: Sequence[Node | None] = launch.template_args or [None] * len(texts)
    for index, text in enumerate(texts):
        if text in given:
            value = given[text]
            found.append(str(value).lower() if isinstance(value, bool) else str(value))
            continue
        kind = kernel.templates[index].kind if index < len(kernel.templates) else ""
        if kind in ("typename", "class") or text in ELEMENTS:
            found.append(text)
            continue
        try:
            value = host.value(nodes[index]) if nodes[index] is not None else host.text_value(text)
        except (Unknown, ArithmeticError, TypeError, ValueError):
            value = text
        found.append(str(value).lower() if isinstance(value, bool) else str(value))
    return tuple(found)
