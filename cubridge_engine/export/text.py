"""The text of an exported module: what is particular to the kernel first, then its source, then the machinery."""

from __future__ import annotations

import re
import textwrap
from collections.abc import Sequence

from ..compile import Instance, Parameter
from ..compile.contract import ELEMENT_NAMES
from ..compile.prelude import DEFINES
from ..lower.header import CONDITION
from .parts import IMPORTS, machinery
from .plan import Plan

LOG2E = "math.log2(math.e)"
_AXES = {"b": 0, "h": 1, "row": 2, "col": 3}
_SIZES = frozenset(("B", "H", "Hkv", "Sq", "Sk", "D", "Dv"))
_DTYPES = {"float*": "float32", "half*": "float16", "bfloat16*": "bfloat16", "int32*": "int32", "int64*": "int64"}
_DTYPES["bool*"] = "bool"
_PYTHON = {"float32": "float", "int32": "int", "int64": "int"}


def module_text(plan: Plan) -> str:
    """The module, whole: it needs torch, NVRTC and the driver's library, and nothing else."""
    own = [_public(plan), _check(plan), _forward(plan), _arguments(plan), _constants(plan)]
    used = any("math." in piece for piece in own)
    pieces = [
        _docstring(plan),
        IMPORTS if used else IMPORTS.replace("import math\n", ""),
        *own,
        f"# {'-' * 40} the same in every exported module {'-' * 40}",
        machinery(),
        _registration(plan),
    ]
    return "\n\n\n".join(piece.strip("\n") for piece in pieces) + "\n"


# ---- signature


def tensors_in_order(plan: Plan) -> list[str]:
    """The tensors that the operator takes, in the order in which a drop-in passes them."""
    if not plan.order:
        return ["q", "k", "v", *(extra.name for extra in plan.extras)]
    made = [e for e in plan.extras if not e.what.endswith("of the spec")]
    spec = iter([e for e in plan.extras if e not in made])
    roles = {"q", "k", "v"}
    found: list[str] = []
    for name in plan.order:
        if name in roles:
            roles.discard(name)
            found.append(name)
        elif (extra := next(spec, None)) is not None:
            found.append(extra.name)
    return [*found, *sorted(roles), *(e.name for e in spec), *(e.name for e in made)]


def _numbers(plan: Plan) -> list[tuple[str, str]]:
    """(name, type in Python and in the schema) of the operator's numbers."""
    found = [(n.name, _PYTHON[n.type]) for n in plan.numbers]
    return [*found, *([("scale", "float")] if plan.scale else []), *([("causal", "bool")] if plan.causal else [])]


def _all(plan: Plan) -> list[str]:
    return [*tensors_in_order(plan), *(name for name, _ in _numbers(plan))]


def _public(plan: Plan) -> str:
    tensors = tensors_in_order(plan)
    options = [n.name for n in plan.numbers]
    options += ["scale=None"] if plan.scale else []
    options += ["causal=False"] if plan.causal else []
    options += ["return_lse=False"] if plan.lse else []
    given = [*tensors, *(n.name for n in plan.numbers)]
    given += ["q.shape[-1] ** -0.5 if scale is None else scale"] if plan.scale else []
    given += ["causal"] if plan.causal else []
    lines = [
        f"def {plan.name}({', '.join([*tensors, *(['*', *options] if options else [])])}):",
        f'    """{_sentence(plan)}',
        "",
        *([f"    {plan.contract.summary}.", ""] if plan.contract.summary else []),
        *(f"    {line}" for line in _tensor_lines(plan)),
        *(f"    {n.name}: {_PYTHON[n.type]}, as the kernel takes it." for n in plan.numbers),
        *(["    scale: factor of the scores, 1 / sqrt(D) where it is None."] if plan.scale else []),
        *(["    causal: query i sees keys j <= i + Sk - Sq."] if plan.causal else []),
        *([f"    return_lse: (o, LSE [B, H, Sq], float32, {plan.contract.lse}) in place of o."] if plan.lse else []),
        "    Raises ValueError for what the kernel cannot read, RuntimeError for a device it is not written for.",
        '    """',
    ]
    call = f"torch.ops.cubridge.{plan.name}({', '.join(given)})"
    if plan.lse:
        lines += [f"    o, lse = {call}", "    return (o, lse) if return_lse else o"]
    else:
        lines += [f"    return {call}"]
    return "\n".join(lines)


def _sentence(plan: Plan) -> str:
    return f"The attention of {plan.spec}: o [B, H, Sq, Dv]." if plan.adapted else "Attention: o [B, H, Sq, Dv]."


