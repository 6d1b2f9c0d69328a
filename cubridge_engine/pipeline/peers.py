"""What else computes a spec: eager, torch.compile, SDPA and FlexAttention, each as calls on the spec's tensors."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch

from ..ir.evaluate import evaluate
from ..ir.expr import Const, free_vars, reads
from ..spec.attention import Attention
from ..spec.closures import Mod, NoClosure, closure
from ..verify.inputs import canonical_view

Call = Callable[[], Any]
_STEPS = (-40.0, -2.5, 0.0, 0.7, 35.0)  # raw products at which a score is compared with its slope
_NO_WEIGHT = -1e4  # a fill at or below it leaves no weight in a row that sees a key
_BACK = {"o": "bhid", "lse": "bhi"}


class NotForIt(Exception):
    """This one cannot compute the spec; the message says why."""


class Problem:
    """A spec that is the attention alone, at some sizes: `tensors` in the order of its inputs."""

    def __init__(self, attention: Attention, sizes: Mapping[str, int], tensors: Sequence[Any]) -> None:
        self.attention = attention
        self.sizes = sizes
        named = dict(zip((i.name for i in attention.inputs), zip(attention.inputs, tensors, strict=True), strict=True))
        self.q, self.k, self.v = (
            next(canonical_view(t, i.axes, i.role) for i, t in named.values() if i.role == role) for role in "qkv"
        )
        self.operands = {name: t for name, (i, t) in named.items() if i.role == "operand"}

    def back(self, o: Any) -> Any:
        """``[B, H, Sq, Dv]`` in the axes of the spec's output."""
        return output_view(self.attention, o, "o")

    def softmax(self) -> None:
        """Raise NotForIt where weights are no plain softmax of grouped heads."""
        a, h, hk = self.attention, self.sizes["H"], self.sizes["Hkv"]
        if a.normaliser != "softmax":
            raise NotForIt("the weights are no softmax")
        if a.sink is not None:
            raise NotForIt("the softmax has a sink")
        if a.mask is not None and isinstance(a.fill, Const) and a.fill.value > _NO_WEIGHT:
            raise NotForIt("masked keys keep a weight")
        heads = [int(evaluate(a.head_map, {**self.sizes, "h": n})) for n in range(h)]
        if heads != [n // (h // hk) for n in range(h)]:
            raise NotForIt("heads are mapped in another way")

    def mask(self) -> Mod | None:
        """The mask as a function of places. Raises NotForIt."""
        return self._function(self.attention.mask) if self.attention.mask is not None else None

    def score(self) -> Mod:
        """The score as a function of the raw product and places. Raises NotForIt."""
        return self._function(self.attention.score)

    def _function(self, expr: Any) -> Mod:
        try:
            return closure(expr, self.sizes, self.operands)
        except NoClosure as error:
            raise NotForIt(str(error)) from None

    def scale(self) -> float:
        """The factor that the score is. Raises NotForIt where it is more."""
        score = self.attention.score
        if reads(score) or free_vars(score) & {"b", "h", "hk", "i", "j"}:
            raise NotForIt("the score is more than a factor")
        values = [float(evaluate(score, {**self.sizes, "s": s})) for s in _STEPS]
        slope = (values[-1] - values[0]) / (_STEPS[-1] - _STEPS[0])
        if not all(math.isclose(v, slope * s, rel_tol=1e-6, abs_tol=1e-9) for v, s in zip(values, _STEPS, strict=True)):
            raise NotForIt("the score is more than a factor")
        return slope

    def dense_mask(self) -> Any:
        """The mask as a bool tensor [B or 1, 1, Sq, Sk]; None without one. Raises NotForIt where heads differ."""
        mask = self.attention.mask
        if mask is None:
            return None
        if free_vars(mask) & {"h", "hk"} or any("H" in self.attention.input(name).axes for name in reads(mask)):
            raise NotForIt("the mask differs from head to head")
        device, b, sq, sk = self.q.device, self.sizes["B"], self.sizes["Sq"], self.sizes["Sk"]
        batches = torch.arange(b if free_vars(mask) & {"b"} else 1, device=device)[:, None, None, None]
        rows, keys = torch.arange(sq, device=device)[:, None], torch.arange(sk, device=device)[None]
        found = self._function(mask)(None, batches, torch.zeros_like(batches), rows, keys)
        return found.expand(batches.shape[0], 1, sq, sk)


def output_view(attention: Attention, tensor: Any, role: str) -> Any:
    """A result in the axes of the spec's output of that role."""
    axes = next(o.axes for o in attention.outputs if o.role == role)
    letters = _BACK[role]
    for n, letter in reversed(list(enumerate(letters))):
        if letter not in axes:
            tensor = tensor.squeeze(n)
    have = [letter for letter in letters if letter in axes]
    return tensor.permute([have.index(letter) for letter in axes])


def sdpa(problem: Problem) -> Call:
    """scaled_dot_product_attention, with a mask where there is one. Raises NotForIt."""
    problem.softmax()
    scale, mask, sizes = problem.scale(), problem.dense_mask(), problem.sizes
    causal = mask is not None and sizes["Sq"] == sizes["Sk"] and bool((mask == torch.ones_like(mask).tril()).all())
    options: dict[str, Any] = {"is_causal": True} if causal else {"attn_mask": mask}
    options |= {"scale": scale, "enable_gqa": sizes["H"] != sizes["Hkv"]}
    attend = torch.nn.functional.scaled_dot_product_attention
    return lambda: problem.back(attend(problem.q, problem.k, problem.v, **options))


def flex(problem: Problem, compiled: bool = True) -> Call:
    """FlexAttention with score_mod and mask_mod made from the spec's meaning. Raises NotForIt."""
    from torch.nn.attention.flex_attention import create_block_mask, flex_attention

    problem.softmax()
    sizes, score, mask = problem.sizes, problem.score(), problem.mask()

    def score_mod(s: Any, b: Any, h: Any, i: Any, j: Any) -> Any:
        return score(s, b, h, i, j)

    def mask_mod(b: Any, h: Any, i: Any, j: Any) -> Any:
        assert mask is not None
        return mask(None, b, h, i, j)

    block_mask = None
    if mask is not None:
        block_mask = create_block_mask(
            mask_mod, sizes["B"], sizes["H"], sizes["Sq"], sizes["Sk"], device=str(problem.q.device)
        )
    run: Any = torch.compile(flex_attention, dynamic=False) if compiled else flex_attention
    options: dict[str, Any] = {"scale": 1.0, "enable_gqa": sizes["H"] != sizes["Hkv"]}
    return lambda: problem.back(
        run(problem.q, problem.k, problem.v, score_mod=score_mod, block_mask=block_mask, **options)
    )
