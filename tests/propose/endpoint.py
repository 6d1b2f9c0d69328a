"""A server on a loopback address that speaks the chat completions API and answers by a script."""

from __future__ import annotations

import json
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

from cubridge_engine.propose import client
from cubridge_engine.propose.config import Endpoint

KEY = "sk-scripted-secret-0123456789"


@dataclass(frozen=True)
class Say:
    """A reply. `cut`: the server stopped it at its limit of tokens."""

    text: str | None
    cut: bool = False
    refusal: str | None = None


@dataclass(frozen=True)
class Status:
    """An error of HTTP."""

    code: int
    message: str = "no"
    headers: dict[str, str] = field(default_factory=dict)


@dataclass(frozen=True)
class Slow:
    """Nothing for some seconds (or until the server is closed), then `then`."""

    seconds: float
    then: Any = None


class Drop:
    """The connection is closed without an answer."""


@dataclass(frozen=True)
class Raw:
    """A body that is no completion."""

    body: bytes


Act = Say | Status | Slow | Drop | Raw | Callable[[dict[str, Any]], Any]


class Scripted:
    """Acts one after another, the last one again and again. `requests` has what came: body and headers."""

    def __init__(self, acts: list[Act], accepts: Callable[[dict[str, Any]], str | None] = lambda _: None) -> None:
        self.acts, self.accepts = list(acts), accepts
        self.requests: list[tuple[dict[str, Any], dict[str, str]]] = []
        self.closing = threading.Event()
        self._lock = threading.Lock()
        scripted = self

        class Handler(BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"

            def do_POST(self) -> None:
                body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
                scripted.serve(self, body, dict(self.headers))

            def log_message(self, format: str, *args: Any) -> None:
                pass

        self._server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self._server.daemon_threads = True
        self._thread = threading.Thread(target=self._server.serve_forever, args=(0.01,), daemon=True)
        self._thread.start()

    def __enter__(self) -> Scripted:
        return self

    def __exit__(self, *_: object) -> None:
        self.closing.set()
        self._server.shutdown()
        self._server.server_close()
        client._FORM.clear()

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self._server.server_address[1]}/v1"

    def endpoint(self, key: str = KEY) -> Endpoint:
        return Endpoint("scripted", self.url, key)

    def serve(self, handler: BaseHTTPRequestHandler, body: dict[str, Any], headers: dict[str, str]) -> None:
        with self._lock:
            self.requests.append((body, headers))
            why = self.accepts(body)
            act: Any = Status(400, why) if why else self.acts.pop(0) if len(self.acts) > 1 else self.acts[0]
        while callable(act) and not isinstance(act, type):
            act = act(body)
        if isinstance(act, Slow):
            self.closing.wait(act.seconds)
            act = act.then or Say("")
        if isinstance(act, Drop):
            handler.close_connection = True
            handler.connection.close()
            return
        code, headers, data = _bytes_of(act)
        handler.send_response(code)
        for name, value in {"Content-Type": "application/json", **headers, "Content-Length": str(len(data))}.items():
            handler.send_header(name, value)
        handler.end_headers()
        handler.wfile.write(data)


def _bytes_of(act: Any) -> tuple[int, dict[str, str], bytes]:
    if isinstance(act, Raw):
        return 200, {}, act.body
    if isinstance(act, Status):
        return act.code, act.headers, json.dumps({"error": {"message": act.message, "type": "scripted"}}).encode()
    message = {"role": "assistant", "content": act.text, "refusal": act.refusal}
    choice = {"index": 0, "message": message, "finish_reason": "length" if act.cut else "stop"}
    return (
        200,
        {},
        json.dumps(
            {
                "id": "1",
                "object": "chat.completion",
                "created": int(time.time()),
                "model": "scripted",
                "choices": [choice],
                "usage": {"prompt_tokens": 1000, "completion_tokens": 100, "total_tokens": 1100},
            }
        ).encode(),
    )
