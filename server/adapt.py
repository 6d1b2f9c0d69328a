"""The command ``cubridge.adapt``: adapt a kernel to a spec and hand the result over as this client can review it.

- our VS Code extension gets the text and shows it as a diff with Accept and Discard;
- a client with change annotations gets a workspace edit on the very version that was adapted, to be confirmed;
- any other client, and any result that no verifier stands behind, gets a new file next to the kernel. Never an in-place
  edit without a review.

Where headers change with the kernel, the diff, the edit and what is written have them all.
"""

from __future__ import annotations

import difflib
import os
from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from lsprotocol import types as t

from cubridge_engine.diagnostics import make
from cubridge_engine.pipeline.folder import plan_folder
from cubridge_engine.source import Encoding, TextIndex
from cubridge_engine.source.text_index import BOM

from . import convert, job

if TYPE_CHECKING:
    from .app import CubridgeServer
    from .documents import Document

ANNOTATION = "cubridge.adaptation"
IN_PLACE = ("verified", "unverified")  # applicabilities that may become an edit; a sketch is only something to look at
MAX_COPIES = 100


@dataclass(frozen=True, slots=True)
class Other:
    """A further file that changes with the kernel: `base` is the client's text that was adapted."""

    path: str
    name: str
    base: TextIndex
    text: str


@dataclass(frozen=True, slots=True)
class Ready:
    """A computed adaptation: it fits the kernel text whose hash is `base_sha`, and no other, and the bases of
    `others`.
    """

    kernel: str  # path
    spec: str  # path
    base_sha: str
    text: str
    level: str
    applicability: str
    base: bytes = b""
    drop_in: str = ""  # the Python file around the kernel, '' where the kernel alone does what the spec does
    drop_in_name: str = ""
    model: str = ""  # who proposed a part of it; '' where the rules did all of it
    others: tuple[Other, ...] = ()


@dataclass(slots=True)
class Adaptations:
    """The newest adaptation of each (kernel, spec) pair."""

    _kept: dict[tuple[str, str], Ready] = field(default_factory=dict)

    def put(self, ready: Ready) -> None:
        """Keep `ready` in place of an older one of the same pair."""
        self._kept[ready.kernel, ready.spec] = ready

    def of(self, kernel: str, spec: str) -> Ready | None:
        """The adaptation of this pair of paths."""
        return self._kept.get((kernel, spec))

    def ready(self, kernel: str, text_of: convert.TextOf) -> list[Ready]:
        """Adaptations that may be applied to the present texts of the kernel and of the files that change with it."""
        data = text_of(kernel).data
        sha = convert.sha256(data)
        return [
            item
            for item in self._kept.values()
            if item.kernel == kernel and item.base_sha == sha and item.applicability in IN_PLACE
            if all(text_of(other.path).data == other.base.data for other in item.others)
        ]


async def adapt(ls: CubridgeServer, argument: Any = None, how: str = "adapt") -> dict[str, Any]:
    """``workspace/executeCommand cubridge.adapt``. Returns the reply of docs/lsp-extensions.md. `how`: the job."""
    outcome = await job.run(ls, how, argument)
    text, drop_in = outcome.result.get("text"), str(outcome.result.get("drop_in") or "")
    if outcome.state != "done" or not isinstance(text, str):
        job.tell(ls, outcome)
        return outcome.reply() | {"delivered": "nothing"}
    others = _others(ls, outcome.result)
    if others is None:
        stale = replace(outcome, state="stale", diagnostics=(make("CB073", name="a header of it", job="adapt"),))
        job.tell(ls, stale)
        return stale.reply() | {"delivered": "nothing"}
    ready = Ready(
        outcome.kernel,
        outcome.spec,
        convert.sha256(outcome.base),
        text.removeprefix("\ufeff"),  # the client's text has no byte order mark; the editor keeps the file's own
        str(outcome.result.get("level")),
        str(outcome.result.get("applicability")),
        outcome.base,
        drop_in,
        convert.drop_in_name(outcome.kernel, outcome.spec) if drop_in else "",
        str((outcome.result.get("proposed") or {}).get("model", "")),
        others,
    )
    ls.adaptations.put(ready)
    reply = outcome.reply() | {"drop_in_name": ready.drop_in_name}
    return reply | await _deliver(ls, ready, TextIndex(outcome.base))


