"""`parse`: bytes of a CUDA file to a `SourceFile`. Never raises, whatever the bytes."""

from __future__ import annotations

import re
import time
from collections.abc import Iterator, Mapping

import tree_sitter_cuda
from tree_sitter import Language, Parser, Tree

from cubridge_engine.diagnostics import Diagnostic, Span, make

from .lexical import Masks, blank, mask, readable
from .preprocessor import Preprocessed, Problem, preprocess
from .sanitise import Edit, sanitise
from .source_file import SourceFile
from .text_index import TextIndex, changed_range

LIMIT = 4 * 1024 * 1024  # bytes; the largest hand-written attention source seen is a tenth of this
BUDGET_S = 5.0  # of this thread's work, for the grammar alone; real kernels take milliseconds
_MAX_SYNTAX_DIAGNOSTICS = 20
_LANGUAGE = Language(tree_sitter_cuda.language())


def parse(
    path: str,
    data: bytes,
    *,
    defines: Mapping[str, str] | None = None,
    previous: SourceFile | None = None,
) -> SourceFile:
    """Read `data` as CUDA C++.

    `path` is used in spans only. `defines` are object-like macros (name -> replacement) as ``-D`` gives them; they
    choose the branches of ``#if``. `previous` is an earlier reading of the same file: only what differs is parsed
    again. The result always has a tree; what could not be read is in `SourceFile.diagnostics` and `SourceFile.blanked`.
    """
    if len(data) > LIMIT:
        return _too_large(path, data)
    text, unreadable, first_unreadable = readable(data)
    masks = mask(text)
    chosen = preprocess(masks, defines or {})
    clean, code, edits = _sanitise(text, masks, chosen)
    index = TextIndex(data)
    tree = _tree(clean, index, previous)
    draft = SourceFile(
        path=path,
        data=data,
        clean=clean,
        code=code,
        tree=tree if tree is not None else Parser(_LANGUAGE).parse(b""),
        index=index,
        edits=tuple(edits),
        macros=chosen.macros,
        includes=tuple(chosen.includes),
    )
    problems = list(chosen.problems)
    if unreadable:
        problems.insert(0, Problem("CB101", first_unreadable, first_unreadable + 1, {"count": unreadable}))
    if tree is None:
        problems.append(Problem("CB113", 0, 0, {"budget": BUDGET_S}))
    found = [problem.diagnostic(draft.span_of(problem.start, problem.end)) for problem in problems]
    if tree is not None:
        found.extend(_syntax_diagnostics(draft))
    return draft.with_diagnostics(tuple(found))


def _too_large(path: str, data: bytes) -> SourceFile:
    tree, index = Parser(_LANGUAGE).parse(b""), TextIndex(data)
    start = Span(path, 0, 0, 0, 0, 0, 0)
    found = make("CB102", start, size=len(data), limit=LIMIT)
    return SourceFile(path, data, blank(data), blank(data), tree, index, (), {}, (), (found,))


def _sanitise(text: bytes, masks: Masks, chosen: Preprocessed) -> tuple[bytes, bytes, list[Edit]]:
    """Blank conditional directives and dead branches, hide the other directives from the rules, apply the rules."""
    clean, code = bytearray(text), bytearray(masks.code)
    edits: list[Edit] = []
    for rule, ranges in (("conditional directive", chosen.conditionals), ("untaken branch", chosen.dead)):
        for start, end, value in ranges:
            clean[start:end] = code[start:end] = blank(text[start:end])
            edits.append(Edit(start, end, rule, value))
    for start, end in chosen.directives:
        code[start:end] = blank(text[start:end])
    new_clean, new_code, more = sanitise(bytes(clean), bytes(code), chosen.macros)
    return new_clean, new_code, sorted(edits + more, key=lambda edit: edit.start)


