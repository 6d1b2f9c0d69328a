"""Which spec or kernel a job is about when the request does not say: the only one there is, or the user's pick."""

from __future__ import annotations

from typing import TYPE_CHECKING

from lsprotocol import types as t

from . import convert, specs

if TYPE_CHECKING:
    from .app import CubridgeServer


async def spec(ls: CubridgeServer, job: str, kernel: str) -> str | None:
    """Path of a spec for the kernel at the path `kernel`; None when the user chose none. Raises LookupError when the
    workspace has none."""
    found = specs.nearest_first(await ls.specs(), kernel)
    if not found:
        raise LookupError
    question = f"CuBridge: {job} {convert.base_name(kernel)} with which spec?"
    return await _ask(ls, question, [item.path for item in found])


async def kernel(ls: CubridgeServer, job: str, spec: str) -> str | None:
    """URI of a kernel for the spec at the path `spec`; None when the user chose none. Raises LookupError when the
    workspace has none."""
    found = specs.nearest_first(await ls.kernels(), spec)
    if not found:
        raise LookupError
    question = f"CuBridge: {job} which kernel to {convert.base_name(spec)}?"
    path = await _ask(ls, question, [item.path for item in found])
    return convert.uri_of(path) if path else None


async def _ask(ls: CubridgeServer, question: str, paths: list[str]) -> str | None:
    if len(paths) == 1:
        return paths[0]
    names = [convert.base_name(path) for path in paths]
    # Two files of one name are told apart by their folders.
    titles = [path if names.count(name) > 1 else name for path, name in zip(paths, names, strict=True)]
    actions = [t.MessageActionItem(title=title) for title in titles]
    choice = await ls.window_show_message_request_async(
        t.ShowMessageRequestParams(type=t.MessageType.Info, message=question, actions=actions)
    )
    return next((path for path, title in zip(paths, titles, strict=True) if choice and title == choice.title), None)
