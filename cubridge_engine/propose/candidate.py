"""The user's text with the proposed parts in it, each between two comments that say whose it is."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence

from ..lift.proposed import BEGIN, END
from ..lower import Hunk, apply_hunks
from ..source import SourceFile
from .guard import Rejected, check_texts
from .replies import SiteText
from .sites import Site


def hunks_of(source: SourceFile, sites: Mapping[str, Site], texts: Sequence[SiteText], model: str) -> tuple[Hunk, ...]:
    """The changes of a reply on the user's bytes. Raises Rejected for a site that there is not, or a text that may not
    be there."""
    unknown = [item.site for item in texts if item.site not in sites]
    if unknown:
        raise Rejected(f"there is no site {unknown[0][:60]!r}; sites are {', '.join(sites)}")
    edits = [(sites[item.site], item.text) for item in texts]
    check_texts(edits)
    changed = [(site, text) for site, text in edits if text.strip() != site.text(source).strip()]
    if not changed:
        raise Rejected("every site would stay as it is")
    return tuple(_hunk(source, site, text, model_name(model)) for site, text in changed)


def with_hunks(source: SourceFile, hunks: Sequence[Hunk]) -> bytes:
    """The changed text."""
    return apply_hunks(source.data, hunks)


def model_name(model: str) -> str:
    """A model's name as it can stand in a comment."""
    return re.sub(r"[^\w.:@/+-]", "_", model).replace("*/", "_")[:80] or "model"


def _hunk(source: SourceFile, site: Site, text: str, model: str) -> Hunk:
    span = source.span_of(site.start, site.end)
    old = source.data[site.start : site.end].decode("utf-8", "replace")
    newline = "\r\n" if b"\r\n" in source.data else "\n"
    if site.whole:
        indent = _indent(source, site.start)
        lines = [f"// {BEGIN} {site.name} ({model})", *_shifted(text, indent), f"// {END}"]
        new = f"{newline}{indent}".join(lines)
        if site.start == site.end:  # an insertion before the line that stands there
            new = f"{indent}{new}{newline}"
    else:
        begin, end = f"/* {BEGIN} {site.name} ({model}) */", f"/* {END} */"
        new = f"{begin} {' '.join(text.split())} {end}" if "//" not in text else f"{begin}\n{text.strip()}\n{end}"
    return Hunk(site.start, site.end, old, new, f"proposed: {site.name}", span.line)


def _indent(source: SourceFile, offset: int) -> str:
    line = source.data[source.data.rfind(b"\n", 0, offset) + 1 :]
    return re.match(rb"[ \t]*", line)[0].decode()  # pyright: ignore[reportOptionalSubscript] - matches nothing at least


def _shifted(text: str, indent: str) -> list[str]:
    """The lines of `text` without the indentation that they share (`indent` comes before each anyway)."""
    lines = text.strip("\n").rstrip().split("\n")
    first_bare = bool(lines) and not lines[0].startswith((" ", "\t"))
    rest = [len(line) - len(line.lstrip()) for line in lines[1 if first_bare else 0 :] if line.strip()]
    shared = min(min(rest, default=0), len(indent)) if first_bare else min(rest, default=0)
    head = [lines[0].lstrip()] if first_bare else []
    return [*head, *(line[shared:].rstrip() for line in lines[len(head) :])]