def _others(ls: CubridgeServer, result: dict[str, Any]) -> tuple[Other, ...] | None:
    """The other files of a result on the client's texts; None where one is no longer what was adapted."""
    found: list[Other] = []
    for item in result.get("files") or ():
        path, text = str(item["path"]), str(item["text"]).removeprefix("\ufeff")
        base = ls.documents.text(path)
        disk = convert.read_disk(path)
        same = convert.same_text(base.data, disk) and convert.sha256(disk) == item["base_sha256"]
        if not same and convert.sha256(base.data) != item["base_sha256"]:
            return None
        found.append(Other(path, str(item["name"]), TextIndex(base.data.removeprefix(BOM)), text))
    return tuple(found)


async def _deliver(ls: CubridgeServer, ready: Ready, base: TextIndex) -> dict[str, Any]:
    if ls.client.diff_editor:
        edits = list(text_edits(base, ready.text, ls.encoding))
        return {"delivered": "reply", "edits": edits, "files": [_other_reply(ls, other) for other in ready.others]}
    document = ls.documents.get(convert.uri_of(ready.kernel))
    if document and ls.client.apply_edit and ls.client.change_annotations and ready.applicability in IN_PLACE:
        answer = await ls.workspace_apply_edit_async(
            t.ApplyWorkspaceEditParams(edit=workspace_edit(ls, document, ready), label=_label(ready))
        )
        if not answer.applied:
            return {"delivered": "nothing"}
        return {"delivered": "edit"} | _beside(ls, ready, ready.kernel)
    return await _new_file(ls, ready)


def _other_reply(ls: CubridgeServer, other: Other) -> dict[str, Any]:
    return {
        "uri": convert.uri_of(other.path),
        "name": other.name,
        "base": other.base.data.decode("utf-8", "surrogatepass"),
        "text": other.text,
        "edits": list(text_edits(other.base, other.text, ls.encoding)),
    }


def workspace_edit(ls: CubridgeServer, document: Document, ready: Ready) -> t.WorkspaceEdit:
    """The adaptation as an edit of the present versions of `document` and of the files that change with it, which a
    client must refuse on any other version.
    """
    edits = {document.uri: list(text_edits(document.text, ready.text, ls.encoding))}
    for other in ready.others:
        edits[convert.uri_of(other.path)] = list(text_edits(other.base, other.text, ls.encoding))
    if not ls.client.change_annotations:
        return t.WorkspaceEdit(changes=edits)
    note = t.ChangeAnnotation(
        label=_label(ready), needs_confirmation=True, description=f"level {ready.level}, {ready.applicability}"
    )
    return t.WorkspaceEdit(
        document_changes=[_annotated(ls, uri, own) for uri, own in edits.items()],
        change_annotations={ANNOTATION: note},
    )


def _annotated(ls: CubridgeServer, uri: str, edits: list[t.TextEdit]) -> t.TextDocumentEdit:
    opened = ls.documents.get(uri)  # a file that is not open has no version
    target = t.OptionalVersionedTextDocumentIdentifier(uri, opened.version if opened else None)
    return t.TextDocumentEdit(target, [t.AnnotatedTextEdit(ANNOTATION, e.range, e.new_text) for e in edits])


def text_edits(index: TextIndex, new: str, encoding: Encoding) -> Iterator[t.TextEdit]:
    """Whole-line edits that turn the text of `index` into `new`, untouched lines left alone."""
    old_lines = index.data.decode("utf-8", "surrogatepass").split("\n")
    new_lines = new.split("\n")
    matcher = difflib.SequenceMatcher(None, old_lines, new_lines, autojunk=False)
    for tag, old_first, old_last, new_first, new_last in matcher.get_opcodes():
        if tag == "equal":
            continue
        lines = new_lines[new_first:new_last]
        if old_last < len(old_lines):
            start, end, text = index.line_start(old_first), index.line_start(old_last), "".join(f"{x}\n" for x in lines)
        elif old_first > 0:  # up to the end of the file, whose last line has no newline: take the line before along
            start, end = index.line_start(old_first - 1), len(index.data)
            text = "\n".join([old_lines[old_first - 1], *lines])
        else:
            start, end, text = 0, len(index.data), "\n".join(lines)
        place = t.Range(t.Position(*index.position(start, encoding)), t.Position(*index.position(end, encoding)))
        yield t.TextEdit(place, text)


