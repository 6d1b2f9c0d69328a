"""What an `Attention` is called among people: one line such as ``causal window 4096, softcap 50, GQA 32 on 8 heads``.

Recognised by form, never by names: comparisons are brought to a sum of indices that is at most 0. What is not
recognised is shown as its formula where that is short.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Mapping

from ..ir.evaluate import evaluate
from ..ir.expr import TRUE, Call, Const, Expr, I, J, Read, Var, free_vars, walk
from ..ir.simplify import linear_terms
from ..ir.text_expr import print_expr
from .attention import Attention
from .nodes import factors, terms

_SHORT = 44  # a longer formula is not for one line
_PAST = {Var("Sq"): 1, Var("Sk"): -1}  # what bottom-right alignment adds to i - j


def one_line(attention: Attention, sizes: Mapping[str, int] | None = None) -> str:
    """The mask, the score, the normaliser and the heads in a few words. `sizes` are the example's, for head counts."""
    parts = [
        *mask_words(attention.mask),
        *score_words(_inside(attention), attention.specialised.get("D")),
        *_weight_words(attention),
        *_head_words(attention, sizes or {}),
    ]
    if any(o.role == "lse" for o in attention.outputs):
        parts.append("returns LSE")
    return ", ".join(parts if mask_words(attention.mask) else ["full attention", *parts])


# masks -------------------------------------------------------------------------------------------------------------
def mask_words(mask: Expr | None) -> list[str]:
    """Words for each condition of a mask; causal and window are one."""
    if mask is None or mask == TRUE:
        return []
    words = [_condition(c) for c in _split(mask, "and")]
    causal = next((w for w in words if w.startswith("causal") and "window" not in w), None)
    window = next((w for w in words if re.fullmatch(r"window \d+( \(bottom-right\))?", w)), None)
    if causal and window:
        aligned = " (bottom-right)" if "bottom-right" in causal else ""
        joined = f"causal {window.removesuffix(' (bottom-right)')}{aligned}"
        words = [joined if w == causal else w for w in words if w != window]
    if causal and "bottom-right" in causal:  # said once
        words = [words[0], *(w.replace(" (bottom-right)", "") for w in words[1:])]
    return words


def _split(expr: Expr, op: str) -> list[Expr]:
    if isinstance(expr, Call) and expr.op == op:
        return [part for arg in expr.args for part in _split(arg, op)]
    return [expr]


def _condition(expr: Expr) -> str:
    alternatives = _split(expr, "or")
    if len(alternatives) > 1:
        return _alternatives(alternatives, expr)
    if not isinstance(expr, Call):
        return f"mask tensor {expr.tensor}" if isinstance(expr, Read) else print_expr(expr)
    if expr.op == "eq":
        return _equal(expr) or _formula(expr)
    bounded = _at_most_zero(expr)
    return (_bound(*bounded) if bounded else "") or _formula(expr)


def _alternatives(parts: list[Expr], whole: Expr) -> str:
    if any(len(_split(c, "or")) > 1 for part in parts for c in _split(part, "and")):
        return _formula(whole)
    words = [", ".join(mask_words(part)) for part in parts]
    first = next((w for w in words if w.startswith("first ")), None)
    rest = [w for w in words if w != first]
    if first and rest and all(w.startswith("causal") for w in rest) and "window" not in rest[0]:
        count = first.removeprefix("first ").removesuffix(" keys")
        return f"prefix {count}, then {' or '.join(rest)}"
    text = " or ".join([*rest, *([first] if first else [])])
    return text if len(text) <= 2 * _SHORT else _formula(whole)


def _formula(expr: Expr) -> str:
    text = print_expr(expr)
    if len(text) <= _SHORT:
        return text
    read = sorted({e.tensor for e in walk(expr) if isinstance(e, Read)})
    return f"a mask of its own over {', '.join(read)}" if read else "a mask of its own"


def _equal(expr: Call) -> str:
    a, b = expr.args
    if _swapped(a) == b or _swapped(b) == a:
        if isinstance(a, Call) and a.op == "floordiv" and isinstance(a.args[1], Const):
            return f"chunks of {a.args[1].value}"
        if isinstance(a, Read):
            return f"documents by {a.tensor}"
    if isinstance(a, Call) and a.op == "mod" and b == Const(0) and isinstance(a.args[1], Const):
        inner = a.args[0].args[0] if isinstance(a.args[0], Call) and a.args[0].op == "abs" else a.args[0]
        if _difference(linear_terms(inner, None)[0]):
            return f"every {_ordinal(int(a.args[1].value))} key"
    return ""


def _ordinal(n: int) -> str:
    return f"{n}{ {2: 'nd', 3: 'rd'}.get(n, 'th') }".replace(" ", "")


def _swapped(expr: Expr) -> Expr | None:
    """`expr` with j for i; None where it has no i."""
    if I not in walk(expr) or J in walk(expr):
        return None
    return _replace(expr)


