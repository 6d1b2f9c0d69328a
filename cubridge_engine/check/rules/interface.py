"""Parameters, heads and strides: what the signature promises against what the body does with it."""

from __future__ import annotations

import re
from collections.abc import Iterator

import numpy as np
from tree_sitter import Node

from ...diagnostics import Related, Severity, Span
from ...ir.evaluate import UnboundName, evaluate
from ...ir.expr import Call, Expr, Var, free_vars
from ...ir.nodes import Copy, Kernel, Opaque, Param
from ...ir.text_expr import print_expr
from ...ir.validate import iterate
from ...source import SourceFile
from ..model import Finding
from ..subject import Subject, finding

_HEADS = ((8, 2), (6, 3), (4, 4))  # (H, Hkv)
_USUAL = Call("floordiv", (Var("h"), Call("floordiv", (Var("H"), Var("Hkv")))))
# What lifting says of a shuffle -> what is wrong with it.
_SHUFFLES = {
    "a shuffle that combines": "{} are combined",
    "a shuffle that mixes different rows": "a shuffle exchanges values of different rows",
}
_COMMENT = re.compile(rb"//[^\n]*|/\*.*?\*/", re.S)
_HINTS = {"float": "a factor of the scores, say", "*": "a tensor"}


def head_map(subject: Subject) -> Iterator[Finding]:
    """CB868: another KV head than that of grouped-query attention, or different ones for K and V."""
    kernel = subject.kernel
    if kernel is None or not any(p.role in ("Hkv", "group") for p in kernel.params):
        return
    own = [op.head for op in iterate(kernel.body) if isinstance(op, Copy) and op.tensor in ("k", "v") and op.head]
    maps: list[Expr] = [*own, *([kernel.grid.hk] if len(own) < 2 else [])]
    span = _head_place(subject)
    for found in maps:
        witness = _differs(found)
        if witness:
            yield finding("CB868", span, "heads", found=print_expr(found), witness=witness)
            return


def _differs(found: Expr) -> str:
    for heads, kv_heads in _HEADS:
        for h in range(heads):
            env = {"h": h, "H": heads, "Hkv": kv_heads, "b": 0}
            try:
                got, want = (int(np.asarray(evaluate(e, env)).flat[0]) for e in (found, _USUAL))
            except (UnboundName, ZeroDivisionError):
                return ""
            if got != want:
                return f"H = {heads}, Hkv = {kv_heads}, h = {h} reads {got}, not {want}"
    return ""


def _head_place(subject: Subject) -> Span | None:
    head = subject.lifted.anchors.head
    kernel = subject.kernel
    return head.value if head is not None else kernel.grid.origin.span if kernel is not None else None


def parameters(subject: Subject) -> Iterator[Finding]:
    """CB846 and CB869: parameters that the body never names; strides of K where those of V are meant."""
    function, kernel = subject.function, subject.kernel
    if function is None:
        return
    source = subject.source
    named = _named_parameters(subject)
    unused = {name: span for name, span in named if not _mentioned(source, function.body, name)}
    if kernel is not None:
        for name, found in _swapped(kernel, unused):
            del unused[name]
            yield found
        if subject.lifted.coverage.complete:
            roots = [p for p in kernel.params if p.role == "unused" and "*" in p.ctype and p.name not in unused]
            spans = {p.name: p.origin.span for p in roots if p.origin.span is not None}
            unused |= {n: s for n, s in spans.items() if not any(p.role == "v" for p in kernel.params)}
    for name, span in unused.items():
        text = subject.text(span)
        hint = next((words for word, words in _HINTS.items() if word in text), "")
        severity = None if hint else Severity.NOTE  # an integer may be there for the launcher
        hint = hint or "a length or a stride"
        yield finding("CB869", span, "interface", severity=severity, name=name, hint=hint)


def _named_parameters(subject: Subject) -> Iterator[tuple[str, Span]]:
    """The named parameters of the definition, each with its declaration."""
    function = subject.function
    assert function is not None
    for node in function.params.named_children:
        if "parameter_declaration" not in node.type:
            continue
        name = node.child_by_field_name("declarator")
        while name is not None and name.type not in ("identifier", "type_identifier"):
            inner = name.child_by_field_name("declarator")
            name = inner or next((c for c in reversed(name.named_children) if c.type == "identifier"), None)
        if name is not None:
            yield subject.source.clean_text(name), subject.source.span(node)