def _tree(clean: bytes, index: TextIndex, previous: SourceFile | None) -> Tree | None:
    parser = Parser(_LANGUAGE)
    if previous is None or previous.root.end_byte == 0:  # an empty tree: the earlier text was given up on
        return _within_budget(parser, clean, None)
    old = previous.clean
    if old == clean:
        return previous.tree
    start, old_end, new_end = changed_range(old, clean)
    tree = previous.tree.copy()
    tree.edit(
        start_byte=start,
        old_end_byte=old_end,
        new_end_byte=new_end,
        start_point=index.locate(start),
        old_end_point=previous.index.locate(old_end),
        new_end_point=index.locate(new_end),
    )
    return _within_budget(parser, clean, tree)


def _within_budget(parser: Parser, clean: bytes, old: Tree | None) -> Tree | None:
    """The tree, or None when error recovery ran past `BUDGET_S` (text that is no program can take very long)."""
    deadline = time.thread_time() + BUDGET_S

    def read(offset: int, _point: object) -> bytes:
        return clean[offset : offset + 65536]

    def out_of_time(_offset: int, _has_error: bool) -> bool:
        return time.thread_time() > deadline

    try:
        if old is None:
            return parser.parse(read, progress_callback=out_of_time)
        return parser.parse(read, old, progress_callback=out_of_time)
    except ValueError:  # how the binding says that the callback stopped it
        return None


def _syntax_diagnostics(source: SourceFile) -> Iterator[Diagnostic]:
    kernels = source.kernels()
    if not kernels:
        yield make("CB105", source.span_of(0, 0))
    if not source.root.has_error:
        return
    yield from _brackets(source)
    shown = 0
    for kernel in kernels:
        if not kernel.node.has_error:
            continue
        share = source.error_share(kernel.body)
        for start, end in source.error_ranges(kernel.node):
            if shown < _MAX_SYNTAX_DIAGNOSTICS:
                yield make(
                    "CB103", source.span_of(start, _line_end(source, start, end)), kernel=kernel.name, share=share
                )
            shown += 1
    for match in re.finditer(rb"\b__global__\b", source.code):
        node = source.root.descendant_for_byte_range(match.start(), match.end())
        if node and (node.parent is None or node.parent.is_error or node.is_error) and shown < _MAX_SYNTAX_DIAGNOSTICS:
            yield make("CB104", source.span_of(match.start(), match.end()))
            shown += 1


def _line_end(source: SourceFile, start: int, end: int) -> int:
    """Keep the marked range on one line: an ERROR node may span the rest of the file."""
    return min(max(end, start), max(start, source.index.line_end(source.index.locate(start)[0])))


_PAIRS = {b")": b"(", b"]": b"[", b"}": b"{"}


def _brackets(source: SourceFile) -> Iterator[Diagnostic]:
    """The first bracket that has no partner. Macros with unbalanced bodies make the count meaningless: then nothing."""
    if any(m.body.count(a) != m.body.count(b) for m in source.macros.values() for a, b in ("()", "[]", "{}")):
        return
    stack: list[re.Match[bytes]] = []
    for match in re.finditer(rb"[()\[\]{}]", source.code):
        token = match.group()
        if token not in _PAIRS:
            stack.append(match)
        elif stack and stack[-1].group() == _PAIRS[token]:
            stack.pop()
        else:
            # ``{ ( }``: the open one inside is the culprit when an outer one fits, else the closing one is
            fits = any(opened.group() == _PAIRS[token] for opened in stack)
            culprit, problem = (stack[-1], "is opened here and not closed") if fits else (match, "closes nothing")
            yield _bracket(source, culprit, problem)
            return
    if stack:
        yield _bracket(source, stack[-1] if len(stack) == 1 else stack[0], "is opened here and never closed")


def _bracket(source: SourceFile, match: re.Match[bytes], problem: str) -> Diagnostic:
    span = source.span_of(match.start(), match.end())
    return make("CB106", span, bracket=match.group().decode("ascii"), problem=problem)
