"""Which KV head a query head reads."""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from ...ir.expr import free_vars
from ...ir.nodes import Copy
from ...ir.text_expr import print_expr
from ..draft import Draft, map_ops
from ..model import Check, HeadEdit
from ..sampling import value_at
from ..semantics import walk_ops
from .rule import Example, Rule


def _apply(draft: Draft) -> Draft:
    want = draft.attention.head_map
    env = draft.sample(want, draft.sem.head_map)
    if np.array_equal(value_at(want, env), value_at(draft.sem.head_map, env)):
        return draft
    roles = {p.role for p in draft.kernel.params}
    if "Hkv" in free_vars(want) and not roles & {"Hkv", "group"}:
        return draft.refuse("CB318", "head_map", want=print_expr(want), kernel=draft.kernel.name)
    body = map_ops(
        draft.kernel.body, lambda op: (replace(op, head=None),) if isinstance(op, Copy) and op.tensor != "q" else (op,)
    )
    kernel = replace(draft.kernel, grid=replace(draft.kernel.grid, hk=want), body=body)
    others = [
        op for op in walk_ops(draft.original.body) if isinstance(op, Copy) and op.tensor != "q" and op.head is not None
    ]
    check = Check(
        "kv-base-complete", not others, "a copy of K or V uses a head of its own" if others else "every base uses it"
    )
    return replace(draft, kernel=kernel).step(
        "head_map", "head_map", f"query head h reads KV head {print_expr(want)}", HeadEdit(want), checks=(check,)
    )


RULE = Rule(
    "head_map",
    "Replace the KV head in every K and V base when the spec groups heads otherwise.",
    ("kv-base-complete",),
    _apply,
    Example({"head_map": "h % Hkv"}, "grid hk = h // (H // Hkv)", ("grid hk = h % Hkv",)),
)
