"""Latency figures of the tool: what a user waits for. ``python -m bench.latency [--out FILE]``.

Every figure is measured through the real interfaces (a server process over stdio, the CLI, the worker), on this
machine; nothing is asserted. ``--only typing`` (or reading, serving, cancelling, adapting) measures one part anew and
keeps the others of the record.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import platform
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import psutil
from lsprotocol import types as t
from pygls.lsp.client import LanguageClient

from cubridge_engine.jobs import Worker
from cubridge_engine.lift import lift
from cubridge_engine.source import parse

from . import editing
from .examples import ROOT, commit
from .figures import figures

KERNEL = ROOT / "expert_kernels/flash_fwd_sm80/kernel.cu"
SPEC = ROOT / "examples/gemma2_softcap_window.py"


def repeat(n: int, fn: Callable[[], object]) -> list[float]:
    """Wall seconds of `n` calls."""
    out: list[float] = []
    for _ in range(n):
        start = time.perf_counter()
        fn()
        out.append(time.perf_counter() - start)
    return out


def reading() -> dict[str, Any]:
    """Parsing and lifting, in process."""
    data = KERNEL.read_bytes()
    source = parse(str(KERNEL), data)
    edited = data.replace(b"const int lane", b"const  int lane", 1)
    return {
        "parse": figures(repeat(30, lambda: parse(str(KERNEL), data))),
        "reparse after one character": figures(repeat(30, lambda: parse(str(KERNEL), edited, previous=source))),
        "parse and lift, a new text each time": figures([lift_once(data + b"// %d\n" % n) for n in range(6)]),
        "lines": data.count(b"\n"),
    }


def lift_once(data: bytes) -> float:
    """Seconds to parse and lift a text that no cache knows."""
    return repeat(1, lambda: lift(parse(str(KERNEL), data)))[0]


async def serving() -> dict[str, Any]:
    """A server process over stdio: ready, hover, memory with ten kernels open."""
    ready: list[float] = []
    for _ in range(5):
        client = LanguageClient("latency", "1")
        start = time.perf_counter()
        await client.start_io(sys.executable, "-m", "server", cwd=str(ROOT))
        await _initialize(client)
        ready.append(time.perf_counter() - start)
        await _stop(client)
    client = LanguageClient("latency", "1")
    await client.start_io(sys.executable, "-m", "server", cwd=str(ROOT))
    await _initialize(client)
    text = KERNEL.read_text()
    uris = [f"file:///bench/kernel{n}.cu" for n in range(10)]
    for uri in uris:
        client.text_document_did_open(t.DidOpenTextDocumentParams(t.TextDocumentItem(uri, "cuda-cpp", 1, text)))
        await _pull(client, uri)
    hover = t.HoverParams(t.TextDocumentIdentifier(uris[0]), t.Position(239, 10))
    hovers: list[float] = []
    for _ in range(30):
        start = time.perf_counter()
        await client.text_document_hover_async(hover)
        hovers.append(time.perf_counter() - start)
    memory = _memory(client)
    await _stop(client)
    return {
        "server ready": figures(ready),
        "hover": figures(hovers),
        "server memory, ten kernels open, MB": round(memory / 1e6, 1),
    }


async def _initialize(client: LanguageClient) -> None:
    await client.initialize_async(
        t.InitializeParams(capabilities=t.ClientCapabilities(), process_id=os.getpid(), root_uri=ROOT.as_uri())
    )
    client.initialized(t.InitializedParams())


async def _pull(client: LanguageClient, uri: str) -> None:
    await client.text_document_code_lens_async(t.CodeLensParams(t.TextDocumentIdentifier(uri)))


async def _stop(client: LanguageClient) -> None:
    await client.shutdown_async(None)
    client.exit(None)
    await client.stop()


def _memory(client: LanguageClient) -> int:
    """Resident bytes of the server process itself."""
    children = [p for p in psutil.Process().children() if "server" in " ".join(p.cmdline())]
    return sum(p.memory_info().rss for p in children)


def cancelling() -> dict[str, Any]:
    """From the call of cancel to the end of the job."""
    worker = Worker()
    samples: list[float] = []
    try:
        for _ in range(4):
            handle = worker.run("adapt", {"kernel": str(KERNEL), "spec": str(SPEC)})
            time.sleep(1.5)
            start = time.perf_counter()
            handle.cancel()
            handle.result()
            samples.append(time.perf_counter() - start)
    finally:
        worker.close()
    return {"cancel": figures(samples)}


def adapting() -> dict[str, Any]:
    """The main job, in a fresh process (cold) and in a warm worker."""
    with tempfile.TemporaryDirectory() as folder:
        environment = {**os.environ, "XDG_CACHE_HOME": folder}
        command = [sys.executable, "-m", "cubridge_engine.cli.main", "adapt", str(KERNEL), str(SPEC)]

        def once() -> None:
            subprocess.run([*command, "--format", "json"], cwd=ROOT, env=environment, capture_output=True, check=False)

        cold = repeat(1, once)
        again = repeat(2, once)
    worker = Worker()
    try:
        task = {"kernel": str(KERNEL), "spec": str(SPEC)}
        worker.run("adapt", task).result()
        warm = repeat(2, lambda: worker.run("adapt", task).result())
    finally:
        worker.close()
    return {
        "adapt, first time (empty compile cache)": figures(cold),
        "adapt, second time": figures(again),
        "adapt, warm worker": figures(warm),
    }


def load() -> str:
    """What else the machine was doing: wall-clock figures of a busy one say little about an idle one."""
    return f"{os.getloadavg()[0]:.1f} runnable processes on average"


PARTS: dict[str, Callable[[], dict[str, Any]]] = {
    "reading": reading,
    "serving": lambda: asyncio.run(serving()),
    "typing": lambda: {"typing": {"machine load while measured": load(), **asyncio.run(editing.typing())}},
    "cancelling": cancelling,
    "adapting": adapting,
}


def main() -> int:
    """Command line."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--out", type=Path)
    parser.add_argument("--only", choices=PARTS, action="append")
    args = parser.parse_args()
    kept: dict[str, Any] = json.loads(args.out.read_text()) if args.only and args.out and args.out.exists() else {}
    record: dict[str, Any] = kept | {
        "what": "latency of the tool, wall clock",
        "commit": commit(),
        "date": time.strftime("%Y-%m-%d"),
        "machine": {"cores": os.cpu_count(), "processor": platform.machine(), "python": platform.python_version()},
    }
    for name in args.only or PARTS:
        record |= PARTS[name]()
    text = json.dumps(record, indent=1) + "\n"
    print(text, end="")
    if args.out:
        args.out.write_text(text)
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