def _label(ready: Ready) -> str:
    proposed = f", proposed by {ready.model}" if ready.model else ""
    return f"CuBridge: adapt to {convert.base_name(ready.spec)}{proposed}"


async def _new_file(ls: CubridgeServer, ready: Ready) -> dict[str, Any]:
    try:
        path = write_beside(ready)
    except OSError as error:
        problem = make("CB076", name=convert.base_name(ready.kernel), problem=error.strerror or str(error))
        ls.window_show_message(t.ShowMessageParams(t.MessageType.Error, f"CuBridge {problem.code}: {problem.message}"))
        return {"delivered": "nothing", "message": f"{problem.code}: {problem.message}"}
    uri = convert.uri_of(path)
    if ls.client.show_document:
        await ls.window_show_document_async(t.ShowDocumentParams(uri=uri, take_focus=True))
    else:
        ls.window_show_message(t.ShowMessageParams(t.MessageType.Info, f"CuBridge wrote {path}"))
    return {"delivered": "file", "written": uri} | _beside(ls, ready, path)


def _beside(ls: CubridgeServer, ready: Ready, kernel: str) -> dict[str, Any]:
    """Write the drop-in, if there is one, to the folder of `kernel`; another text of that name stays, and is told."""
    if not ready.drop_in:
        return {}
    path, text = Path(kernel).with_name(ready.drop_in_name), ready.drop_in.encode("utf-8", "surrogatepass")
    try:
        if not path.exists():
            path.write_bytes(text)
        elif path.read_bytes() != text:
            raise FileExistsError(0, "another file of that name is there")
    except OSError as error:
        problem = make("CB076", name=path.name, problem=error.strerror or str(error))
        ls.window_show_message(t.ShowMessageParams(t.MessageType.Error, f"CuBridge {problem.code}: {problem.message}"))
        return {}
    ls.window_show_message(t.ShowMessageParams(t.MessageType.Info, f"CuBridge wrote the drop-in {path}"))
    return {"drop_in_written": convert.uri_of(str(path))}


def write_beside(ready: Ready) -> str:
    """Write the adapted text to ``KERNEL.SPEC.cu`` in the kernel's folder, never over an existing file; where other
    files change too, all of them to a folder ``KERNEL.SPEC`` there.

    Returns the path of the kernel's. Raises OSError when the folder cannot be written.
    """
    kernel = Path(ready.kernel)
    stem, suffix = f"{kernel.stem}.{Path(ready.spec).stem}", "" if ready.others else kernel.suffix
    for copy in range(1, MAX_COPIES):
        number = "" if copy == 1 else f"-{copy}"
        path = kernel.with_name(f"{stem}{number}{suffix}")
        try:
            return _new_folder(path, ready) if ready.others else _new(path, ready.text)
        except FileExistsError:
            continue
    raise OSError(f"{stem}{suffix} exists {MAX_COPIES - 1} times")


def _new(path: Path, text: str) -> str:
    with open(path, "xb") as file:
        file.write(text.encode("utf-8", "surrogatepass"))
    return os.fspath(path)


def _new_folder(folder: Path, ready: Ready) -> str:
    folder.mkdir()
    others = {other.path: other.text.encode("utf-8", "surrogatepass") for other in ready.others}
    plan = plan_folder(folder, Path(ready.kernel), ready.text.encode("utf-8", "surrogatepass"), others)
    for path, data in {**plan.copies, **plan.texts}.items():
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(data)
    return os.fspath(plan.kernel)
