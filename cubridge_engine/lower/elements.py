"""Edits inside element loops: score expression, tests of their own, conjuncts of the existing test and its guard."""

from __future__ import annotations

import math
import re
from collections.abc import Mapping, Sequence
from dataclasses import replace

from ..diagnostics import Span
from ..ir.anchors import ElementNest, MaskSite, Names, ScoreSite
from ..ir.expr import FALSE, NEG_INF, TRUE, Call, Const, Expr, Read, S, Var, conjoin, conjuncts, free_vars, walk
from ..ir.nodes import Mask
from ..ir.text_expr import print_expr
from ..transfer.model import MaskEdit, ScoreEdit, Step
from ..transfer.semantics import walk_ops
from .blocks import column_bounds
from .branchless import joined_without_branch, wants_no_branch
from .clamped import any_key, clamped_score, read_before, starts_a_line
from .context import Job
from .cuda_expr import Scope, float_literal, print_cuda
from .distances import Distances
from .fast_math import FastScore, fast_score
from .hoist import hoist, hoist_reads
from .hunks import Hunk

_DECLARED = re.compile(r"(\w+)\s*(?:=|\{|;|$)")


def at_score_sites(job: Job, score: tuple[Step, ScoreEdit] | None, mask: tuple[Step, MaskEdit] | None) -> list[Hunk]:
    """One loop nest per score site with the new expression and the tests that every tile needs."""
    always = mask[1].always if mask else ()
    if score is None and not always:
        return []
    step = score[0] if score else mask[0] if mask else None
    assert step is not None
    if not job.anchors.score:
        raise job.missing("the place where the scores of a tile are complete", step)
    named: dict[str, str] = {}
    fast = fast_score(job, score[1].expr, named, step) if score is not None else None
    edit = score[1] if score is not None else None
    hunks = [_score_hunk(job, site, step, edit, fast, named, always) for site in job.anchors.score]
    split = [job.replace(site.raw, site.nest.element, step) for site in job.anchors.score if site.raw is not None]
    return [*(fast.hunks if fast is not None else ()), *hunks, *split]


def _score_hunk(
    job: Job,
    site: ScoreSite,
    step: Step,
    edit: ScoreEdit | None,
    fast: FastScore | None,
    named: Mapping[str, str],
    always: tuple[Expr, ...],
) -> Hunk:
    text = f"{site.indent}{site.nest.element} = {_raw(job, site.raw)};{job.style.newline}" if site.raw else ""
    # A paragraph per phase, as kernels are written: first the scores, then what is masked.
    if edit is not None and fast is not None:
        extra = dict(named)
        value = hoist(fast.expr, job.scopes, extra)
        scope = nest_scope(job, site.nest, site.names, extra)
        distances = Distances(site.nest, scope, job.scopes.hoisted.maker.make)
        value = distances.rewrite(value)
        extra |= distances.names
        job.scopes.hoisted_types.update(distances.types)
        inside = clamped_score(job, value)
        test = any_key(job, inside, scope) if inside is not None else ""
        lines = _score_lines(job, site, inside or value, extra, fast.functions, everywhere=inside is not None)
        text += _paragraph(job, site, lines, f"{edit.name} = {_formula(edit.natural)}", distances.lines, test)
    if always:
        extra = {}
        fails = _negated(conjoin(always))
        value = hoist_reads(fails, job.scopes, extra)
        scope = nest_scope(job, site.nest, site.names, extra)
        value, reads, names = read_before(job, value, scope, guarded=True)
        test = any_key(job, fails, scope) if reads else ""
        condition = print_cuda(value, nest_scope(job, site.nest, site.names, {**extra, **names}))
        lines = [*reads, *_guarded(job, condition, f"{site.nest.element} = {_fill_text(job)};")]
        what = "P = 0" if job.weighted else "S = -inf"
        text += _paragraph(job, site, lines, f"{what} where {print_expr(fails)}", (), test)
    needed = "".join(f"{site.indent}{line}{job.style.newline}" for line in _used(site.declarations, [text]))
    return job.hunk(site.offset, site.offset, needed + text, step)


def _raw(job: Job, span: Span) -> str:
    """The score as it was computed in the statement that masks it."""
    text = " ".join(job.text(span.start, span.end).split())
    return text[1:-1].strip() if text.startswith("(") and _closes_at_end(text) else text


