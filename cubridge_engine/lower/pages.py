"""Rows of K and V looked up in pages: the products of rows and row strides, and the way of the table to them.

``row * stride`` becomes ``pages[row / P] * page_stride + row % P * stride``. In the kernel the page stride is what was
the batch stride. A device function on the way gets the table and a page stride as parameters; one that copies other
tensors too is left alone, and a second one made from its text.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field

from ..ir.anchors import PageCall, PageFunction, PageProduct, PageSite
from ..ir.expr import Var
from ..transfer.model import Operand, PagedEdit, Step
from .context import Job
from .hunks import Hunk, apply_hunks
from .style import NameMaker

_CHOICE = re.compile(r"\(\s*(?P<condition>[^?]+?)\s*\?\s*(?P<row>\w+)\s*:\s*0\s*\)", re.DOTALL)


@dataclass
class _Names:
    """What the table, the page strides and the functions are called where the text uses them."""

    job: Job
    step: Step
    edit: PagedEdit
    operand: Operand
    site: PageSite
    table: str  # in the kernel: the batch's row of the table
    parameter: str  # in a device function
    made: dict[str, str] = field(default_factory=dict[str, str])  # shared functions -> their second versions
    strides: dict[tuple[str, str], str] = field(default_factory=dict[tuple[str, str], str])
    declared: dict[tuple[int, str, str], str] = field(default_factory=dict[tuple[int, str, str], str])

    @property
    def pointer(self) -> str:
        """The type of the table in a parameter list or a declaration, with a space where one is needed."""
        return "const long long* " if self.operand.dtype == "int64" else "const int* "

    def page_stride(self, function: str, stride: str) -> str:
        """The page stride that belongs to a row stride."""
        return self.site.strides[stride] if not function else self.strides[function, stride]

    def table_in(self, function: str) -> str:
        """The table's name."""
        return self.parameter if function else self.table


def at_pages(job: Job, step: Step, edit: PagedEdit) -> list[Hunk]:
    """Hunks for the whole way."""
    site = job.anchors.pages
    if site is None:
        raise job.missing("the products of key rows and row strides", step)
    operand = job.scopes.operands[edit.tensor]
    maker = job.scopes.hoisted.maker
    table = job.scopes.row_pointer(operand, (Var("b"),), "pages")
    names = _Names(job, step, edit, operand, site, table, table)
    for function in site.functions:
        for stride in function.strides:
            names.strides[function.name, stride] = _named(job, maker, stride)
        if function.shared:
            names.made[function.name] = maker.make(f"{function.name}_paged")
    hunks = [job.replace(span, rest, step) for span, rest in site.bases]
    inside: list[Hunk] = []
    for product in site.products:
        inside += _product(names, product)
    inside += [h for call in site.calls for h in _call(names, call)]
    inside += [_parameters(names, function) for function in site.functions]
    return hunks + _placed(names, inside)


def _named(job: Job, maker: NameMaker, stride: str) -> str:
    """``k_stride_page`` beside ``k_stride_row``. Functions that have the same parameter names share the new ones."""
    wanted = re.sub(r"row", "page", stride) if "row" in stride else f"{stride}_page"
    return wanted if wanted not in job.style.identifiers else maker.make(wanted)


def _product(names: _Names, product: PageProduct) -> list[Hunk]:
    """The product replaced; its row, or the whole offset where only some rows exist, is given a name before it."""
    job, step, size = names.job, names.step, names.edit.size
    table, page = names.table_in(product.function), names.page_stride(product.function, product.stride)

    def offset(row: str) -> str:
        return f"{table}[{row} / {size}] * {page} + {row} % {size} * {product.stride}"

    row = product.row[1:-1].strip() if product.row.startswith("(") and product.row.endswith(")") else product.row
    exists = _condition(names, product, row)
    if product.statement is None or (exists is None and re.fullmatch(r"\w+", row)):
        inline = row if re.fullmatch(r"\w+", row) else f"({row})"
        return [job.replace(product.span, _bracketed(job, product, offset(inline)), step)]
    if exists is not None:
        condition, row = exists
        value = f"{condition} ? {offset(row)} : 0"
        name, hunks = _declared(names, product, _stride_type(names, product), ("page_offset", "paged_offset"), value)
        return [*hunks, job.replace(product.span, name, step)]
    name, hunks = _declared(names, product, "int", ("key_row", "paged_row"), row)
    return [*hunks, job.replace(product.span, _bracketed(job, product, offset(name)), step)]


def _condition(names: _Names, product: PageProduct, row: str) -> tuple[str, str] | None:
    """(condition, row) where the text knows whether the row exists, and only then a page has it: ``(in ? row : 0)``, or
    a constant of the block before the product, ``const bool in = row < rows``.
    """
    choice = _CHOICE.fullmatch(product.row)
    if choice is not None:
        return choice["condition"], choice["row"]
    if product.statement is None or not re.fullmatch(r"\w+", row):
        return None
    before = names.job.source.data[max(product.block, 0) : product.statement.start].decode(errors="replace")
    known = re.findall(rf"\bbool\s+(\w+)\s*=\s*{row}\s*<\s*\w+\s*;", before)
    return (known[-1], row) if known else None


