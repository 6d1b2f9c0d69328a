"""The open kernels: the text the client has, and what reading made of it.

Reading (parse and lift) is pure Python and takes some tenths of a second, so it runs in a thread, never on the event
loop, at most once at a time per document; typing restarts a short pause. Until a newer reading is there the last one
is shown moved to the lines of the present text, without what the typing touched: nothing waits for the engine.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial

from cubridge_engine.source import TextIndex

from . import checks, convert, engine, lines
from .checks import Checks
from .lines import Hunk
from .reuse import Lifts

LOG = logging.getLogger(__name__)
PAUSE_S = 0.1  # after the last keystroke
CHECK_PAUSE_S = 0.2  # after a reading: findings are few, and may come when the typing stops


@dataclass(slots=True)
class Document:
    """One open kernel. `reading` belongs to `reading_version`, which may be older than `version`; `doubtful` says that
    the text that its kernels depend on changed since."""

    uri: str
    path: str
    version: int
    text: TextIndex
    reading: engine.Reading | None = None
    reading_version: int = -1
    doubtful: bool = False
    checks: Checks = field(default_factory=Checks)
    checks_version: int = -1
    fixes_version: int = -1
    check_turn: int = 0  # counts how often the rules themselves, or their settings, changed
    lifts: Lifts = field(default_factory=Lifts)
    task: asyncio.Task[None] | None = None
    hunks: list[tuple[int, Hunk]] = field(default_factory=list[tuple[int, Hunk]])  # (version, what it changed)
    arrival: asyncio.Event = field(default_factory=asyncio.Event)  # set, and replaced, with every new reading

    @property
    def data(self) -> bytes:
        """The client's text, UTF-8."""
        return self.text.data

    @property
    def stale(self) -> bool:
        """True when the reading is of an older version."""
        return self.reading_version != self.version

    @property
    def checked(self) -> Checks | None:
        """What the rules found in the present text; None until they have looked at it."""
        return self.checks if self.checks_version == self.version else None

    @property
    def fixes_known(self) -> bool:
        """Whether it is known which fixes of the present text may be offered."""
        return self.fixes_version == self.version

    def update(self, version: int, text: TextIndex) -> None:
        """The client has a new text."""
        hunk = lines.hunk_between(self.text, text)
        if hunk is not None:
            self.doubtful = self.doubtful or self._matters(hunk)
            self.hunks.append((version, hunk))
        self.version, self.text = version, text

    def take(self, version: int, reading: engine.Reading) -> None:
        """`reading` is that of `version`; what was typed since moves it on."""
        later = [(at, hunk) for at, hunk in self.hunks if at > version]
        self.reading, self.reading_version, self.doubtful, self.hunks = reading, version, False, []
        for at, hunk in later:
            self.doubtful = self.doubtful or self._matters(hunk)
            self.hunks.append((at, hunk))
        self.arrived()

    def arrived(self) -> None:
        """Wake who waits for something about this document."""
        self.arrival.set()
        self.arrival = asyncio.Event()

    def _matters(self, hunk: Hunk) -> bool:
        """Whether `hunk`, on the text before it, is in what the kernels of the reading depend on."""
        if self.reading is None:
            return False
        moved = [(self.shown(first), self.shown(last)) for first, last in self.reading.uses()]
        # A range whose first or last line was typed on is doubtful already.
        known = [(first, last) for first, last in moved if first is not None and last is not None]
        return len(known) < len(moved) or hunk.inside(known)

    def shown(self, line: int) -> int | None:
        """Where a line of the reading is in the present text; None when it was touched since."""
        return lines.forward([hunk for _, hunk in self.hunks], line)

    def read_line(self, line: int) -> int | None:
        """Which line of the reading a line of the present text is; None when it was touched since."""
        return lines.back([hunk for _, hunk in self.hunks], line)

    def untouched(self, first: int, last: int) -> bool:
        """True when none of these lines of the reading was touched and nothing was typed between them."""
        start, end = self.shown(first), self.shown(last)
        return start is not None and end is not None and end - start == last - first and self._whole(first, last)

    def _whole(self, first: int, last: int) -> bool:
        return not self.hunks or all(self.shown(line) is not None for line in range(first, last + 1))