def _closes_at_end(text: str) -> bool:
    depth = 0
    for at, c in enumerate(text):
        depth += (c == "(") - (c == ")")
        if depth == 0:
            return at == len(text) - 1
    return False


def _paragraph(
    job: Job, site: ScoreSite, lines: list[str], comment: str, before: Sequence[str] = (), test: str = ""
) -> str:
    text = print_nest(job, site.nest, site.indent, lines, f"// {comment}", before, test)
    return text if job.previous_line(site.offset).strip() else text + job.style.newline


def _score_lines(
    job: Job,
    site: ScoreSite,
    value: Expr,
    extra: Mapping[str, str],
    functions: Mapping[str, str],
    *,
    everywhere: bool = False,
) -> list[str]:
    """The assignment, under a bounds test if it reads an operand and cannot do so `everywhere`: elements beyond the
    tensor are masked or never stored.
    """
    tests = [] if everywhere else [job.scopes.predicate(e) for e in walk(value) if isinstance(e, Read)]
    bounds = conjoin(list(dict.fromkeys(c for t in tests for c in conjuncts(t))))
    scope = replace(nest_scope(job, site.nest, site.names, extra, inside=True), functions=functions)
    lines = _assignment(job, site.nest, value, scope)
    if bounds == TRUE:
        return lines
    return _guarded(job, print_cuda(bounds, scope), *lines)


def nest_scope(job: Job, nest: ElementNest, names: Names, extra: Mapping[str, str], *, inside: bool = False) -> Scope:
    """Names inside the user's element loops: the element, its row and its column."""
    return job.scopes.at(names, {**extra, "s": nest.element, "i": nest.row, "j": nest.col}, inside=inside)


def _assignment(job: Job, nest: ElementNest, value: Expr, scope: Scope) -> list[str]:
    """``s[..] += t;`` and ``*=`` where that is the whole change, else ``s[..] = value;``."""
    if (
        isinstance(value, Call)
        and value.op in ("add", "mul", "sub")
        and value.args[0] == S
        and not _mentions_s(value.args[1])
    ):
        token = {"add": "+=", "mul": "*=", "sub": "-="}[value.op]
        return [f"{nest.element} {token} {print_cuda(_uncast(value.args[1]), scope)};"]
    if isinstance(value, Call) and value.op == "add" and value.args[1] == S and not _mentions_s(value.args[0]):
        return [f"{nest.element} += {print_cuda(_uncast(value.args[0]), scope)};"]
    if isinstance(value, Call) and value.op == "where" and value.args[1] == S and not _mentions_s(value.args[2]):
        condition = print_cuda(_negated(value.args[0]), scope)
        return _guarded(job, condition, f"{nest.element} = {print_cuda(value.args[2], scope)};")
    return [f"{nest.element} = {print_cuda(value, scope)};"]


def _uncast(expr: Expr) -> Expr:
    return expr.args[0] if isinstance(expr, Call) and expr.op == "float" else expr


def _mentions_s(expr: Expr) -> bool:
    return "s" in free_vars(expr)


def _guarded(job: Job, condition: str, *statements: str) -> list[str]:
    inner = [f"{job.style.unit}{line}" for line in statements]
    if job.style.allman:
        return [f"if ({condition})", "{", *inner, "}"]
    return [f"if ({condition}) {{", *inner, "}"]


def _fill_text(job: Job) -> str:
    """The fill as the kernel spells it elsewhere; a weight is masked with 0."""
    if job.weighted:
        return float_literal(0.0, job.style.float_suffix)
    edit = next((e for _, e in job.result.edits if isinstance(e, MaskEdit)), None)
    for site in job.anchors.mask if edit is None or edit.fill is None else ():
        return job.text(site.fill.start, site.fill.end)
    own = next((op.fill for op in walk_ops(job.scopes.kernel.body) if isinstance(op, Mask)), NEG_INF)
    fill = edit.fill if edit is not None and edit.fill is not None else own
    value = float(fill.value) if isinstance(fill, Const) else -math.inf
    return float_literal(value, job.style.float_suffix)


def _formula(natural: Expr) -> str:
    """The score in natural units, with ``S`` for the scaled score, as a comment."""
    text = print_expr(_renamed(natural))
    return re.sub(r"(\d)\.0\b(?!e)", r"\1", text)