def _mentioned(source: SourceFile, body: Node, name: str) -> bool:
    # What the grammar did not see (untaken branches, macros) may still use it.
    text = _COMMENT.sub(b" ", source.data[body.start_byte : body.end_byte])
    return re.search(rb"\b" + re.escape(name.encode()) + rb"\b", text) is not None or _in_macros(source, name)


def _in_macros(source: SourceFile, name: str) -> bool:
    pattern = re.compile(rf"\b{re.escape(name)}\b")
    return any(pattern.search(text) for text in source.defines_seen.values())


def _swapped(kernel: Kernel, unused: dict[str, Span]) -> Iterator[tuple[str, Finding]]:
    """K and V share a stride, and a parameter for one is left over."""
    strides = kernel.tensors
    if "k" not in strides or "v" not in strides:
        return
    left = [p for p in kernel.params if p.name in unused and "*" not in p.ctype and p.role == "unused"]
    for axis, of_k, of_v in zip(("batch", "head", "row"), strides["k"], strides["v"], strict=False):
        if of_k != of_v or not isinstance(of_k, Var):
            continue
        used = next((p for p in kernel.params if p.name == of_k.name), None)
        spare = _nearest(left, used)
        if used is None or spare is None:
            continue
        of = "V" if spare.position > used.position else "K"
        other = "K" if of == "V" else "V"
        left.remove(spare)
        name = f"{other}'s {axis}"
        yield spare.name, finding(
            "CB846", unused[spare.name], "interface", confidence="likely", tensor=of, used=used.name, other=name,
            unused=spare.name,
        )  # fmt: skip


def strides(subject: Subject) -> Iterator[Finding]:
    """CB843: strides that are worked out from sizes, of K or V from those of the queries, or the other way round."""
    kernel = subject.kernel
    if kernel is None:
        return
    if {"q", "k", "v", "o"} - kernel.tensors.keys() or {"Sq", "Sk"} - {p.role for p in kernel.params}:
        return  # not all was read, or keys and queries are as many
    wrong = {"k": "Sq", "v": "Sq", "q": "Sk", "o": "Sk"}
    copies = {op.tensor: op for op in iterate(kernel.body) if isinstance(op, Copy)}
    for tensor, size in wrong.items():
        made = kernel.tensors.get(tensor, ())
        other = kernel.tensors.get({"k": "v", "v": "k", "q": "o", "o": "q"}[tensor], ())
        if not any(size in free_vars(e) for e in made) or any(size in free_vars(e) for e in other):
            continue
        words = "queries" if size == "Sq" else "keys"
        span = copies[tensor].origin.span if tensor in copies else kernel.origin.span
        yield finding("CB843", span, "interface", tensor=tensor.upper(), words=words)
        return


def _nearest(left: list[Param], used: Param | None) -> Param | None:
    """The unused integer that stands among the strides."""
    if used is None:
        return None
    same = [p for p in left if p.ctype == used.ctype]
    return min(same, key=lambda p: abs(p.position - used.position), default=None)


def lanes(subject: Subject) -> Iterator[Finding]:
    """CB871 where reading met a shuffle that combines a part of a row's lanes."""
    kernel = subject.kernel
    if kernel is None:
        return
    for op in iterate(kernel.body):
        what = next(
            (words for why, words in _SHUFFLES.items() if isinstance(op, Opaque) and op.why.startswith(why)), ""
        )
        if isinstance(op, Opaque) and what:
            what = what.format(op.why.removeprefix("a shuffle that combines "))
            yield finding("CB871", op.origin.span, "warp", severity=Severity.WARNING, confidence="likely", what=what)


def products(subject: Subject) -> Iterator[Finding]:
    """CB874: a matrix product that lifting could not read because its fragments contract different indices."""
    for item in subject.lifted.diagnostics:
        if item.code == "CB123" and "do not contract the same index" in item.message and item.span is not None:
            inside = (Related(item.span, "in the function called there"),) if item.related else ()
            span = item.related[0].span if item.related else item.span
            yield finding("CB874", span, "numeric", related=inside, confidence="likely", severity=Severity.WARNING)
            return
