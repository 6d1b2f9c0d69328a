"""Transfer: apply the table of rules to a kernel until it means the spec."""

from __future__ import annotations

from collections.abc import Collection

from ..diagnostics import make
from ..ir.nodes import Kernel, Opaque
from ..spec.attention import Attention
from .draft import Draft
from .model import TransferResult
from .one_length import for_one_length
from .rules import RULES, Rule
from .semantics import NotAttention, semantics_of, walk_ops


def transfer(
    kernel: Kernel,
    attention: Attention,
    *,
    empty_rows: str = "keep",
    reserved: Collection[str] = (),
    tile_lists: bool = True,
    pages: bool = True,
    padded: bool = False,
    element_test: bool = True,
    moves: tuple[bool, bool] = (True, True),
    rules: Collection[str] | None = None,
) -> TransferResult:
    """Change `kernel` to compute `attention`.

    `empty_rows` is 'keep' (a row without a key keeps the kernel's value, with a note) or 'exact'. `reserved` are the
    identifiers of the kernel's file: new parameters get other names. With `tile_lists` the loop walks a list of tiles
    where a range of keys would visit empty ones; False where the kernel's text has no place for that; `pages` says
    the same of rows that are looked up in a table, and `padded` that the spec is handed over wider than its tensors
    are. `element_test` is False where the kernel's own test of elements has no place in its text that can be changed: a
    mask then gets a test of its own. `moves` says whether the loop over keys can begin, and end, at another tile: where
    not, tiles without an attended key are visited, and masked. `rules` names the only rules to apply (None: all of
    them); a target made without one is right only if verifying says so. The target is an executable program over the
    same tiles and pipeline. `bindings` says what to pass for the kernel's own scale and switches. Never raises: a
    refusal is a diagnostic with an error and `target` None.
    """
    for op in walk_ops(kernel.body):
        if isinstance(op, Opaque) and op.writes:
            return TransferResult(None, diagnostics=(make("CB308", op.origin.span, kernel=kernel.name, why=op.why),))
    try:
        sem = semantics_of(kernel)
        if sem.issues:
            raise NotAttention(sem.issues[0])
        names = frozenset(reserved)
        draft = Draft(
            kernel,
            kernel,
            for_one_length(kernel, attention),
            sem,
            empty_rows,
            names,
            tile_lists=tile_lists,
            pages=pages,
            padded=padded,
            element_test=element_test,
            moves=moves,
        )
        return _apply_rules(draft, RULES if rules is None else tuple(r for r in RULES if r.name in rules))
    except NotAttention as why:
        return TransferResult(None, diagnostics=(make("CB308", kernel.origin.span, kernel=kernel.name, why=str(why)),))


def _apply_rules(draft: Draft, rules: tuple[Rule, ...]) -> TransferResult:
    for rule in rules:
        draft = rule.apply(draft)
        if draft.refused:
            return TransferResult(None, draft.bindings, draft.binding_texts, draft.steps, draft.diagnostics)
    return TransferResult(draft.kernel, draft.bindings, draft.binding_texts, draft.steps, draft.diagnostics)
