"""The page of a code: why it matters, an example, how to mend it. A diagnostic's code links to it.

A link leads to a file, which every editor can open; the pages come with the engine as text, so they are written where
it keeps what it can make again. Our extension asks for the text and shows it rendered.
"""

from __future__ import annotations

import logging
import re
from functools import lru_cache
from typing import TYPE_CHECKING, Any

from cubridge_engine.compile.cache import cache_dir
from cubridge_engine.diagnostics import make

from . import convert, job

if TYPE_CHECKING:
    from .app import CubridgeServer

LOG = logging.getLogger(__name__)
_OF_CHECK = re.compile(r"CB5\d\d|CB8[4-9]\d")


def page(code: str) -> str | None:
    """The page of `code` as Markdown; None where there is none."""
    if not _OF_CHECK.fullmatch(code):  # what looks it up brings all that lifting needs: not for every diagnostic
        return None
    from cubridge_engine.check import page_of

    return page_of(code)


@lru_cache(maxsize=256)
def href(code: str) -> str | None:
    """The address of the page of `code`: a file, written now; None where there is no page, or no place for it."""
    text, folder = page(code), cache_dir()
    if text is None or folder is None:
        return None
    path = folder.parent / "pages" / f"{code}.md"
    try:
        if not path.exists() or path.read_text(encoding="utf-8") != text:
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(text, encoding="utf-8")
    except OSError as error:  # a diagnostic without a link is better than none
        LOG.info("no page of %s: %s", code, error)
        return None
    return convert.uri_of(str(path))


async def code_page(ls: CubridgeServer, argument: Any = None) -> dict[str, Any]:
    """``workspace/executeCommand cubridge.codePage``: ``{state, message, code, text}`` for ``code``; without it the
    ``codes`` that have a page, as ``[{code, title}]``."""
    from cubridge_engine.check import pages

    code = job.field_of(argument, "code")
    if code is None:
        return {"state": "done", "message": "", "codes": [{"code": key, "title": title} for key, title in pages()]}
    text = page(code) if isinstance(code, str) else None
    if text is None:
        why = make("CB085", name=code)
        return {"state": "refused", "message": f"{why.code}: {why.message}", "code": code, "text": ""}
    return {"state": "done", "message": "", "code": code, "text": text}