def _replace(expr: Expr) -> Expr:
    if expr == I:
        return J
    if isinstance(expr, Call):
        return Call(expr.op, tuple(_replace(a) for a in expr.args))
    return Read(expr.tensor, tuple(_replace(a) for a in expr.index)) if isinstance(expr, Read) else expr


Linear = dict[Expr, int]


def _at_most_zero(expr: Call) -> tuple[Linear, int] | None:
    """A comparison of integers as terms and a constant whose sum is at most 0; None for anything else."""
    if expr.op not in ("lt", "le", "gt", "ge"):
        return None
    low, high = expr.args if expr.op in ("lt", "le") else reversed(expr.args)
    total, constant = linear_terms(low, None)
    other, minus = linear_terms(high, None)
    combined = dict(total)
    for atom, factor in other.items():
        combined[atom] = combined.get(atom, 0) - factor
    strict = 1 if expr.op in ("lt", "gt") else 0
    return {a: f for a, f in combined.items() if f}, constant - minus + strict


def _difference(found: Mapping[Expr, int]) -> str:
    """'j - i' or 'i - j' where the terms are that, sizes of bottom-right alignment aside; else ''."""
    signs = (found.get(I, 0), found.get(J, 0))
    rest = {a for a in found if a not in (I, J)}
    if rest - {Var("Sq"), Var("Sk")}:
        return ""
    return {(-1, 1): "j - i", (1, -1): "i - j"}.get(signs, "")


def _keys(count: int) -> str:
    return f"{count} key" if count == 1 else f"{count} keys"


def _bound(found: Linear, constant: int) -> str:
    rest = {a: f for a, f in found.items() if a not in (I, J)}
    kind = _difference(found)
    sign = 1 if kind == "j - i" else -1
    if kind and rest in ({}, {a: sign * f for a, f in _PAST.items()}):
        aligned = " (bottom-right)" if rest else ""
        if kind == "i - j":
            return f"window {1 - constant}{aligned}"
        if constant == 0:
            return f"causal{aligned}"
        reach = f"at most {_keys(-constant)} ahead" if constant < 0 else f"at least {_keys(constant)} behind"
        return f"{reach}{aligned}"
    if len(found) == 1:
        atom, factor = next(iter(found.items()))
        if atom == J:
            return f"first {1 - constant} keys" if factor == 1 else f"keys from {constant} on"
        if isinstance(atom, Call) and atom.op == "abs" and factor == 1 and _difference(linear_terms(atom.args[0])[0]):
            return f"window {-constant} to either side"
    if found.get(J) == 1 and len(rest) == 1 and I not in found:
        bound = next(iter(rest))
        if isinstance(bound, Read) and constant == 1:
            return f"key lengths {bound.tensor}" if I not in walk(bound) else f"keys before {bound.tensor}"
    return ""


# scores ------------------------------------------------------------------------------------------------------------
def score_words(score: Expr, d: int | None) -> list[str]:
    """Softcap, biases, and a scale that is not 1 / sqrt(D)."""
    words: list[str] = []
    capped = _softcap(score)
    if capped is not None:
        score, cap = capped
        words.append(f"softcap {cap:g}")
    added: list[str] = []
    for _, term in terms(score):
        if "s" in free_vars(term):
            inner = _softcap(term)
            words += [f"softcap {inner[1]:g}"] if inner else []
            added += _scale(inner[0] if inner else term, d)
        elif not isinstance(term, Const):
            added.append(_bias(term))
    return [*words, *dict.fromkeys(added)]


def _softcap(expr: Expr) -> tuple[Expr, float] | None:
    """(x, c) of ``c * tanh(x / c)``."""
    over, under = factors(expr)
    caps = [f for f in over if isinstance(f, Call) and f.op == "tanh"]
    numbers = [f for f in over if isinstance(f, Const)]
    if len(caps) != 1 or len(numbers) != 1 or len(over) != 2 or under:
        return None
    cap = float(numbers[0].value)
    top, bottom = factors(caps[0].args[0])
    own = next((f for f in bottom if isinstance(f, Const) and math.isclose(float(f.value), cap)), None)
    if own is None:  # the cap is a part of the scale
        return Call("mul", (caps[0].args[0], Const(cap))), cap
    bottom.remove(own)
    return _product(top, bottom), cap


def _product(over: list[Expr], under: list[Expr]) -> Expr:
    result: Expr | None = None
    for f in over:
        result = f if result is None else Call("mul", (result, f))
    result = result if result is not None else Const(1.0)
    for f in under:
        result = Call("div", (result, f))
    return result


def _scale(term: Expr, d: int | None) -> list[str]:
    over, under = factors(term)
    if Var("s") not in over:
        return ["a score of its own"]
    others = [f for f in (*over, *under) if f != Var("s")]
    read = sorted({e.tensor for f in others for e in walk(f) if isinstance(e, Read)})
    if read:
        return [f"temperature {', '.join(read)}"]
    if any(isinstance(f, Call) and f.op in ("pow", "exp", "exp2") and {"i", "j"} <= free_vars(f) for f in others):
        return ["decay by i - j"]
    if any(free_vars(f) & {"b", "h", "i", "j"} for f in others):
        return ["a scale by head or position"]
    if any(free_vars(f) for f in others):
        return ["scale by the sizes"]
    value = math.prod(_number(f) for f in over if f != Var("s")) / math.prod(_number(f) for f in under)
    usual = d is not None and math.isclose(value, d**-0.5, rel_tol=1e-3)
    return [] if usual else ["no scale" if value == 1.0 else f"scale {value:g}"]


