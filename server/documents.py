"""The open kernels: the text the client has, and what reading made of it.

Reading (parse and lift) is pure Python and takes some tenths of a second, so it runs in a thread, never on the event
loop, at most once at a time per document; typing restarts a short pause. The last good reading stays available, marked
stale by its version, until a newer one is there: nothing that the user types waits for the engine.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from dataclasses import dataclass, field

from cubridge_engine.source import TextIndex

from . import convert, engine

LOG = logging.getLogger(__name__)
PAUSE_S = 0.15  # after the last keystroke


@dataclass(slots=True)
class Document:
    """One open kernel. `reading` belongs to `reading_version`, which may be older than `version`."""

    uri: str
    path: str
    version: int
    text: TextIndex
    reading: engine.Reading | None = None
    reading_version: int = -1
    task: asyncio.Task[None] | None = None

    @property
    def data(self) -> bytes:
        """The client's text, UTF-8."""
        return self.text.data

    @property
    def stale(self) -> bool:
        """True when the reading is of an older version."""
        return self.reading_version != self.version


@dataclass(slots=True)
class Documents:
    """All open kernels. `on_read(uri)` is called on the event loop after each new reading."""

    on_read: Callable[[str], None]
    _open: dict[str, Document] = field(default_factory=dict)

    def get(self, uri: str) -> Document | None:
        """The open document, or None."""
        return self._open.get(uri)

    def uris(self) -> tuple[str, ...]:
        """URIs of the open kernels."""
        return tuple(self._open)

    def open(self, uri: str, version: int, text: str) -> None:
        """The client opened `uri`: read it at once."""
        document = Document(uri, convert.path_of(uri), version, TextIndex(text.encode("utf-8", "surrogatepass")))
        self._open[uri] = document
        document.task = asyncio.ensure_future(self._read(document, 0.0))

    def change(self, uri: str, version: int, text: str) -> None:
        """The client changed `uri`: read it after a pause in the typing."""
        document = self._open.get(uri)
        if document is None:
            return self.open(uri, version, text)
        document.version, document.text = version, TextIndex(text.encode("utf-8", "surrogatepass"))
        # A running read cannot be stopped in its thread; it sees the new version when it ends and goes round again.
        if document.task is None or document.task.done():
            document.task = asyncio.ensure_future(self._read(document, PAUSE_S))
        return None

    def close(self, uri: str) -> None:
        """The client closed `uri`."""
        document = self._open.pop(uri, None)
        if document and document.task:
            document.task.cancel()

    async def fresh(self, uri: str, timeout_s: float) -> Document | None:
        """The document, after waiting at most `timeout_s` seconds for the reading of its present version."""
        document = self._open.get(uri)
        if document and document.stale and document.task and timeout_s > 0:
            await asyncio.wait({document.task}, timeout=timeout_s)
        return document

    def text(self, path: str) -> TextIndex:
        """What the client sees at `path`: the open text, else the file on disk (empty if there is none)."""
        document = self._open.get(convert.uri_of(path))
        return document.text if document else TextIndex(convert.read_disk(path))

    async def _read(self, document: Document, pause_s: float) -> None:
        while document.stale:
            seen = -1
            while pause_s and seen != document.version:  # wait until a whole pause passed with no keystroke
                seen = document.version
                await asyncio.sleep(pause_s)
            version, data = document.version, document.data
            try:
                reading = await asyncio.to_thread(engine.read, document.path, data, document.reading)
            except Exception:  # reading never raises by contract; if it does, the editor must stay alive
                LOG.exception("reading %s failed", document.path)
                reading = engine.unreadable(document.path)
            document.reading, document.reading_version = reading, version
            pause_s = PAUSE_S
            if document.uri in self._open:
                self.on_read(document.uri)
