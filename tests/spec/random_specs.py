"""Random attention functions as source text, each with the NumPy that says what it must mean.

A draw composes steps over the scores (scale, softcap, biases, slopes, where, sign, abs) and a condition over the
indices (window, causal, prefix, document, chunk, dilated, given as data; and, or, not), then writes them as people do.
Both sides are made from one tree, by two printers that share nothing but it.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
from hypothesis import strategies as st

Array = np.ndarray[Any, Any]
Env = Mapping[str, Any]


@dataclass(frozen=True)
class Piece:
    """A fragment: its torch text, its NumPy function of the index grids and operands, and the operands it needs.

    `operands` maps a name to the extents of its axes and its kind ('float', 'slope', 'bool', 'ids', 'length').
    """

    text: str
    value: Callable[[Env], Any]
    operands: tuple[tuple[str, str, str], ...] = ()


# name: (axes, kind, text of the read, NumPy of the read)
_READS: dict[str, tuple[str, str, str, Callable[[Env], Any]]] = {
    "slopes": ("H", "slope", "slopes[:, None, None]", lambda e: e["slopes"][e["h"]]),
    "bias": ("1 H Sq Sk", "float", "bias", lambda e: e["bias"][0, e["h"], e["i"], e["j"]]),
    "pair": ("B 1 Sq Sk", "float", "pair", lambda e: e["pair"][e["b"], 0, e["i"], e["j"]]),
    "shared": ("Sq Sk", "float", "shared", lambda e: e["shared"][e["i"], e["j"]]),
    "per_key": ("B Sk", "float", "per_key[:, None, None, :]", lambda e: e["per_key"][e["b"], e["j"]]),
    "per_row": ("B H Sq", "float", "per_row[..., None]", lambda e: e["per_row"][e["b"], e["h"], e["i"]]),
    "table": ("H 33", "float", "table[:, (j - i).clamp(-16, 16) + 16]",
              lambda e: e["table"][e["h"], np.clip(e["j"] - e["i"], -16, 16) + 16]),
    "ids": ("B Sk", "ids", "(ids[:, None, :q.shape[2], None] == ids[:, None, None, :])",
            lambda e: e["ids"][e["b"], e["i"]] == e["ids"][e["b"], e["j"]]),
    "keep": ("B 1 Sq Sk", "bool", "keep", lambda e: e["keep"][e["b"], 0, e["i"], e["j"]]),
    "alive": ("B Sk", "bool", "alive[:, None, None, :]", lambda e: e["alive"][e["b"], e["j"]]),
    "length": ("B", "length", "(j < length[:, None, None, None])", lambda e: e["j"] < e["length"][e["b"]]),
    "reach": ("H", "length", "(i - j < reach[:, None, None])", lambda e: e["i"] - e["j"] < e["reach"][e["h"]]),
}  # fmt: skip
FLOATS = ("bias", "pair", "shared", "per_key", "per_row", "table")
CONDITIONS = ("ids", "keep", "alive", "length", "reach")


def read(name: str) -> Piece:
    """The fragment that reads an operand."""
    axes, kind, text, value = _READS[name]
    return Piece(text, value, ((name, axes, kind),))


def _merge(*pieces: Piece) -> tuple[tuple[str, str, str], ...]:
    return tuple(dict.fromkeys(o for p in pieces for o in p.operands))


# ---- conditions -----------------------------------------------------------------------------------------------------

_widths = st.integers(1, 40)


def _of_width(text: str, value: Callable[[Env, int], Any]) -> st.SearchStrategy[Piece]:
    return _widths.map(lambda w: Piece(text.format(w=w, half=w // 2), lambda e: value(e, w)))


_index_conditions = st.one_of(
    st.just(Piece("(j <= i)", lambda e: e["j"] <= e["i"])),
    st.just(Piece("(i >= j)", lambda e: e["i"] >= e["j"])),
    st.just(Piece("(j <= i + (k.shape[2] - q.shape[2]))", lambda e: e["j"] <= e["i"] + e["Sk"] - e["Sq"])),
    _of_width("(i - j < {w})", lambda e, w: e["i"] - e["j"] < w),
    _of_width("(j > i - {w})", lambda e, w: e["j"] > e["i"] - w),
    _of_width("((i - j).abs() <= {w})", lambda e, w: abs(e["i"] - e["j"]) <= w),
    _of_width("(j < {w})", lambda e, w: e["j"] < w),
    _of_width("(i // {w} == j // {w})", lambda e, w: e["i"] // w == e["j"] // w),
    _of_width("(i // {w} >= j // {w})", lambda e, w: e["i"] // w >= e["j"] // w),
    _of_width("((i - j) % {w} == 0)", lambda e, w: (e["i"] - e["j"]) % w == 0),
    _of_width("((i + j) % ({w} + 1) != {half})", lambda e, w: (e["i"] + e["j"]) % (w + 1) != w // 2),
)
_data_conditions = st.sampled_from(CONDITIONS).map(read)


def _connect(op: str, a: Piece, b: Piece) -> Piece:
    both: Callable[[Any, Any], Any] = np.logical_and if op == "&" else np.logical_or
    return Piece(f"({a.text} {op} {b.text})", lambda e: both(a.value(e), b.value(e)), _merge(a, b))


def _negate(a: Piece) -> Piece:
    return Piece(f"(~{a.text})", lambda e: np.logical_not(a.value(e)), a.operands)


conditions: st.SearchStrategy[Piece] = st.recursive(
    st.one_of(_index_conditions, _index_conditions, _data_conditions),
    lambda inner: st.one_of(
        st.builds(_connect, st.sampled_from("&|"), inner, inner),
        inner.map(_negate),
    ),
    max_leaves=4,
)

# ---- scores ---------------------------------------------------------------------------------------------------------

_numbers = st.sampled_from([0.125, 0.25, 0.5, 1.5, 2.0, 3.0])
Step = Callable[[Piece], Piece]


def _unary(text: str, value: Callable[[Any], Any]) -> Step:
    return lambda s: Piece(text.format(s=s.text), lambda e: value(s.value(e)), s.operands)


def _scale(c: float) -> Step:
    return _unary("({s} * " + str(c) + ")", lambda x: x * c)


def _softcap(c: float) -> Step:
    return _unary(f"({c} * torch.tanh({{s}} / {c}))", lambda x: c * np.tanh(x / c))


def _plus(other: Piece, sign: str) -> Step:
    def step(s: Piece) -> Piece:
        def value(e: Env) -> Any:
            return s.value(e) + other.value(e) if sign == "+" else s.value(e) - other.value(e)

        return Piece(f"({s.text} {sign} {other.text})", value, _merge(s, other))

    return step


def _slope(kind: str) -> Step:
    text, distance = {
        "signed": ("(j - i)", lambda e: e["j"] - e["i"]),
        "absolute": ("-(i - j).abs()", lambda e: -abs(e["i"] - e["j"])),
        "key": ("j", lambda e: e["j"]),
    }[kind]
    slopes = read("slopes")
    term = Piece(f"{slopes.text} * {text}", lambda e: slopes.value(e) * distance(e), slopes.operands)
    return _plus(term, "+")


def _where(condition: Piece, c: float) -> Step:
    def step(s: Piece) -> Piece:
        return Piece(
            f"torch.where({condition.text}, {s.text}, {s.text} * {c})",
            lambda e: np.where(condition.value(e), s.value(e), s.value(e) * c),
            _merge(condition, s),
        )

    return step


steps: st.SearchStrategy[Step] = st.one_of(
    _numbers.map(_scale),
    _numbers.map(_softcap),
    st.sampled_from(["signed", "absolute", "key"]).map(_slope),
    st.builds(_plus, st.sampled_from(FLOATS).map(read), st.sampled_from("+-")),
    st.builds(_where, _index_conditions, _numbers),
    st.just(_unary("{s}.abs()", np.abs)),
    st.just(_unary("({s} + torch.sign({s}))", lambda x: x + np.sign(x))),
    st.just(_unary("({s} * {s} / 8)", lambda x: x * x / 8)),
)

# ---- whole functions ------------------------------------------------------------------------------------------------

# How a condition that must hold reaches the scores: the statement, and the value of a masked score.
SPELLINGS: dict[str, tuple[str, float]] = {
    "masked_fill": ("s = s.masked_fill(~{m}, float('-inf'))", -np.inf),
    "where": ("s = torch.where({m}, s, -torch.inf)", -np.inf),
    "in place": ("s = s.masked_fill_({m} == False, -math.inf)", -np.inf),
    "added": ("s = s + torch.zeros_like(s).masked_fill(~{m}, float('-inf'))", -np.inf),
    "added where": ("s = s + torch.where({m}, 0.0, -torch.inf)", -np.inf),
    "sentinel": ("s = torch.where({m}, s, -10000.0)", -10000.0),
    "sdpa": ("", -np.inf),  # the condition is its attn_mask
    "least": ("s = s.masked_fill(torch.logical_not({m}), torch.finfo(s.dtype).min)", float(np.finfo("float32").min)),
}
_SOFTMAX = {
    "method": "s.softmax(-1) @ v",
    "function": "F.softmax(s, dim=-1) @ v",
    "einsum": "torch.einsum('bhij,bhjd->bhid', torch.softmax(s, dim=-1), v)",
}
_GROUPS = {
    "none": "",
    "interleave": "    k, v = (t.repeat_interleave(q.shape[1] // t.shape[1], 1) for t in (k, v))\n",
    "expand": (
        "    k, v = (t[:, :, None].expand(-1, -1, q.shape[1] // t.shape[1], -1, -1).flatten(1, 2) for t in (k, v))\n"
    ),
}
_TRANSPOSE = "    q, k, v = (t.transpose(1, 2) for t in (q, k, v))\n"


@dataclass(frozen=True)
class RandomSpec:
    """A drawn function. `score` is over the raw products `s` of the environment; `mask` may be None."""

    score: Piece
    mask: Piece | None
    spelling: str
    groups: str
    softmax: str
    sequence_first: bool

    @property
    def operands(self) -> dict[str, tuple[str, str]]:
        """Axes and kind of each operand."""
        used = _merge(self.score, self.mask) if self.mask is not None else self.score.operands
        return {name: (axes, kind) for name, axes, kind in used}

    @property
    def fill(self) -> float:
        """The value of a masked score."""
        return SPELLINGS[self.spelling][1]

    def text(self) -> str:
        """The spec file."""
        names = ["q", "k", "v", *self.operands]
        sdpa = self.spelling == "sdpa"
        lines = [
            "import math\nimport torch\nimport torch.nn.functional as F\n\n\n",
            f"def attention({', '.join(names)}):\n",
            _TRANSPOSE if self.sequence_first else "",
            _GROUPS[self.groups],
            "    i = torch.arange(q.shape[2])[:, None]\n    j = torch.arange(k.shape[2])\n",
        ]
        if sdpa:
            assert self.mask is not None
            lines.append(f"    o = F.scaled_dot_product_attention(q, k, v, attn_mask={self.mask.text}, scale=0.25)\n")
        else:
            lines.append("    s = q @ k.transpose(-1, -2)\n")
            lines.append(f"    s = {self.score.text}\n")
            if self.mask is not None:
                lines.append("    " + SPELLINGS[self.spelling][0].format(m=self.mask.text) + "\n")
            lines.append(f"    o = {_SOFTMAX[self.softmax]}\n")
        lines.append("    return o.transpose(1, 2)\n" if self.sequence_first else "    return o\n")
        return "".join(lines)


_S = Piece("s", lambda e: e["s"])


@st.composite
def random_specs(draw: st.DrawFn) -> RandomSpec:
    """A function of up to three score steps and a condition of up to four parts, in one of the usual spellings."""
    mask = draw(st.one_of(st.none(), conditions, conditions, conditions))
    groups, softmax = draw(st.sampled_from(sorted(_GROUPS))), draw(st.sampled_from(sorted(_SOFTMAX)))
    sequence_first = draw(st.booleans())
    if mask is not None and mask.operands and draw(st.integers(0, 5)) == 0:
        score = Piece("s * 0.25", lambda e: e["s"] * 0.25)
        return RandomSpec(score, mask, "sdpa", groups, softmax, sequence_first)
    score = draw(_numbers.map(_scale))(_S)
    for step in draw(st.lists(steps, max_size=3)):
        score = step(score)
    spelling = draw(st.sampled_from(sorted(set(SPELLINGS) - {"sdpa"})))
    return RandomSpec(score, mask, spelling, groups, softmax, sequence_first)


def draw_operand(kind: str, shape: tuple[int, ...], longest: int, generator: np.random.Generator) -> Array:
    """Values of an operand of that kind; a bool mask keeps the first key."""
    if kind == "bool":
        keep = generator.random(shape) < 0.7
        keep[..., 0] = True
        return keep
    if kind == "ids":
        return np.sort(generator.integers(0, 4, shape), axis=-1)
    if kind == "length":
        return generator.integers(1, longest + 1, shape)
    values = generator.standard_normal(shape).astype(np.float32)
    return np.abs(values) + np.float32(0.05) if kind == "slope" else values


def expected(spec: RandomSpec, q: Array, k: Array, v: Array, operands: Mapping[str, Array]) -> Array:
    """The output [B, H, Sq, D] in float64, by brute force over [B, H, Sq, Sk]; NaN on rows without a key."""
    q, k, v = (x.astype(np.float64) for x in (q, k, v))
    groups = q.shape[1] // k.shape[1]
    k, v = (np.repeat(x, groups, axis=1) for x in (k, v))
    sizes = {"B": q.shape[0], "H": q.shape[1], "Sq": q.shape[2], "Sk": k.shape[2]}
    grids = np.meshgrid(*(np.arange(n) for n in sizes.values()), indexing="ij", sparse=True)
    env: dict[str, Any] = {**sizes, **dict(zip("bhij", grids, strict=True))}
    env |= {n: x.astype(np.float64) if x.dtype.kind == "f" else x for n, x in operands.items()}
    env["s"] = q @ np.swapaxes(k, -1, -2)
    x = np.broadcast_to(spec.score.value(env), env["s"].shape)
    if spec.mask is not None:
        x = np.where(np.broadcast_to(spec.mask.value(env), x.shape), x, spec.fill)
    with np.errstate(all="ignore"):
        p = np.exp(x - x.max(-1, keepdims=True))
        return (p / p.sum(-1, keepdims=True)) @ v
