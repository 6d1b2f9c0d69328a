"""A job with a model as JSON lines: every question, reply and verdict, what was spent. Replayed, it needs no model.

A replay verifies anew: it takes the replies from the file and nothing else.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from types import TracebackType
from typing import IO, Any

from .client import Answered, AskFailed, Message

VERSION = 1


class Transcript:
    """Writes one event a line; without a path, nothing. `secrets` are blanked wherever they stand: no key gets in."""

    def __init__(self, path: str | None, secrets: Sequence[str] = ()) -> None:
        """Raises OSError when the file cannot be written."""
        self._file: IO[str] | None = open(path, "w", encoding="utf-8") if path else None  # noqa: SIM115 - closed by exit
        self._secrets = [secret for secret in secrets if secret]

    def __enter__(self) -> Transcript:
        return self

    def __exit__(self, kind: type[BaseException] | None, value: object, trace: TracebackType | None) -> None:
        if self._file is not None:
            self._file.close()

    def write(self, event: str, **fields: Any) -> None:
        """One line."""
        if self._file is None:
            return
        line = json.dumps({"event": event, **fields}, ensure_ascii=False, default=str)
        for secret in self._secrets:
            line = line.replace(secret, "***")
        self._file.write(line.replace("\n", " ") + "\n")
        self._file.flush()


def digest(messages: Sequence[Message]) -> str:
    """What makes two questions the same."""
    return hashlib.sha256(json.dumps([dict(m) for m in messages], sort_keys=True).encode()).hexdigest()


class BadTranscript(ValueError):
    """The file cannot be replayed; says why in one clause."""


class Replayed:
    """Replies of a transcript, as a `Source`: to the very questions that they were given to."""

    def __init__(self, path: str) -> None:
        """Raises BadTranscript, and OSError when the file cannot be read."""
        self.path = path
        events = _events(path)
        start = next((event for event in events if event["event"] == "start"), None)
        if start is None or start.get("version") != VERSION:
            raise BadTranscript(f"it is no transcript of version {VERSION}")
        self.start: Mapping[str, Any] = start
        self.model, self.host = str(start["model"]), str(start["host"])
        self._questions = {e["question"]: e["digest"] for e in events if e["event"] == "question"}
        self._replies = {(e["question"], e["candidate"]): e for e in events if e["event"] == "reply"}
        self._failed = {(e["question"], e["candidate"]): e for e in events if e["event"] == "failed"}

    def ask(self, role: str, messages: Sequence[Message], place: tuple[int, int]) -> Answered:
        """See `Source`. Raises BadTranscript for a question that was never asked."""
        if self._questions.get(place[0]) != digest(messages):
            raise BadTranscript(f"question {place[0] + 1} is another one than then")
        if place in self._failed:
            raise AskFailed(str(self._failed[place]["code"]), str(self._failed[place]["why"]))
        if place not in self._replies:
            raise BadTranscript(f"there is no reply to question {place[0] + 1}, candidate {place[1] + 1}")
        kept = self._replies[place]
        return Answered(kept["text"], kept["form"], kept["prompt_tokens"], kept["reply_tokens"], kept["seconds"])

    def close(self) -> None:
        """Nothing is open."""


def _events(path: str) -> list[dict[str, Any]]:
    events: list[dict[str, Any]] = []
    for number, line in enumerate(Path(path).read_text(encoding="utf-8").splitlines(), 1):
        try:
            event = json.loads(line)
        except ValueError:
            raise BadTranscript(f"line {number} is no JSON") from None
        if not isinstance(event, dict) or not isinstance(event.get("event"), str):
            raise BadTranscript(f"line {number} is no event")
        events.append(event)
    return events
