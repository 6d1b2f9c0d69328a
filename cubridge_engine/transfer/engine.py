"""Transfer: apply the table of rules to a kernel until it means the spec."""

from __future__ import annotations

from collections.abc import Collection

from ..diagnostics import make
from ..ir.nodes import Kernel, Opaque
from ..spec.attention import Attention
from .draft import Draft
from .model import TransferResult
from .rules import RULES
from .semantics import NotAttention, semantics_of, walk_ops


def transfer(
    kernel: Kernel,
    attention: Attention,
    *,
    empty_rows: str = "keep",
    reserved: Collection[str] = (),
    tile_lists: bool = True,
) -> TransferResult:
    """Change `kernel` to compute `attention`.

    `empty_rows` is 'keep' (a row without a key keeps the kernel's value, with a note) or 'exact'. `reserved` are the
    identifiers of the kernel's file: new parameters get other names. With `tile_lists` the loop walks a list of tiles
    where a range of keys would visit empty ones; False where the kernel's text has no place for that. The target is an
    executable program over the same tiles and pipeline. `bindings` says what to pass for the kernel's own scale and
    switches. Never raises: a refusal is a diagnostic with an error and `target` None.
    """
    for op in walk_ops(kernel.body):
        if isinstance(op, Opaque) and op.writes:
            return TransferResult(None, diagnostics=(make("CB308", op.origin.span, kernel=kernel.name, why=op.why),))
    try:
        sem = semantics_of(kernel)
        if sem.issues:
            raise NotAttention(sem.issues[0])
        names = frozenset(reserved)
        return _apply_rules(Draft(kernel, kernel, attention, sem, empty_rows, names, tile_lists=tile_lists))
    except NotAttention as why:
        return TransferResult(None, diagnostics=(make("CB308", kernel.origin.span, kernel=kernel.name, why=str(why)),))


def _apply_rules(draft: Draft) -> TransferResult:
    for rule in RULES:
        draft = rule.apply(draft)
        if draft.refused:
            return TransferResult(None, draft.bindings, draft.binding_texts, draft.steps, draft.diagnostics)
    return TransferResult(draft.kernel, draft.bindings, draft.binding_texts, draft.steps, draft.diagnostics)