def _tensor_lines(plan: Plan) -> list[str]:
    dtypes = ", ".join(dict.fromkeys(i.dtype for i in plan.instances))
    kv = f"[pages, Hkv, {plan.page}, {{}}], the caches" if plan.page else "[B, Hkv, Sk, {}]"
    by_name = {extra.name: extra for extra in plan.extras}
    lines: list[str] = []
    for name in tensors_in_order(plan):
        if name in by_name:
            extra = by_name[name]
            axes = ", ".join("any" if a is None else a for a in extra.axes)
            lines.append(f"{name}: [{axes}], {_DTYPES.get(extra.type, 'as q')}: {extra.what}.")
        else:
            shape = "[B, H, Sq, D]" if name == "q" else kv.format("D" if name == "k" else "Dv")
            lines.append(f"{name}: {shape}, {dtypes}.")
    unit = plan.contract.alignment_bytes
    return [*lines, f"Any strides, but rows are contiguous and begin at multiples of {unit} bytes."]


# ---- checks


def _extent(text: str | None) -> str:
    return "None" if text is None else text


def _dtype(kind: str) -> str:
    return f"torch.{_DTYPES[kind]}" if kind in _DTYPES else "q.dtype"


def _with_sizes(plan: Plan, lines: Sequence[str], own: int = 0) -> list[str]:
    """`lines` with the sizes that they use, in front or before line `own`."""
    text = "\n".join(lines)
    keys = f"{plan.table}.shape[1] * {plan.page}" if plan.page else "k.shape[2]"
    values = {"Hkv": "k.shape[1]", "Dv": "v.shape[3]", "Sk": keys, "element_bytes": "q.element_size()"}
    used = [f"{name} = {value}" for name, value in values.items() if re.search(rf"\b{name}\b(?! ?=)", text)]
    return [*lines[:own], "B, H, Sq, D = q.shape", *used, *lines[own:]]


def _check(plan: Plan) -> str:
    lines = [
        'require(q.dim() == 4, "dimensions of q", "4: [B, H, Sq, D]", q.dim())',
        'require(k.dim() == 4, "dimensions of k", 4, k.dim())',
        'require(v.dim() == 4, "dimensions of v", 4, v.dim())',
        *([f'require({plan.table}.dim() == 2, "dimensions of {plan.table}", 2, {plan.table}.dim())'] * bool(plan.page)),
        'require(q.dtype in DTYPES, "dtype of q", " or ".join(map(str, DTYPES)), q.dtype)',
        "instance(q.dtype, D, Dv)",
        *_kv_checks(plan),
        _heads(plan),
        *(_condition(text) for text in plan.requires),
        *(
            f'check_tensor("{e.name}", {e.name}, ({", ".join(map(_extent, e.axes))},), {_dtype(e.type)}, q.device)'
            for e in plan.extras
        ),
        *(['require(scale > 0, "scale", "a positive number", scale)'] if _positive(plan) else []),
    ]
    return "\n".join(
        [
            f"def check({', '.join(_all(plan))}):",
            '    """What does not depend on addresses and strides. Raises ValueError."""',
            *(f"    {line}" for line in _with_sizes(plan, lines, 3 + bool(plan.page))),
        ]
    )


def _condition(text: str) -> str:
    """A condition of the spec on sizes as a check."""
    match = CONDITION.match(text)
    assert match is not None, "a header has no others"
    names = [name for name in (match["a"], match["b"]) if not name.isdigit()]
    got = ", ".join(f"{name} = {{{name}}}" for name in names)
    return f'require({text}, "sizes", "{text}", f"{got}")'


def _positive(plan: Plan) -> bool:
    return plan.scale and plan.contract.scale_positive


def _heads(plan: Plan) -> str:
    if plan.contract.gqa:
        return 'require(Hkv > 0 and H % Hkv == 0, "heads of k", f"a divisor of {H}", Hkv)'
    return 'require(Hkv == H, "heads of k", H, Hkv)'


def _kv_checks(plan: Plan) -> list[str]:
    if plan.page:
        return [
            f'check_tensor("k", k, (None, None, {plan.page}, D), q.dtype, q.device)',
            f'check_tensor("v", v, (k.shape[0], Hkv, {plan.page}, None), q.dtype, q.device)',
        ]
    return [
        'check_tensor("k", k, (B, None, None, D), q.dtype, q.device)',
        'check_tensor("v", v, (B, Hkv, Sk, None), q.dtype, q.device)',
    ]


# ---- the call