@dataclass(slots=True)
class Documents:
    """All open kernels. `on_read(uri)` is called on the event loop after each new reading, `on_checked(uri)` after the
    rules of `check` have looked at one, which they do where `checking()` says so."""

    on_read: Callable[[str], None]
    on_checked: Callable[[str], None]
    checking: Callable[[], bool]
    _open: dict[str, Document] = field(default_factory=dict)
    _others: dict[str, TextIndex] = field(default_factory=dict[str, TextIndex])  # open specs and contracts, by path

    def get(self, uri: str) -> Document | None:
        """The open document, or None."""
        return self._open.get(uri)

    def uris(self) -> tuple[str, ...]:
        """URIs of the open kernels."""
        return tuple(self._open)

    def open(self, uri: str, version: int, text: str) -> None:
        """The client opened `uri`: read it at once."""
        document = Document(uri, convert.path_of(uri), version, _index(text))
        self._open[uri] = document
        document.task = asyncio.ensure_future(self._read(document, 0.0))

    def change(self, uri: str, version: int, text: str) -> None:
        """The client changed `uri`: read it after a pause in the typing."""
        document = self._open.get(uri)
        if document is None:
            return self.open(uri, version, text)
        document.update(version, _index(text))
        # A running read cannot be stopped in its thread; it sees the new version when it ends and goes round again.
        if document.task is None or document.task.done():
            document.task = asyncio.ensure_future(self._read(document, PAUSE_S))
        return None

    def close(self, uri: str) -> None:
        """The client closed `uri`."""
        document = self._open.pop(uri, None)
        if document and document.task:
            document.task.cancel()
            document.arrival.set()

    async def fresh(self, uri: str, timeout_s: float) -> Document | None:
        """The document, after waiting at most `timeout_s` seconds for the reading of its present version."""
        return await self._when(uri, timeout_s, lambda document: not document.stale)

    async def checked(self, uri: str, timeout_s: float, *, fixes: bool = False) -> Document | None:
        """The document, after waiting at most `timeout_s` seconds for what the rules say of its present version, and
        for which `fixes` may be offered."""

        def done(document: Document) -> bool:
            return not self.checking() or (document.fixes_known if fixes else document.checked is not None)

        return await self._when(uri, timeout_s, done)

    async def _when(self, uri: str, timeout_s: float, done: Callable[[Document], bool]) -> Document | None:
        document = self._open.get(uri)
        deadline = time.monotonic() + timeout_s
        while document and not done(document) and uri in self._open and (left := deadline - time.monotonic()) > 0:
            with contextlib.suppress(asyncio.TimeoutError):
                await asyncio.wait_for(document.arrival.wait(), left)
        return document

    def check_again(self) -> None:
        """Whether and how rules look at kernels has changed: look at all open ones again."""
        for document in self._open.values():
            document.checks, document.checks_version, document.fixes_version = Checks(), -1, -1
            document.check_turn += 1
            if document.task is None or document.task.done():
                document.task = asyncio.ensure_future(self._read(document, 0.0))
            self.on_checked(document.uri)

    async def readable(self, uri: str, timeout_s: float, *, refreshed: bool) -> Document | None:
        """The document for a request that the last reading can answer. It waits for a new one only where there is none
        yet, or where the client cannot be told (`refreshed`) to ask again."""
        document = self._open.get(uri)
        wait = document is not None and (document.reading is None or not refreshed)
        return await self.fresh(uri, timeout_s if wait else 0.0)

    def text(self, path: str) -> TextIndex:
        """What the client sees at `path`: the open text, else the file on disk (empty if there is none)."""
        document = self._open.get(convert.uri_of(path))
        text = document.text if document else self._others.get(path)
        return TextIndex(convert.read_disk(path)) if text is None else text

    def is_open(self, path: str) -> bool:
        """Whether the client has the file open, and so perhaps in a text that is not saved."""
        return path in self._others or convert.uri_of(path) in self._open

    def keep(self, path: str, text: str | None) -> None:
        """The client's text of an open spec or contract; None when it was closed."""
        if text is None:
            self._others.pop(path, None)
        else:
            self._others[path] = _index(text)

    async def _read(self, document: Document, pause_s: float) -> None:
        while document.stale or _pending(document) or self._unchecked(document):
            if not document.stale and not _pending(document):
                await self._check(document)
                continue
            seen = -1
            while document.stale and pause_s and seen != document.version:  # until a whole pause without a keystroke
                seen = document.version
                await asyncio.sleep(pause_s)
            version, next_reading = document.version, _next_reading(document)
            try:
                reading = await asyncio.to_thread(next_reading)
            except Exception:  # reading never raises by contract; if it does, the editor must stay alive
                LOG.exception("reading %s failed", document.path)
                reading = engine.unreadable(document.path)
            document.take(version, reading)
            pause_s = PAUSE_S
            if document.uri in self._open:
                self.on_read(document.uri)

    def _unchecked(self, document: Document) -> bool:
        return self.checking() and document.uri in self._open and not document.fixes_known

    async def _check(self, document: Document) -> None:
        """Have the rules look at the present reading, after a pause; then verify the fixes of what they found."""
        version, turn, reading = document.version, document.check_turn, document.reading
        first = document.checked is None
        if first:
            await asyncio.sleep(CHECK_PAUSE_S)
        if reading is None or document.version != version:
            return
        if first:
            found = await asyncio.to_thread(checks.run, document.path, reading)
        else:
            found = await asyncio.to_thread(checks.with_fixes, document.path, reading, document.checks)
        if document.check_turn != turn:  # they were asked to look otherwise meanwhile
            return
        document.checks, document.checks_version = found, version
        if not first or not found.fixable:
            document.fixes_version = version
        document.arrived()
        if first and document.uri in self._open and document.version == version:
            self.on_checked(document.uri)


def _pending(document: Document) -> bool:
    return document.reading is not None and bool(document.reading.pending)


def _next_reading(document: Document) -> Callable[[], engine.Reading]:
    """What to do in the thread: read the present text or, when it is read, one more of its kernels."""
    reading, lifts = document.reading, document.lifts
    if document.stale or reading is None:
        return partial(engine.read, document.path, document.data, reading, lifts)
    return partial(engine.read_next, reading, lifts)


def _index(text: str) -> TextIndex:
    return TextIndex(text.encode("utf-8", "surrogatepass"))
