"""The page of each code, made from the table of rules: docs/findings/CBnnn.md.

``python -m cubridge_engine.check`` writes them; a test keeps the files and the table equal.
"""

from __future__ import annotations

import difflib
import textwrap

from ..diagnostics import CATALOGUE, Severity
from .model import Example, Rule
from .rules import BY_CODE, RULES

_LEVELS = {Severity.ERROR: "error", Severity.WARNING: "warning", Severity.NOTE: "note", Severity.HINT: "hint"}
_METHODS = {
    "reading": "by reading, while you type",
    "watching": "by watching: `cubridge check --watch`, or \"Check this kernel\" in the editor",
    "expectation": "by comparing with an expectation: `cubridge check --expect` or `--spec`",
    "frame": "about a comment or a setting",
}  # fmt: skip
_START = """# Findings of `cubridge check`

`cubridge check KERNEL.cu` says what is wrong with a kernel, without a spec. A finding of level error is proven; what
may be meant is a warning. Every code has a page with why it matters, an example, and how to mend it.

- **Ignore one** with its reason, at the end of the line or on a line above it: `// cubridge: ignore[CB868] heads are
  interleaved in our checkpoints`. A comment without a reason does not count; one that finds nothing to ignore is told.
- **Change a severity** in `cubridge.toml` (or under `[tool.cubridge]` in `pyproject.toml`), for the files below it:

      [check]
      arch = "sm_90"
      severity = { CB869 = "off", CB867 = "error" }

- **Accept what is there**: `--write-baseline known.json` once, then `--baseline known.json`. Findings are known again
  by code and text of the line, so that lines may move.
- **In CI**: `--format sarif` or `--format github`; exit code 1 for findings of level error, 2 for wrong use, 3 where
  the environment is at fault.

| code | finding | level | found |
| --- | --- | --- | --- |
"""


def page_of(code: str) -> str | None:
    """The page of a code as Markdown; None for a code without one."""
    rule = BY_CODE.get(code)
    return None if rule is None else _page(rule)


def pages() -> tuple[tuple[str, str], ...]:
    """(code, title) of every page, in the order of codes."""
    return tuple(sorted((rule.code, rule.title) for rule in RULES))


def index() -> str:
    """docs/findings/README.md."""
    rows = [f"| [{c}]({c}.md) | {t} | {_level(c)} | {BY_CODE[c].method} |" for c, t in pages()]
    return _START + "\n".join(rows) + "\n"


def _level(code: str) -> str:
    return _LEVELS[CATALOGUE[code].severity]


def _page(rule: Rule) -> str:
    parts = [
        f"# {rule.code}: {rule.title}\n",
        f"*{_level(rule.code)}, found {_METHODS[rule.method]}*\n",
        f"{_wrapped(rule.why)}\n",
    ]
    if rule.example is not None:
        parts.append(f"## An example\n\nThe finding is on the line with `{rule.example.marker.strip()}`.\n")
        parts.append(f"```diff\n{_diff(rule.example)}```\n")
    parts.append(f"## How to mend it\n\n{_wrapped(rule.repair)}\n")
    parts.append(f"If it is meant: `// cubridge: ignore[{rule.code}] the reason`. See [all findings](README.md).\n")
    return "\n".join(parts)


def _wrapped(text: str) -> str:
    return textwrap.fill(text, 120, break_long_words=False, break_on_hyphens=False)


def _diff(example: Example) -> str:
    """The fault as a diff of the clean kernel, without the headers of one."""
    old = example.base.read_text("utf-8")
    lines = difflib.unified_diff(old.splitlines(), example.text.splitlines(), n=1, lineterm="")
    shown = [line for line in lines if not line.startswith(("---", "+++"))]
    return "".join(f"{'...' if line.startswith('@@') else line.rstrip()}\n" for line in shown[1:])