def _forward(plan: Plan) -> str:
    contract, given = plan.contract, ", ".join(_all(plan))
    x, y, z = contract.grid
    checks = [
        f"check({given})",
        *(f'check_rows("{role}", {role}, {contract.alignment_bytes})' for role in "qkv"),
        *(f'check_steps("{e.name}", {e.name}, {e.dense!r})' for e in plan.extras if e.dense),
        'require(q.is_cuda, "device of q", "a CUDA device", q.device)',
    ]
    lines = [
        *checks,
        f"result = outputs(q, Dv, {_has_lse(plan)})",
        f"grid = ({x}, {y}, {z})",
        f"check_grid(grid, {contract.grid_max!r})",
        "if 0 not in grid:",
        f"    given = arguments(*result{'' if _has_lse(plan) else ', None'}, {given})",
        f"    shared = {contract.dynamic_shared_bytes}",
        f"    KERNELS.launch(q.device.index, instance(q.dtype, D, Dv), grid, {contract.block!r}, shared, given)",
        f"return result{'' if plan.lse else '[0]'}",
    ]
    fake = [f"check({given})", f"return outputs(q, v.shape[3], {plan.lse}){'' if plan.lse else '[0]'}"]
    return "\n".join(
        [
            f"def forward({given}):",
            f'    """Check, allocate, launch: {"(o, LSE)" if plan.lse else "o"}."""',
            *(f"    {line}" for line in _with_sizes(plan, lines, len(checks))),
            "",
            "",
            f"def fake({given}):",
            '    """The shapes of the result, for torch.compile."""',
            *(f"    {line}" for line in fake),
        ]
    )


def _has_lse(plan: Plan) -> bool:
    return any(p.role == "lse" for p in plan.contract.parameters)


def _arguments(plan: Plan) -> str:
    given = ", ".join(_all(plan))
    rows = [(_argument(plan, p), p.name) for p in plan.contract.parameters]
    width = min(max(len(text) for text, _ in rows), 96)
    values = ["return [", *(f"    {text + ',':<{width + 1}}  # {name}" for text, name in rows), "]"]
    return "\n".join(
        [
            f"def arguments(o, lse, {given}):",
            '    """The kernel\'s arguments in order."""',
            *(f"    {line}" for line in _with_sizes(plan, values)),
        ]
    )


def _argument(plan: Plan, p: Parameter) -> str:
    by_param = {extra.param: extra for extra in plan.extras}
    if p.box is not None:
        return f"tensor_map({p.role}, {p.box.columns}, {p.box.rows}, {p.box.swizzle}, q)"
    if p.role == "workspace":
        dtype = f"torch.{_DTYPES.get(p.type, 'float32')}"
        return f'pointer(KERNELS.workspace("{p.name}", {p.elements}, {dtype}, q.device.index))'
    if p.name in by_param:
        return f"pointer({by_param[p.name].name})"
    if p.is_pointer:
        return f"pointer({p.role})"
    return _wrapped(p, _number(plan, p))


def _wrapped(p: Parameter, text: str) -> str:
    return f'{p.type}("{p.name}", {text})'


def _number(plan: Plan, p: Parameter) -> str:
    """The value of a number, as Python over the function's names."""
    owners = {s: (e.name, axis) for e in plan.extras for s, axis in e.strides.items()}
    if p.name in owners:
        name, axis = owners[p.name]
        return f"{name}.stride({axis})"
    if p.name in plan.values:
        return repr(plan.values[p.name])
    if p.role in ("scale", "scale_log2"):
        if plan.scales:
            return "SCALES[D]"
        return "scale" if p.role == "scale" else f"scale * {LOG2E}"
    if p.role.startswith("stride:"):
        owner, _, axis = p.role.removeprefix("stride:").rpartition(".")
        return f"stride({owner}, {_AXES[axis]})"
    if p.role == "flag:causal":
        return "int(causal)" if plan.causal else "0"
    if p.role == "group":
        return "H // Hkv"
    return p.role if p.role in _SIZES else p.name


# ---- constants


def _constants(plan: Plan) -> str:
    rule = plan.contract.rule if not plan.adapted else None
    dtypes = ", ".join(f"torch.{d}" for d in dict.fromkeys(i.dtype for i in plan.instances))
    have = ", ".join(dict.fromkeys(_widths_text(i) for i in plan.instances))
    lines = [
        f"DTYPES = [{dtypes}]",
        "INSTANCES = {  # (dtype, D, Dv) -> the C++ name",
        *(f'    (torch.{i.dtype}, {i.head_dim}, {i.value_dim}): "{i.expression}",' for i in plan.instances),
        "}",
    ]
    if plan.scales:
        scale = next(p.name for p in plan.contract.parameters if p.role in ("scale", "scale_log2"))
        lines.append(f"SCALES = {dict(plan.scales)!r}  # {scale} by head dimension, as it was adapted")
    lines += ["", "", *_instance_function(plan, have, rule is not None)]
    return "\n".join(lines)


