"""What somebody who types waits for: a server over stdio, files of 376, 1,000 and 4,000 lines. Used by `latency`.

The client is one that can be told to ask again, as VS Code and Neovim are. A keystroke is answered twice: at once from
the last reading, moved to the lines of the new text (`answer`), and after the refresh with the new reading (`fresh`).
"""

from __future__ import annotations

import asyncio
import os
import re
import sys
import time
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import psutil
from lsprotocol import types as t
from pygls.lsp.client import LanguageClient

from cubridge_engine.source import parse

from .examples import ROOT
from .figures import figures

SM80 = ROOT / "expert_kernels/flash_fwd_sm80/kernel.cu"
SCALAR = ROOT / "expert_kernels/flash_fwd_scalar/kernel.cu"
STALE = "…"
PATIENCE_S = 60.0
WHOLE = t.Range(t.Position(0, 0), t.Position(10**6, 0))

_FILLER = """
// Reference number {n}: a plain loop on the host, as test drivers have them.
static double reference_{n}(const float* x, const float* y, int count) {{
  double sum = 0.0;
  for (int i = 0; i < count; ++i) {{
    const double d = static_cast<double>(x[i]) - static_cast<double>(y[i]);
    sum += d * d;
  }}
  return count > 0 ? sum / count : 0.0;
}}
"""
_KERNEL = """
__global__ void add_bias_{n}(float* x, const float* bias, int rows, int cols) {{
  const int at = blockIdx.x * blockDim.x + threadIdx.x;
  if (at < rows * cols) {{
    x[at] += bias[at % cols];
  }}
}}
"""


def source_of(lines: int, kernels: int) -> str:
    """About `lines` lines of CUDA with `kernels` attention kernels among other code; each has its own helpers."""
    parts: list[str] = []
    for n in range(kernels):
        parts.append(_renamed((SM80 if n % 2 == 0 else SCALAR).read_text(), n))
    blocks = max(0, lines - sum(p.count("\n") for p in parts)) // 12
    filler = [_FILLER.format(n=n) + (_KERNEL.format(n=n) if n % 5 == 0 else "") for n in range(blocks)]
    share = len(filler) // (kernels + 1)
    mixed: list[str] = []
    for n, part in enumerate(parts):
        mixed += [*filler[n * share : (n + 1) * share], part]
    return "".join([*mixed, *filler[kernels * share :]])


def _renamed(text: str, n: int) -> str:
    """A kernel's text with every name that it declares at top level made its own."""
    source = parse("kernel.cu", text.encode())
    constants = re.findall(r"^(?:constexpr \w+|#define) (\w+)", text, re.MULTILINE)
    names = {*source.functions(), *constants}
    return re.sub(rf"\b({'|'.join(sorted(names))})\b", rf"\1_{n}", text) if n else text


@dataclass
class Editor:
    """One client, one server, one open file; counts what the server asks it to ask again."""

    client: LanguageClient
    root: Path
    uri: str = "file:///bench/kernel.cu"
    version: int = 0
    text: str = ""
    refreshed: asyncio.Event = field(default_factory=asyncio.Event)

    async def start(self) -> None:
        """Start the server of the checkout at `root`."""
        await self.client.start_io(sys.executable, "-m", "server", cwd=str(self.root))

        def again(_params: Any) -> None:
            self.refreshed.set()

        self.client.feature(t.WORKSPACE_INLAY_HINT_REFRESH)(again)
        self.client.feature(t.WORKSPACE_CODE_LENS_REFRESH)(lambda _params: None)
        capabilities = t.ClientCapabilities(
            text_document=t.TextDocumentClientCapabilities(diagnostic=t.DiagnosticClientCapabilities()),
            workspace=t.WorkspaceClientCapabilities(
                inlay_hint=t.InlayHintWorkspaceClientCapabilities(refresh_support=True),
                code_lens=t.CodeLensWorkspaceClientCapabilities(refresh_support=True),
            ),
        )
        await self.client.initialize_async(t.InitializeParams(capabilities, process_id=os.getpid()))
        self.client.initialized(t.InitializedParams())

    async def stop(self) -> None:
        """Shut the server down."""
        await self.client.shutdown_async(None)
        self.client.exit(None)
        await self.client.stop()

    def open(self, text: str) -> None:
        """didOpen."""
        self.text, self.version = text, 1
        item = t.TextDocumentItem(self.uri, "cuda-cpp", 1, text)
        self.client.text_document_did_open(t.DidOpenTextDocumentParams(item))

    def type(self, text: str) -> None:
        """didChange to `text`."""
        self.version += 1
        self.text = text
        self.refreshed.clear()
        document = t.VersionedTextDocumentIdentifier(self.version, self.uri)
        change = t.TextDocumentContentChangeWholeDocument(text)
        self.client.text_document_did_change(t.DidChangeTextDocumentParams(document, [change]))

    async def hints(self) -> list[str]:
        """Labels of all hints."""
        params = t.InlayHintParams(t.TextDocumentIdentifier(self.uri), WHOLE)
        return [str(hint.label) for hint in await self.client.text_document_inlay_hint_async(params) or []]

    async def lenses(self) -> int:
        """How many code lenses there are."""
        found = await self.client.text_document_code_lens_async(t.CodeLensParams(t.TextDocumentIdentifier(self.uri)))
        return len(found or [])

    async def hover(self, line: int) -> bool:
        """Whether the line has a hover."""
        place = t.HoverParams(t.TextDocumentIdentifier(self.uri), t.Position(line, 10))
        return await self.client.text_document_hover_async(place) is not None

    def cpu_s(self) -> float:
        """Processor seconds of the server process so far: what a reading costs however busy the machine is."""
        children = [p for p in psutil.Process().children() if "server" in " ".join(p.cmdline())]
        return sum(sum(p.cpu_times()[:2]) for p in children)

    def memory_mb(self) -> float:
        """Resident memory of the server process."""
        children = [p for p in psutil.Process().children() if "server" in " ".join(p.cmdline())]
        return round(sum(p.memory_info().rss for p in children) / 1e6, 1)


