"""What the connected client can do, resolved once at ``initialize`` into plain booleans."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from lsprotocol import types as t


@dataclass(frozen=True, slots=True)
class Client:
    """The abilities that change what this server sends. The default is a client that can do nothing."""

    pull_diagnostics: bool = False
    diagnostic_refresh: bool = False
    related_information: bool = False
    lens_refresh: bool = False
    hint_refresh: bool = False
    resolve_action_edit: bool = False
    apply_edit: bool = False
    change_annotations: bool = False
    document_changes: bool = False  # an edit may say which version of a document it is for
    snippet_edits: bool = False  # an edit may leave the cursor in a placeholder
    code_description: bool = False  # a diagnostic's code may be a link
    progress: bool = False
    show_document: bool = False
    configuration: bool = False
    configuration_changes: bool = False
    watch_files: bool = False
    llm_tag: bool = False  # shows that a code action is a model's
    diff_editor: bool = False  # shows an adaptation itself (our VS Code extension): hand it the text, edit nothing


def _get(value: object, path: str) -> Any:
    """`value.a.b.c`, or None as soon as one of them is missing: LSP capabilities are optional at every level."""
    for name in path.split("."):
        if value is None:
            return None
        value = getattr(value, name, None)
    return value


def resolve(capabilities: t.ClientCapabilities) -> Client:
    """Read the client's announcement."""
    actions = _get(capabilities, "text_document.code_action.resolve_support.properties") or ()
    experimental = _get(capabilities, "experimental")
    return Client(
        pull_diagnostics=_get(capabilities, "text_document.diagnostic") is not None,
        diagnostic_refresh=bool(_get(capabilities, "workspace.diagnostics.refresh_support")),
        related_information=bool(
            _get(capabilities, "text_document.publish_diagnostics.related_information")
            or _get(capabilities, "text_document.diagnostic.related_information")
        ),
        lens_refresh=bool(_get(capabilities, "workspace.code_lens.refresh_support")),
        hint_refresh=bool(_get(capabilities, "workspace.inlay_hint.refresh_support")),
        resolve_action_edit="edit" in actions,
        apply_edit=bool(_get(capabilities, "workspace.apply_edit")),
        change_annotations=bool(
            _get(capabilities, "workspace.workspace_edit.document_changes")
            and _get(capabilities, "workspace.workspace_edit.change_annotation_support") is not None
        ),
        document_changes=bool(_get(capabilities, "workspace.workspace_edit.document_changes")),
        snippet_edits=bool(
            _get(capabilities, "workspace.workspace_edit.document_changes")
            and _get(capabilities, "workspace.workspace_edit.snippet_edit_support")
        ),
        code_description=bool(
            _get(capabilities, "text_document.publish_diagnostics.code_description_support")
            or _get(capabilities, "text_document.diagnostic.code_description_support")
        ),
        progress=bool(_get(capabilities, "window.work_done_progress")),
        show_document=bool(_get(capabilities, "window.show_document.support")),
        configuration=bool(_get(capabilities, "workspace.configuration")),
        configuration_changes=bool(_get(capabilities, "workspace.did_change_configuration.dynamic_registration")),
        watch_files=bool(_get(capabilities, "workspace.did_change_watched_files.dynamic_registration")),
        llm_tag=_get(capabilities, "text_document.code_action.tag_support") is not None,
        diff_editor=_flag(experimental, "cubridgeDiffEditor"),
    )


def _flag(value: object, name: str) -> bool:
    """A boolean of the free-form ``experimental`` object, which arrives as a dict or as an attribute bag."""
    if isinstance(value, dict):
        return value.get(name) is True  # pyright: ignore[reportUnknownMemberType]
    return getattr(value, name, None) is True