def _renamed(expr: Expr) -> Expr:
    if expr == S:
        return Var("S")
    if isinstance(expr, Call):
        if expr.op == "float":
            return _renamed(expr.args[0])
        args = [_renamed(a) for a in expr.args]
        if expr.op == "mul" and isinstance(args[1], Const) and isinstance(args[0], Call):
            args.reverse()  # 50 * tanh(..), as it is said
        return Call(expr.op, tuple(args))
    return expr


def print_nest(
    job: Job,
    nest: ElementNest,
    indent: str,
    body: list[str],
    comment: str,
    before: Sequence[str] = (),
    test: str = "",
) -> str:
    """The user's loop headers around `body`, with the declarations it needs, braces and indentation as theirs; the
    lines `before` come first. All of it is under `test`, if there is one.
    """
    style, nl = job.style, job.style.newline
    out: list[str] = [f"{indent}{comment}"] if comment else []
    for line in before:
        out += _wrapped(job, indent, line)
    depth = indent
    if test:
        out += [f"{depth}if ({test})", f"{depth}{{"] if style.allman else [f"{depth}if ({test}) {{"]
        depth += style.unit
    for header in nest.headers:
        for line in header.splitlines():
            word = line.strip()
            if word.startswith("#"):
                out.append(word if style.flat_pragmas else f"{depth}{word}")
            elif word:
                bare = word.rstrip("{").rstrip()
                out += [f"{depth}{bare}", f"{depth}{{"] if style.allman else [f"{depth}{bare} {{"]
        depth += style.unit
    for line in (*_declarations(nest, body), *body):
        out += _wrapped(job, depth, line)
    for _ in (*nest.headers, *([test] if test else [])):
        depth = depth[: -len(style.unit)]
        out.append(f"{depth}}}")
    return "".join(f"{line}{nl}" for line in out)


def _declarations(nest: ElementNest, body: list[str]) -> list[str]:
    """The row and column declarations that the body uses, and those that these use."""
    return _used(nest.declarations, body)


def _used(declarations: Sequence[str], body: list[str]) -> list[str]:
    """The declarations that the body uses, and those that these use."""
    used = "\n".join(body)
    kept: list[str] = []
    for line in reversed(declarations):
        match = _DECLARED.search(line)
        if match and re.search(rf"\b{re.escape(match[1])}\b", used):
            kept.insert(0, line.strip())
            used += "\n" + line.split("=", 1)[-1]
    return kept


def _wrapped(job: Job, indent: str, line: str) -> list[str]:
    """A line broken after ``&&``, ``||``, ``?`` or `` =`` when it is too long for the file."""
    if job.style.fits(indent + line):
        return [indent + line]
    for token in (" ||", " &&", " ?", " ="):
        at = line.rfind(token, 0, 100 - len(indent.expandtabs(4)))
        if at > 0:
            cut = at + len(token) if token != " ?" else at
            rest = line[cut:].strip()
            return [indent + line[:cut].rstrip(), *_wrapped(job, indent + "    ", rest)]
    return [indent + line]


# ---- the existing test ---------------------------------------------------------------------------------------------


def at_mask_site(job: Job, step: Step, edit: MaskEdit) -> list[Hunk]:
    """Conjuncts joined to the existing condition, and the guard widened."""
    filled = [job.replace(s.fill, _fill_text(job), step) for s in job.anchors.mask] if edit.fill is not None else []
    if not edit.guarded and edit.replace is None:
        return filled
    if edit.index >= len(job.anchors.mask):
        raise job.missing("the kernel's own element test", step)
    hunks: list[Hunk] = [*filled]
    for site in _copies(job, edit.index):
        hunks += _condition_hunks(job, step, edit, site)
        if edit.guard is not None:
            if site.guard is None:
                raise job.missing("the condition that decides which tiles are tested", step)
            extra: dict[str, str] = {}
            guard = hoist_reads(edit.guard, job.scopes, extra)
            new = print_cuda(guard, job.scopes.at(site.names, extra))
            old = job.text(site.guard.start, site.guard.end)
            text = new if edit.replace is not None else _joined(job, old, "||", new, site.guard.start)
            hunks.append(job.replace(site.guard, text, step))
    return hunks