async def until_fresh(editor: Editor, wanted: int) -> None:
    """Ask again whenever told to, until `wanted` hints are there and none is marked."""
    end = time.monotonic() + PATIENCE_S
    while time.monotonic() < end:
        labels = await editor.hints()
        if len(labels) >= wanted and not any(label.endswith(STALE) for label in labels):
            return
        try:
            await asyncio.wait_for(editor.refreshed.wait(), 0.5)
        except asyncio.TimeoutError:
            continue
        editor.refreshed.clear()
    raise TimeoutError(f"{wanted} fresh hints did not come in {PATIENCE_S:.0f} s")


async def measure(root: Path, text: str, kernels: int, rounds: int) -> dict[str, Any]:
    """Figures of one file: open, type inside and outside of a kernel, hover, lens, memory."""
    editor = Editor(LanguageClient("editing", "1"), root)
    await editor.start()
    try:
        start = time.perf_counter()
        editor.open(text)
        while not await editor.lenses():
            await asyncio.sleep(0.01)
        first = time.perf_counter() - start
        while await editor.lenses() < 3 * kernels:
            await asyncio.sleep(0.02)
        every = time.perf_counter() - start
        wanted = len(await editor.hints())
        samples: dict[str, list[float]] = {}
        cpu: dict[str, float] = {}
        for place, needle, typed in (
            ("inside a kernel", "const int lane", "const int lane{}"),
            ("in other code", "// Reference number 0:", "// Reference number 0{}:"),
        ):
            before = editor.cpu_s()
            for n in range(rounds if needle in text else 0):
                # A character more on one line that has no hint: one keystroke, as an editor sends it.
                mark = " " * (n + 1) if place == "inside a kernel" else "x" * (n + 1)
                start = time.perf_counter()
                editor.type(text.replace(needle, typed.format(mark), 1))
                await editor.hints()
                samples.setdefault(f"keystroke {place}, answer", []).append(time.perf_counter() - start)
                hovering = time.perf_counter()
                await editor.hover(text[: text.index("for (int tile")].count("\n"))
                samples.setdefault(f"hover while reading, {place}", []).append(time.perf_counter() - hovering)
                await until_fresh(editor, wanted)
                samples.setdefault(f"keystroke {place}, fresh", []).append(time.perf_counter() - start)
                await asyncio.sleep(0.6)  # a reading that answers nothing new may still be under way
            cpu[f"keystroke {place}, server CPU, ms"] = round(1000 * (editor.cpu_s() - before) / rounds, 1)
        for _ in range(rounds):
            start = time.perf_counter()
            await editor.lenses()
            samples.setdefault("lens", []).append(time.perf_counter() - start)
        return {
            "lines": text.count("\n"),
            "attention kernels": kernels,
            "open to first lens, ms": round(1000 * first, 1),
            "open to all kernels, ms": round(1000 * every, 1),
            **{name: figures(values) for name, values in samples.items()},
            **{name: value for name, value in cpu.items() if value > 0},
            "server memory, MB": editor.memory_mb(),
        }
    finally:
        await editor.stop()


FILES: dict[str, tuple[int, int]] = {"376 lines": (0, 1), "1,000 lines": (1000, 2), "4,000 lines": (4000, 6)}


async def typing(root: Path = ROOT, rounds: int = 12, kernels: int | None = None) -> dict[str, Any]:
    """Figures for all of FILES. `kernels`: how many lenses to wait for, where the server at `root` shows fewer."""
    result: dict[str, Any] = {}
    for name, (lines, count) in FILES.items():
        shown = count if kernels is None else min(kernels, count)
        result[name] = await measure(root, source_of(lines, count), shown, rounds)
    return result
