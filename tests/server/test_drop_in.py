"""The Python file around an adapted kernel: named in the reply, written beside the kernel, never over another file."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from cubridge_engine.pipeline.header import build_lines
from server import adapt, codes, convert, job
from server.documents import Documents

TEXT = "// cubridge: build t = tiles(q, k)  (of kernel_spec_drop_in.py; q is [B, H, Sq, D])\n__global__ void k();\n"
DROP_IN = "import torch\n"


def client(*, diff_editor: bool) -> Any:
    """A server's state as `adapt` uses it, for a client that shows nothing; `said` are its messages."""
    can = SimpleNamespace(diff_editor=diff_editor, apply_edit=False, change_annotations=False, show_document=False)
    said: list[str] = []
    return SimpleNamespace(
        client=can,
        said=said,
        encoding="utf-16",
        documents=Documents(lambda _uri: None, lambda _uri: None, lambda: False),
        adaptations=adapt.Adaptations(),
        window_show_message=lambda params: said.append(params.message),
    )


@pytest.fixture
def adapted(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder with kernel.cu, whose adaptation to spec.py comes with a drop-in."""
    kernel, spec = tmp_path / "kernel.cu", tmp_path / "spec.py"
    kernel.write_text("__global__ void k();\n")
    result = {"text": TEXT, "drop_in": DROP_IN, "level": "ir", "applicability": "verified"}

    async def run(_ls: object, _job: str, _argument: object) -> job.Outcome:
        return job.Outcome("done", str(kernel), str(spec), kernel.read_bytes(), 1, result)

    monkeypatch.setattr(job, "run", run)
    return tmp_path


def test_the_header_of_the_kernel_names_the_file() -> None:
    bare: Any = SimpleNamespace(derived=None)
    (line,) = build_lines(bare, convert.drop_in_name("/a/kernel.cu", "/b/spec.py"))
    assert line.startswith("// cubridge: around this kernel: kernel_spec_drop_in.py; ")
    assert build_lines(bare, "") == []  # a name that nobody chose is not invented


@pytest.mark.asyncio
async def test_our_extension_gets_its_name_and_writes_it_itself(adapted: Path) -> None:
    reply = await adapt.adapt(client(diff_editor=True), {})
    assert (reply["delivered"], reply["drop_in_name"]) == ("reply", "kernel_spec_drop_in.py")
    assert reply["drop_in_name"] in TEXT  # the header of the adapted text names the same file
    assert [path.name for path in adapted.iterdir()] == ["kernel.cu"]


@pytest.mark.asyncio
async def test_it_is_written_beside_a_new_file(adapted: Path) -> None:
    ls = client(diff_editor=False)
    reply = await adapt.adapt(ls, {})
    assert reply["delivered"] == "file"
    assert (adapted / "kernel.spec.cu").read_text() == TEXT
    assert (adapted / "kernel_spec_drop_in.py").read_text() == DROP_IN
    assert reply["drop_in_written"] == convert.uri_of(str(adapted / "kernel_spec_drop_in.py"))
    assert "wrote the drop-in" in ls.said[-1]


@pytest.mark.asyncio
async def test_another_text_of_that_name_stays_and_it_is_said(adapted: Path) -> None:
    there = adapted / "kernel_spec_drop_in.py"
    there.write_text("mine = 1\n")
    ls = client(diff_editor=False)
    reply = await adapt.adapt(ls, {})
    assert there.read_text() == "mine = 1\n"
    assert "drop_in_written" not in reply
    assert "CB076" in codes.ROWS
    assert "CB076" in ls.said[-1]
    assert "another file of that name" in ls.said[-1]