def _number(expr: Expr) -> float:
    return float(evaluate(expr, {}))


def _bias(term: Expr) -> str:
    over, under = factors(term)
    names = free_vars(term)
    tables = [e for e in walk(term) if isinstance(e, Read)]
    direct = [e for e in over if isinstance(e, Read) and J in e.index]
    if direct:
        return f"bias {direct[0].tensor}"
    computed = [e for e in tables if any(free_vars(at) & {"i", "j"} and not isinstance(at, Var) for at in e.index)]
    if computed:
        buckets = any(isinstance(e, Call) and e.op in ("log", "log2") for e in walk(computed[0]))
        return f"{'bucketed' if buckets else 'relative'} bias {computed[0].tensor}"
    by_head = any(
        free_vars(f) == frozenset("h") or (isinstance(f, Read) and f.index == (Var("h"),)) for f in (*over, *under)
    )
    by_head = by_head or any("h" in free_vars(f) and not free_vars(f) & {"i", "j"} for f in over)
    if by_head and "j" in names and all(_linear_in_distance(f) for f in over if free_vars(f) & {"i", "j"}):
        return "ALiBi"
    if any(_is_low(f) for f in over) or (isinstance(term, Call) and any(_is_low(a) for a in term.args[1:])):
        return "a finite mask" + (f" by {tables[0].tensor}" if tables else "")
    text = print_expr(term)
    return f"bias {text}" if len(text) <= _SHORT else "a bias of its own"


def _linear_in_distance(expr: Expr) -> bool:
    inner = expr.args[0] if isinstance(expr, Call) and expr.op in ("abs", "neg", "float") else expr
    if isinstance(inner, Call) and inner.op in ("abs", "neg", "float"):
        inner = inner.args[0]
    found = linear_terms(inner, None)[0]
    return bool(_difference(found)) or set(found) == {J}


def _is_low(expr: Expr) -> bool:
    return isinstance(expr, Const) and float(expr.value) <= -1000.0


_ACTIVATIONS = ("sigmoid", "relu", "exp", "elu", "gelu", "silu")


def _inside(attention: Attention) -> Expr:
    """The score before the activation, where the weights are no softmax."""
    score = attention.score
    if attention.normaliser == "softmax" or not isinstance(score, Call):
        return score
    if score.op == "mul" and score.args[0] == score.args[1] and isinstance(score.args[0], Call):
        score = score.args[0]
    return score.args[0] if score.op in _ACTIVATIONS else score


# weights and heads -------------------------------------------------------------------------------------------------
def _weight_words(attention: Attention) -> list[str]:
    if attention.normaliser == "softmax":
        sink = attention.sink
        if sink is None:
            return []
        read = sorted({e.tensor for e in walk(sink) if isinstance(e, Read)})
        return [f"sink {', '.join(read)}" if read else "softmax off by one" if sink == Const(0.0) else "sink"]
    ops = [e.op for e in walk(attention.score) if isinstance(e, Call)]
    kind = next((name for name in _ACTIVATIONS if name in ops), "")
    squared = isinstance(attention.score, Call) and attention.score.op == "mul" and kind
    words = [f"{kind}{' squared' if squared else ''} weights" if kind else "weights linear in the score", "no softmax"]
    if attention.divisor is not None:
        words.append("divided by the row sum" if attention.normaliser == "sum" else "divided by the sum of |weights|")
    return words


_Words = Callable[[int, int], str]
_HEADS: dict[str, _Words] = {
    "h // (H // Hkv)": lambda h, hkv: (
        "MHA" if h == hkv else f"MQA {h} on 1 head" if hkv == 1 else f"GQA {h} on {hkv} heads"
    ),
    "h % Hkv": lambda h, hkv: "MHA" if h == hkv else f"KV head h % {hkv}",
}


def _head_words(attention: Attention, sizes: Mapping[str, int]) -> list[str]:
    known = {**attention.specialised, **sizes}
    words: list[str] = []
    text = print_expr(attention.head_map)
    if text in _HEADS and {"H", "Hkv"} <= known.keys():
        words += [w for w in [_HEADS[text](known["H"], known["Hkv"])] if w != "MHA"]
    elif text in _HEADS and attention.specialised.get("Hkv") == 1:
        words.append("MQA")
    elif text != "h":
        words.append("GQA" if text == "h // (H // Hkv)" else f"KV head {text}")
    d, dv = known.get("D"), known.get("Dv")
    if d is not None:
        words.append(f"D {d}" if dv in (None, d) else f"D {d}, Dv {dv}")
    return words