def _copies(job: Job, index: int) -> tuple[MaskSite, ...]:
    """The site, and every static copy of it (same condition text in a peeled loop)."""
    first = job.anchors.mask[index]
    text = job.text(first.condition.start, first.condition.end)
    same = (s for s in job.anchors.mask if job.text(s.condition.start, s.condition.end) == text)
    return tuple(same)


def _condition_hunks(job: Job, step: Step, edit: MaskEdit, site: MaskSite) -> list[Hunk]:
    """The condition, and before its statement what it reads."""
    extra: dict[str, str] = {}
    keep = column_bounds(job, edit.replace if edit.replace is not None else conjoin(edit.guarded))
    keep = hoist_reads(keep, job.scopes, extra)
    lines: list[str] = []
    if starts_a_line(job, site):
        keep, lines, names = read_before(job, keep, nest_scope(job, site.nest, site.names, extra))
        extra |= names
    start, indent, nl = site.assignment.start, job.line_indent(site.assignment.start), job.style.newline
    before = [job.hunk(start, start, "".join(f"{line}{nl}{indent}" for line in lines), step)] if lines else []
    return [*before, _condition_hunk(job, step, edit, site, keep, extra)]


def _condition_hunk(job: Job, step: Step, edit: MaskEdit, site: MaskSite, keep: Expr, extra: Mapping[str, str]) -> Hunk:
    scope = nest_scope(job, site.nest, site.names, extra)
    old = job.text(site.condition.start, site.condition.end)
    wanted = _negated(keep) if site.masked_when else keep
    if edit.replace is not None:
        return job.replace(site.condition, print_cuda(wanted, scope), step)
    token = "||" if site.masked_when else "&&"
    if wants_no_branch(job, wanted):
        text = joined_without_branch(job, site.condition.start, old, token, wanted, scope)
        return job.replace(site.condition, text, step)
    outer = 21 if token == "||" and isinstance(wanted, Call) and wanted.op == "and" else 30 if token == "&&" else 0
    text = _joined(job, old, token, print_cuda(wanted, scope, 100 if outer == 21 else outer), site.condition.start)
    return job.replace(site.condition, text, step)


def _joined(job: Job, old: str, token: str, new: str, start: int) -> str:
    """``old || new``, the old text untouched; it gets parentheses where the operator would bind into it."""
    top = top_level_operators(old)
    if "?" in top or (top - {token} and token == "&&") or (token == "||" and "&&" in top and "||" not in top):
        old = f"({old})"
    if "&&" in top_level_operators(new) and token == "||":
        new = f"({new})"
    first = old.splitlines()[0] if "\n" not in old else old.splitlines()[-1]
    prefix = job.column(start) if "\n" not in old else ""
    if job.style.fits(f"{prefix}{first} {token} {new}) {{"):
        return f"{old} {token} {new}"
    ending = ") {"
    lines = _wrapped(job, job.line_indent(start) + "    ", f"{new}{ending}")
    return f"{old} {token}{job.style.newline}{job.style.newline.join(lines).removesuffix(ending)}"


def top_level_operators(text: str) -> set[str]:
    """``||``, ``&&`` and ``?`` outside all brackets of a C++ expression."""
    depth, found, at = 0, set[str](), 0
    while at < len(text):
        c = text[at]
        depth += (c in "([{") - (c in ")]}")
        if depth == 0 and text[at : at + 2] in ("||", "&&"):
            found.add(text[at : at + 2])
            at += 1
        elif depth == 0 and c == "?":
            found.add("?")
        at += 1
    return found


def _negated(expr: Expr) -> Expr:
    """Where an element is masked, by De Morgan, without reordering what the rule wrote."""
    flipped = {"lt": "ge", "ge": "lt", "gt": "le", "le": "gt", "eq": "ne", "ne": "eq"}
    if isinstance(expr, Call):
        if expr.op in flipped:
            return Call(flipped[expr.op], expr.args)
        if expr.op in ("and", "or"):
            return Call("or" if expr.op == "and" else "and", tuple(_negated(a) for a in expr.args))
        if expr.op == "not":
            return expr.args[0]
    if expr == TRUE:
        return FALSE
    if expr == FALSE:
        return TRUE
    return Call("not", (expr,))
