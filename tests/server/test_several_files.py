"""An adaptation that changes headers too reaches the client whole, or not at all."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from lsprotocol import types as t

from cubridge_engine.source import TextIndex
from server import adapt, convert

from .test_edits import apply

KERNEL = '#include "mask.cuh"\n__global__ void k() { f(); }\n'
HEADER, CHANGED = "void f() {}\nint é;\n", "void f(int n) {}\nint é;\n"


class Server(SimpleNamespace):
    """What `adapt` asks of the server: the client's texts and what the client can do."""

    def __init__(self, texts: dict[str, str], opened: dict[str, int], **can: bool) -> None:
        self.texts = texts
        documents = {
            u: SimpleNamespace(uri=u, version=v, text=self.index(convert.path_of(u))) for u, v in opened.items()
        }
        client = SimpleNamespace(**{"diff_editor": False, "change_annotations": False, **can})
        super().__init__(
            documents=SimpleNamespace(text=self.index, get=documents.get), client=client, encoding="utf-16"
        )

    def index(self, path: str) -> TextIndex:
        return TextIndex(self.texts[path].encode() if path in self.texts else convert.read_disk(path))


@pytest.fixture
def kernel(tmp_path: Path) -> Path:
    (tmp_path / "kernel.cu").write_text(KERNEL)
    (tmp_path / "mask.cuh").write_text(HEADER)
    (tmp_path / "spec.py").write_text("")
    return tmp_path / "kernel.cu"


def result_of(kernel: Path) -> dict[str, Any]:
    header = kernel.with_name("mask.cuh")
    return {
        "files": [
            {"path": str(header), "name": "mask.cuh", "base_sha256": convert.sha256(HEADER.encode()), "text": CHANGED}
        ]
    }


def ready_of(ls: Any, kernel: Path) -> adapt.Ready:
    others = adapt._others(ls, result_of(kernel))
    assert others is not None
    text = KERNEL.replace("f()", "f(1)")
    sha = convert.sha256(KERNEL.encode())
    spec = str(kernel.with_name("spec.py"))
    return adapt.Ready(str(kernel), spec, sha, text, "gpu", "verified", KERNEL.encode(), others=others)


async def test_the_extension_gets_every_file_with_its_base(kernel):
    ls = Server({}, {}, diff_editor=True)
    reply = await adapt._deliver(ls, ready_of(ls, kernel), TextIndex(KERNEL.encode()))
    assert reply["delivered"] == "reply"
    (file,) = reply["files"]
    assert (file["name"], file["base"], file["text"]) == ("mask.cuh", HEADER, CHANGED)
    assert file["uri"] == kernel.with_name("mask.cuh").as_uri()
    assert apply(HEADER, file["edits"], "utf-16") == CHANGED


def test_one_edit_has_all_documents_each_at_its_version(kernel):
    opened = {kernel.as_uri(): 7}
    ls = Server({}, opened, change_annotations=True)
    edit = adapt.workspace_edit(ls, ls.documents.get(kernel.as_uri()), ready_of(ls, kernel))
    own, header = edit.document_changes
    assert (own.text_document.uri, own.text_document.version) == (kernel.as_uri(), 7)
    assert (header.text_document.uri, header.text_document.version) == (kernel.with_name("mask.cuh").as_uri(), None)
    assert edit.change_annotations[adapt.ANNOTATION].needs_confirmation
    assert all(isinstance(e, t.AnnotatedTextEdit) for change in (own, header) for e in change.edits)
    plain = adapt.workspace_edit(Server({}, opened), ls.documents.get(kernel.as_uri()), ready_of(ls, kernel))
    assert set(plain.changes) == {own.text_document.uri, header.text_document.uri}


def test_a_header_that_changed_meanwhile_stops_all_of_it(kernel):
    header = str(kernel.with_name("mask.cuh"))
    typed = Server({header: HEADER + "// typed\n"}, {})
    assert adapt._others(typed, result_of(kernel)) is None
    ls = Server({}, {})
    kept = adapt.Adaptations()
    kept.put(ready_of(ls, kernel))
    assert len(kept.ready(str(kernel), ls.documents.text)) == 1
    assert kept.ready(str(kernel), typed.documents.text) == []


def test_what_is_open_and_not_saved_is_the_base(kernel):
    header = kernel.with_name("mask.cuh")
    header.write_text("void old() {}\n")
    assert adapt._others(Server({}, {}), result_of(kernel)) is None
    (other,) = adapt._others(Server({str(header): HEADER}, {}), result_of(kernel)) or ()
    assert other.base.data.decode() == HEADER


def test_new_files_go_to_a_folder_of_their_own(kernel):
    ready = ready_of(Server({}, {}), kernel)
    first, second = Path(adapt.write_beside(ready)), Path(adapt.write_beside(ready))
    assert (first.parent.name, second.parent.name) == ("kernel.spec", "kernel.spec-2")
    assert first.read_text() == ready.text
    assert first.with_name("mask.cuh").read_text() == CHANGED
    assert kernel.with_name("mask.cuh").read_text() == HEADER
