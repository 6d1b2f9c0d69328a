"""A contract as the text of a contract.toml: what `contract_file` reads back as the same contract."""

from __future__ import annotations

import json
import math

from .contract import Contract, Instance
from .parameters import IS_FLOAT, STRUCT, Parameter


def contract_text(contract: Contract, notes: tuple[str, ...] = ()) -> str:
    """The file's text; `notes` are comment lines at its top, without their number sign."""
    lines = [
        *(f"# {note}" for note in notes),
        "schema = 1",
        f"name = {_quoted(contract.name)}",
        f"source = {_quoted(contract.source)}",
        f"summary = {_quoted(contract.summary)}",
        *([] if contract.adaptable else ["adaptable = false"]),
        "",
        "parameters = [",
        *(f"  {_parameter(p)}," for p in contract.parameters),
        "]",
        "",
        "[launch]",
        f"grid = [{', '.join(map(_quoted, contract.grid))}]",
        f"block = [{', '.join(map(str, contract.block))}]",
        *(["persistent = true"] if contract.persistent else []),
        f"dynamic_shared_bytes = {_quoted(contract.dynamic_shared_bytes)}",
        "",
        "[tiles]",
        f"br = {contract.br}",
        f"bc = {contract.bc}",
        f"stages = {contract.stages}",
        "",
        "[semantics]",
        f"masks = [{', '.join(map(_quoted, contract.masks))}]",
        f"gqa = {str(contract.gqa).lower()}",
        f"scale = {_quoted(contract.scale)}",
        f"lse = {_quoted(contract.lse)}",
        f"empty_rows = {_quoted(contract.empty_rows)}",
        "",
        "[limits]",
        f"archs = [{', '.join(map(_quoted, contract.archs))}]",
        f"alignment_bytes = {contract.alignment_bytes}",
        f"scale_positive = {str(contract.scale_positive).lower()}",
        f"grid_max = [{', '.join(map(str, contract.grid_max))}]",
        *([f"requires = [{', '.join(map(_quoted, contract.requires))}]"] if contract.requires else []),
    ]
    if contract.rule is not None:
        rule = contract.rule
        lines += ["", "[widths]", f"expression = {_quoted(rule.expression)}", f"d_multiple = {rule.d_multiple}",
                  f"dv_multiple = {rule.dv_multiple}", f"largest = {rule.largest}"]  # fmt: skip
    for instance in contract.instances:
        lines += ["", "[[instances]]", *_instance(instance)]
    return "\n".join(lines) + "\n"


def _quoted(text: str) -> str:
    return json.dumps(text, ensure_ascii=False)


def _parameter(p: Parameter, offset: int | None = None) -> str:
    parts = [] if offset is None else [f"offset = {offset}"]
    parts += [f"name = {_quoted(p.name)}", f"role = {_quoted(p.role)}", f"type = {_quoted(p.type)}"]
    if p.type == STRUCT:
        parts += [f"bytes = {p.size}", f"fields = [{', '.join(_parameter(f.parameter, f.offset) for f in p.fields)}]"]
    if p.box is not None:
        parts += [f"box = [{_quoted(p.box.columns)}, {_quoted(p.box.rows)}]", f"swizzle = {p.box.swizzle}"]
    if p.elements:
        parts.append(f"elements = {_quoted(p.elements)}")
    if p.value:
        number = p.value.lstrip("-").isdigit() or (IS_FLOAT.match(p.value) and "inf" not in p.value)
        parts.append(f"value = {p.value if number else _quoted(p.value)}")
    if p.fill is not None:
        parts.append(f"fill = {p.fill if math.isfinite(p.fill) else _quoted(str(p.fill))}")
    if p.layout != "bhsd":
        parts.append(f"layout = {_quoted(p.layout)}")
    if p.optional:
        parts.append("optional = true")
    return f"{{ {', '.join(parts)} }}"


def _instance(instance: Instance) -> list[str]:
    return [
        f"expression = {_quoted(instance.expression)}",
        f"dtype = {_quoted(instance.dtype)}",
        f"head_dim = {instance.head_dim}",
        *([f"value_dim = {instance.value_dim}"] if instance.value_dim != instance.head_dim else []),
        *([f"rows = {instance.rows}"] if instance.rows else []),
    ]