def _declared(
    names: _Names, product: PageProduct, kind: str, wanted: tuple[str, ...], value: str
) -> tuple[str, list[Hunk]]:
    """A constant before the statement of the product: its name, and the hunk unless the block has it already."""
    key = (product.block, kind, value)
    if key in names.declared:
        return names.declared[key], []
    job = names.job
    used = {name for (block, _, _), name in names.declared.items() if block == product.block}
    free = [name for name in wanted if name not in job.style.identifiers and name not in used]
    name = names.declared[key] = free[0] if free else job.scopes.hoisted.maker.make(wanted[0])
    assert product.statement is not None
    start = product.statement.start
    line = f"const {kind} {name} = {value};{job.style.newline}{job.line_indent(start)}"
    return name, [job.hunk(start, start, line, names.step)]


def _bracketed(job: Job, product: PageProduct, text: str) -> str:
    """In brackets where something stronger than a sum stands beside it."""
    data = job.source.data
    before = data[: product.span.start].rstrip()[-1:]
    behind = data[product.span.end :].lstrip()[:1]
    loose = before in b"[+,(=" and behind in b"]+,);"
    return text if loose else f"({text})"


def _stride_type(names: _Names, product: PageProduct) -> str:
    """The type of an offset: that of the row stride."""
    for function in names.site.functions:
        if function.name == product.function and product.stride in function.strides:
            return function.ctypes[function.strides.index(product.stride)].removeprefix("const ").strip()
    ctypes = {names.job.scopes.spelling.get(p.name, p.name): p.ctype for p in names.job.scopes.kernel.params}
    return ctypes[product.stride].removeprefix("const ").strip()


def _call(names: _Names, call: PageCall) -> list[Hunk]:
    job, step = names.job, names.step
    given = [names.table_in(call.function), *(names.page_stride(call.function, s) for s in call.strides)]
    hunks = [job.hunk(call.insert, call.insert, _listed(job, call.insert, given), step)]
    if call.callee in names.made:
        hunks.append(job.replace(call.name, names.made[call.callee], step))
    return hunks


def _parameters(names: _Names, function: PageFunction) -> Hunk:
    items = [f"{names.pointer}{names.parameter}"]
    for stride, ctype in zip(function.strides, function.ctypes, strict=True):
        items.append(f"{ctype} {names.strides[function.name, stride]}")
    longer = len(names.made.get(function.name, function.name)) - len(function.name)
    text = _listed(names.job, function.insert, items, longer)
    return names.job.hunk(function.insert, function.insert, text, names.step)


def _listed(job: Job, offset: int, items: list[str], longer: int = 0) -> str:
    """``, a, b``, on a line of its own where the line, by now `longer`, gets too long."""
    text = ", ".join(items)
    rest = job.text(offset, offset + 3).splitlines()
    column = f"{job.column(offset)}{job.inserted.get(offset, '')}".rpartition(job.style.newline)[2]
    if job.style.fits(f"{' ' * longer}{column}, {text}{rest[0] if rest else ''}"):
        return f", {text}"
    indent = job.line_indent(offset)
    opened = job.column(offset).rfind("(") + 1
    opened += longer if opened else 0
    deeper = " " * opened if opened > len(indent) and job.style.fits(" " * opened + text) else indent
    return f",{job.style.newline}{deeper}{text}"


def _placed(names: _Names, hunks: list[Hunk]) -> list[Hunk]:
    """The hunks; those inside a shared function go into its second version, which is put behind it."""
    job = names.job
    out: list[Hunk] = []
    left = list(hunks)
    for function in names.site.functions:
        if not function.shared:
            continue
        start, end = function.definition.start, function.definition.end
        own = [h for h in left if start <= h.start and h.end <= end]
        left = [h for h in left if h not in own]
        data = job.source.data[start:end]
        moved = [Hunk(h.start - start, h.end - start, h.old, h.new, h.why) for h in own]
        text = apply_hunks(data, moved).decode("utf-8", "replace")
        text = _renamed(text, {function.name: names.made[function.name]})
        nl = job.style.newline
        where = f"in pages of {names.edit.size}: `{names.parameter}` has their numbers"
        comment = f"// As {function.name}, for rows that lie {where}."
        out.append(job.hunk(end, end, f"{nl}{nl}{comment}{nl}{text}", names.step))
    return out + left


def _renamed(text: str, words: Mapping[str, str]) -> str:
    """The first occurrence of each word, which is the name being defined."""
    for old, new in words.items():
        text = re.sub(rf"\b{re.escape(old)}\b", new, text, count=1)
    return text
