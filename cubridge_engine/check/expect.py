"""What a kernel is expected to compute: said in a few words (``causal,gqa``), or promised by its contract."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

from ..compile import Contract
from ..diagnostics import Diagnostic, make
from ..ir.expr import SK, SQ, Call, Const, Expr, I, J, S, Var, conjoin
from ..spec.attention import Attention, TensorInput, TensorOutput
from . import codes as codes

OFFSET = SK - SQ  # of the diagonal that is aligned to the bottom right
GROUPED: Expr = Call("floordiv", (Var("h"), Call("floordiv", (Var("H"), Var("Hkv")))))
_MASKS: dict[str, Expr | None] = {
    "full": None,
    "causal": Call("le", (J, I + OFFSET)),
    "causal_bottom_right": Call("le", (J, I + OFFSET)),
    "causal_top_left": Call("le", (J, I)),
    "strict": Call("lt", (J, I + OFFSET)),
}
_AXES = {"q": ("b", "h", "i", "d"), "k": ("b", "hk", "j", "d"), "v": ("b", "hk", "j", "d")}


@dataclass(frozen=True, slots=True)
class _Words:
    """The words of an expectation, read."""

    masks: tuple[Expr, ...] = ()
    grouped: bool = False
    softcap: float = 0.0
    scale: float | None = None
    lse: bool = True


class _Bad(Exception):
    """A word that means nothing; the message says why."""


def parse_expect(text: str, d: int, dv: int | None = None) -> tuple[Attention | None, tuple[Diagnostic, ...]]:
    """The attention that `text` says, for widths `d` of Q and K and `dv` of V; CB875 names a word that is not known.

    Words, with commas between: full, causal (aligned to the bottom right), causal_top_left, strict (causal without the
    diagonal), window=N (keys i + off - N .. i + off + N) or window=L:R, gqa (head h reads KV head h // (H / Hkv)), mha,
    softcap=X, scale=X (default 1 / sqrt(D)), lse.
    """
    words = _Words()
    for word in filter(None, (part.strip() for part in text.split(","))):
        name, _, value = word.partition("=")
        try:
            words = _READERS[name](words, value)
        except KeyError:
            return None, (make("CB875", None, word=word, why=f"the words are {', '.join(_READERS)}"),)
        except (_Bad, ValueError) as bad:
            return None, (make("CB875", None, word=word, why=str(bad)),)
    return _attention(text or "full", words, d, dv or d), ()


def promised(contract: Contract, d: int, dv: int | None = None) -> tuple[tuple[int, Attention], ...]:
    """What a contract promises: for each value of the argument with role ``flag:causal`` the attention."""
    found: list[tuple[int, Attention]] = []
    has_flag = any(p.role == "flag:causal" for p in contract.leaves)
    for flag, mask in enumerate(contract.masks[: 2 if has_flag else 1]):
        rule = _MASKS[mask]
        words = _Words(() if rule is None else (rule,), grouped=contract.gqa, lse=contract.lse != "none")
        found.append((flag, _attention(mask, words, d, dv or d)))
    return tuple(found)


def _attention(name: str, words: _Words, d: int, dv: int) -> Attention:
    scale = words.scale if words.scale is not None else 1.0 / math.sqrt(d)
    score: Expr = S * scale
    if words.softcap:
        score = Const(words.softcap) * Call("tanh", (score / words.softcap,))
    outputs = [TensorOutput("o", ("b", "h", "i", "d"), "float32", 0)]
    if words.lse:
        outputs.append(TensorOutput("lse", ("b", "h", "i"), "float32", 1))
    return Attention(
        name=name,
        path="",
        inputs=tuple(TensorInput(role, role, axes, "float32", n) for n, (role, axes) in enumerate(_AXES.items())),
        outputs=tuple(outputs),
        head_map=GROUPED if words.grouped else Var("h"),
        score=score,
        mask=conjoin(list(words.masks)) if words.masks else None,
        fill=Const(-math.inf),
        sink=None,
        normaliser="softmax",
        empty_rows="zero",
        specialised={"D": d, "Dv": dv} if dv != d else {"D": d},
        equal_sizes=() if words.grouped else (("H", "Hkv"),),
    )


def _mask(rule: Expr | None) -> Callable[[_Words, str], _Words]:
    def read(words: _Words, value: str) -> _Words:
        _empty(value)
        return words if rule is None else replace(words, masks=(*words.masks, rule))

    return read


def _heads(grouped: bool) -> Callable[[_Words, str], _Words]:
    def read(words: _Words, value: str) -> _Words:
        _empty(value)
        return replace(words, grouped=grouped)

    return read


def _empty(value: str) -> None:
    if value:
        raise _Bad("it takes no value")


def _window(words: _Words, value: str) -> _Words:
    left, _, right = value.partition(":")
    before, behind = int(left), int(right) if right else int(left)
    if min(before, behind) < 0:
        raise _Bad("a window is a number of keys before the diagonal, and maybe after a colon one behind it")
    lower = Call("ge", (J, I + OFFSET - before))
    upper = Call("le", (J, I + OFFSET + behind))
    return replace(words, masks=(*words.masks, lower, upper))


def _positive(value: str) -> float:
    number = float(value)
    if not (math.isfinite(number) and number > 0):
        raise _Bad("it is a positive number")
    return number


def _lse(words: _Words, value: str) -> _Words:
    _empty(value)
    return replace(words, lse=True)


_READERS: dict[str, Callable[[_Words, str], _Words]] = {
    **{name: _mask(rule) for name, rule in _MASKS.items()},
    "window": _window,
    "gqa": _heads(True),
    "mha": _heads(False),
    "softcap": lambda words, value: replace(words, softcap=_positive(value)),
    "scale": lambda words, value: replace(words, scale=_positive(value)),
    "lse": _lse,
}
WORDS: Sequence[str] = tuple(_READERS)
