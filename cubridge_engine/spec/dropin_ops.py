"""How ATen operators are written in the drop-in file: a table by schema name; what is not in it is called by its name.

Every writer gets the node's arguments as text, by schema name, and returns text. `infix` results are put in brackets
where they become operands.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

Texts = Mapping[str, Any]  # argument -> its text, a list of texts, or None
Writer = Callable[[Texts], str]
WRITERS: dict[str, Writer] = {}
INFIX = {
    "add": "+",
    "sub": "-",
    "mul": "*",
    "div": "/",
    "mm": "@",
    "bmm": "@",
    "eq": "==",
    "ne": "!=",
    "lt": "<",
    "le": "<=",
    "gt": ">",
    "ge": ">=",
    "bitwise_and": "&",
    "bitwise_or": "|",
    "pow": "**",
}
_METHODS = [
    "cos",
    "sin",
    "tan",
    "exp",
    "exp2",
    "log",
    "log2",
    "tanh",
    "sigmoid",
    "relu",
    "sqrt",
    "rsqrt",
    "abs",
    "floor",
    "ceil",
    "round",
    "erf",
    "isnan",
    "cumsum",
    "clamp",
    "logical_not",
    "reciprocal",
    "sign",
    "log1p",
]
_FUNCTIONAL = {"silu": "silu", "gelu": "gelu", "softplus": "softplus", "log_sigmoid": "logsigmoid"}


def writer(*names: str) -> Callable[[Writer], Writer]:
    """Register how operators of these schema names are written."""

    def register(fn: Writer) -> Writer:
        for name in names:
            WRITERS[name] = fn
        return fn

    return register


def listed(items: Any) -> str:
    """``1, 2, 3`` from a list of texts."""
    return ", ".join(items) if isinstance(items, list) else str(items)


def write(name: str, texts: Texts) -> str | None:
    """The text of a call; None where the table has no form for these arguments."""
    if name in INFIX and texts.get("alpha") in (None, "1") and not texts.get("rounding_mode"):
        left, right = (v for k, v in texts.items() if k not in ("alpha", "rounding_mode", "out_dtype", ""))
        return f"{left} {INFIX[name]} {right}"
    if name in _METHODS:
        own, *rest = [(k, v) for k, v in texts.items() if v is not None and k]
        return f"{own[1]}.{name}({', '.join(f'{k}={v}' for k, v in rest)})"
    if name in _FUNCTIONAL:
        return f"F.{_FUNCTIONAL[name]}({texts['self']})"
    return WRITERS[name](texts) if name in WRITERS else None


@writer("view", "_unsafe_view", "reshape")
def _view(t: Texts) -> str:
    return f"{t['self']}.reshape({listed(t['size'] if 'size' in t else t['shape'])})"


@writer("permute")
def _permute(t: Texts) -> str:
    return f"{t['self']}.permute({listed(t['dims'])})"


@writer("transpose")
def _transpose(t: Texts) -> str:
    return f"{t['self']}.transpose({t['dim0']}, {t['dim1']})"


@writer("expand")
def _expand(t: Texts) -> str:
    return f"{t['self']}.expand({listed(t['size'])})"


@writer("unsqueeze", "squeeze")
def _unsqueeze(t: Texts) -> str:
    name = "squeeze" if isinstance(t.get("dim"), list) else "unsqueeze"
    return f"{t['self']}.{name}(({listed(t['dim'])},))" if name == "squeeze" else f"{t['self']}.unsqueeze({t['dim']})"


@writer("clone", "contiguous")
def _clone(t: Texts) -> str:
    return f"{t['self']}.contiguous()"


@writer("neg")
def _neg(t: Texts) -> str:
    return f"-{t['self']}"


@writer("bitwise_not")
def _not(t: Texts) -> str:
    return f"~{t['self']}"


@writer("alias", "detach", "lift_fresh_copy")
def _same(t: Texts) -> str:
    return str(t["self"])


@writer("select")
def _select(t: Texts) -> str:
    return f"{t['self']}.select({t['dim']}, {t['index']})"


@writer("cat")
def _cat(t: Texts) -> str:
    tensors = listed(t["tensors"])
    one = isinstance(t["tensors"], list) and len(t["tensors"]) == 1
    return f"torch.cat(({tensors}{',' if one else ''}), dim={t['dim']})"


@writer("split_with_sizes")
def _split(t: Texts) -> str:
    return f"{t['self']}.split([{listed(t['split_sizes'])}], dim={t['dim']})"


@writer("where")
def _where(t: Texts) -> str:
    return f"torch.where({t['condition']}, {t['self']}, {t['other']})"


@writer("mean", "sum", "amax", "any", "all")
def _reduce(t: Texts) -> str:
    dims = t.get("dim")
    given = "" if dims is None else f"dim=({listed(dims)},)" if isinstance(dims, list) else f"dim={dims}"
    if t.get("keepdim") == "True":
        given += ", keepdim=True" if given else "keepdim=True"
    return f"{t['self']}.{t['']}({given})"


@writer("_softmax", "_log_softmax")
def _softmax(t: Texts) -> str:
    return f"torch.{str(t['']).strip('_')}({t['self']}, dim={t['dim']})"


@writer("linear")
def _linear(t: Texts) -> str:
    bias = "" if t.get("bias") is None else f", {t['bias']}"
    return f"F.linear({t['input']}, {t['weight']}{bias})"


@writer("embedding")
def _embedding(t: Texts) -> str:
    return f"F.embedding({t['indices']}, {t['weight']})"


@writer("_to_copy")
def _to_copy(t: Texts) -> str:
    return f"{t['self']}.to({t['dtype']})" if t.get("dtype") else f"{t['self']}.clone()"


@writer("arange")
def _arange(t: Texts) -> str:
    ends = [t[k] for k in ("start", "end") if t.get(k) not in (None, "0")]
    step = f", {t['step']}" if t.get("step") not in (None, "1") else ""
    if step and len(ends) == 1:
        ends = ["0", *ends]
    dtype = f", dtype={t['dtype']}" if t.get("dtype") else ""
    return f"torch.arange({', '.join(ends)}{step}{dtype}, device=device)"


@writer("full")
def _full(t: Texts) -> str:
    dtype = f", dtype={t['dtype']}" if t.get("dtype") else ""
    return f"torch.full(({listed(t['size'])},), {t['fill_value']}{dtype}, device=device)"


@writer("scalar_tensor")
def _scalar(t: Texts) -> str:
    dtype = f", dtype={t['dtype']}" if t.get("dtype") else ""
    return f"torch.tensor({t['s']}{dtype}, device=device)"