def _widths_text(i: Instance) -> str:
    return str(i.head_dim) if i.head_dim == i.value_dim else f"{i.head_dim} (values of {i.value_dim})"


def _instance_function(plan: Plan, have: str, ruled: bool) -> list[str]:
    lines = [
        "def instance(dtype, D, Dv):",
        '    """The C++ name of the instantiation. Raises ValueError where there is none."""',
        "    name = INSTANCES.get((dtype, D, Dv))",
    ]
    if ruled:
        rule = plan.contract.rule
        assert rule is not None
        have = f"multiples of {rule.d_multiple} (values: of {rule.dv_multiple}) up to {rule.largest}"
        named = "T=ELEMENTS[dtype], " if "{T}" in rule.expression else ""
        lines = [
            *([f"ELEMENTS = {{{', '.join(_elements(plan))}}}", "", ""] if named else []),
            *lines,
            f"    multiples = D % {rule.d_multiple} == Dv % {rule.dv_multiple} == 0",
            f"    fits = multiples and 0 < min(D, Dv) and max(D, Dv) <= {rule.largest}",
            "    if name is None and fits:",
            f'        name = "{rule.expression}".format({named}D=D, Dv=Dv)',
        ]
    return [
        *lines,
        '    got = D if D == Dv else f"{D} (values of {Dv})"',
        f'    require(name is not None, "head dimension", "{have}", got)',
        "    return name",
    ]


def _elements(plan: Plan) -> list[str]:
    return [f'torch.{d}: "{ELEMENT_NAMES[d]}"' for d in dict.fromkeys(i.dtype for i in plan.instances)]


def _literal(text: str) -> str:
    """A string as the source of Python: raw and readable where that is possible."""
    if '"""' in text or text.endswith(('"', "\\")) or "\r" in text or "\0" in text:
        return "(\n" + "".join(f"    {line!r}\n" for line in text.splitlines(keepends=True)) + ")"
    return f'r"""{text}"""'


def _registration(plan: Plan) -> str:
    tensors = [f"Tensor {name}" for name in tensors_in_order(plan)]
    schema = ", ".join([*tensors, *(f"{kind} {name}" for name, kind in _numbers(plan))])
    archs = ", ".join(f'"{a}"' for a in plan.contract.archs)
    headers = "".join(f"    {name!r}: {_literal(text)},\n" for name, text in plan.sources.headers.items())
    returns = "(Tensor, Tensor)" if plan.lse else "Tensor"
    return "\n".join(
        [
            "# ---- the kernel",
            f"DEFINES = {DEFINES!r}  # what nvcc's <math.h> defines and NVRTC does not",
            "HEADERS: dict[str, str] = {" + (f"\n{headers}" if headers else "") + "}",
            f"SOURCE = {_literal(plan.sources.text)}",
            "",
            f'OPERATOR = "cubridge::{plan.name}"',
            f"KERNELS = CompiledKernels(OPERATOR, SOURCE, HEADERS, ({archs},))",
            f'register(OPERATOR, "({schema}) -> {returns}", SOURCE, forward, fake)',
        ]
    )


def _docstring(plan: Plan) -> str:
    c = plan.contract
    about = (
        "Written by `cubridge export`; it needs torch with CUDA, and NVRTC, which comes with it. The kernel is "
        f"compiled for the device at hand ({', '.join(c.archs)}) when it is first called, which takes seconds, and "
        "kept in ~/.cache/cubridge. It is launched on the current stream. torch.compile sees one operator, "
        f"torch.ops.cubridge.{plan.name}; CUDA graphs work once it was called before the capture. Forward only: "
        "backward raises an error."
    )
    if plan.adapted:
        about += f" A drop-in that `cubridge adapt` wrote takes it as it is: `kernel={plan.name}`."
    return "\n".join(
        [
            f'"""{plan.name}: {c.name}{f", adapted to {plan.spec}," if plan.adapted else ""} as a PyTorch operator.',
            "",
            f"    from {plan.name} import {plan.name}",
            f"    o = {plan.name}({', '.join(tensors_in_order(plan))})",
            "",
            *textwrap.wrap(about, 110, break_on_hyphens=False),
            '"""',
        ]
    )


__all__: Sequence[str] = ("module_text", "tensors_in_order")
