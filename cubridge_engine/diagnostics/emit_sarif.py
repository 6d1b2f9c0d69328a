"""Diagnostics as SARIF 2.1.0, for code scanning."""

from __future__ import annotations

import hashlib
from collections import Counter
from collections.abc import Iterable
from pathlib import Path
from typing import Any
from urllib.parse import quote

from .catalogue import CATALOGUE
from .excerpt import Sources, excerpt
from .model import Diagnostic, Severity, Span
from .paths import relative

SCHEMA = "https://json.schemastore.org/sarif-2.1.0.json"
_LEVELS = {Severity.ERROR: "error", Severity.WARNING: "warning", Severity.NOTE: "note", Severity.HINT: "note"}


def to_sarif(
    diagnostics: Iterable[Diagnostic], sources: Sources | None = None, *, root: str | None = None, version: str = ""
) -> dict[str, Any]:
    """One SARIF log with one run. URIs are relative to `root` (``%SRCROOT%``), absolute for files outside.

    Columns are 1-based and count characters. Fingerprints follow the text of the line, not its number, so that a
    finding keeps its identity when lines above it change. `version` is CuBridge's.
    """
    found, texts = list(diagnostics), sources or {}
    codes = sorted({diagnostic.code for diagnostic in found})
    seen: Counter[str] = Counter()
    run: dict[str, Any] = {
        "tool": {"driver": _driver(codes, version)},
        "columnKind": "unicodeCodePoints",
        "results": [_result(diagnostic, codes.index(diagnostic.code), texts, root, seen) for diagnostic in found],
    }
    if root is not None:
        run["originalUriBaseIds"] = {"%SRCROOT%": {"uri": Path(root).absolute().as_uri().rstrip("/") + "/"}}
    return {"$schema": SCHEMA, "version": "2.1.0", "runs": [run]}


def _driver(codes: list[str], version: str) -> dict[str, Any]:
    driver: dict[str, Any] = {"name": "CuBridge", "rules": [_rule(code) for code in codes]}
    if version:
        driver["semanticVersion"] = version
    return driver


def _rule(code: str) -> dict[str, Any]:
    row = CATALOGUE.get(code)
    if row is None:
        return {"id": code}
    return {
        "id": code,
        "shortDescription": {"text": row.message},
        "help": {"text": row.help},
        "defaultConfiguration": {"level": _LEVELS[row.severity]},
    }


def _result(
    diagnostic: Diagnostic, rule: int, sources: Sources, root: str | None, seen: Counter[str]
) -> dict[str, Any]:
    text = f"{diagnostic.message}\n{diagnostic.help}" if diagnostic.help else diagnostic.message
    result: dict[str, Any] = {
        "ruleId": diagnostic.code,
        "ruleIndex": rule,
        "level": _LEVELS[diagnostic.severity],
        "message": {"text": text},
        "partialFingerprints": {"cubridge/v1": _fingerprint(diagnostic, sources, root, seen)},
    }
    if diagnostic.span is not None:
        result["locations"] = [{"physicalLocation": _location(diagnostic.span, sources, root)}]
    if diagnostic.related:
        result["relatedLocations"] = [
            {
                "id": number,
                "physicalLocation": _location(related.span, sources, root),
                "message": {"text": related.message},
            }
            for number, related in enumerate(diagnostic.related, 1)
        ]
    return result


def _location(span: Span, sources: Sources, root: str | None) -> dict[str, Any]:
    found = excerpt(span, sources)
    region = {
        "startLine": span.line + 1,
        "startColumn": (found.start if found else span.column) + 1,
        "endLine": span.end_line + 1,
        "endColumn": (found.end_column if found else span.end_column) + 1,
    }
    return {"artifactLocation": _artifact(span.path, root), "region": region}


def _artifact(path: str, root: str | None) -> dict[str, str]:
    shown = relative(path, root)
    if shown.is_absolute():
        return {"uri": Path(shown).as_uri()}
    location = {"uri": quote(shown.as_posix())}
    if root is not None:
        location["uriBaseId"] = "%SRCROOT%"
    return location


def _fingerprint(diagnostic: Diagnostic, sources: Sources, root: str | None, seen: Counter[str]) -> str:
    path = relative(diagnostic.span.path, root).as_posix() if diagnostic.span else ""
    found = excerpt(diagnostic.span, sources) if diagnostic.span else None
    line = " ".join(found.text.split()) if found else diagnostic.message
    base = "\n".join([diagnostic.code, path, line])
    seen[base] += 1  # the same finding on equal lines: told apart by order
    return hashlib.sha256(f"{base}\n{seen[base]}".encode()).hexdigest()[:32]
