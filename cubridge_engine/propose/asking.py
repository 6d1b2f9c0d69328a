"""The words of a question: what the model is given, from the situation and the prompts in `prompts/`. Runs in the
worker.

Only what is needed leaves: CuIR, the sites, the code around them, what the spec means (not its text), what went wrong.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from ..diagnostics import Diagnostic, Severity
from ..ir.text import print_kernel
from ..pipeline.files import Options
from ..pipeline.readings import attention_dict
from ..pipeline.tasks import checks_of, options_of
from ..source import overlay
from ..spec.attention import Attention
from ..spec.describe import one_line
from ..transfer.rules import RULES
from ..verify.stages import Progress
from .situation import Situation, State, look
from .wording import filled

AROUND = 12  # lines of the kernel before and after a site
OWN = ("state", "reply", "role", "model", "found")  # parameters of the two tasks beside those of `adapt`


def job_of(params: Mapping[str, Any]) -> tuple[Options, Any]:
    """The reading and the verification options of a task's parameters."""
    others = {name: value for name, value in params.items() if name not in OWN}
    return options_of(others), checks_of(others)


def question(params: Mapping[str, Any], progress: Progress) -> dict[str, Any]:
    """``{"role", "why", "system", "user", "sites", "kernel_name"}``; `role` is null, with the reason in `why`, where a
    model is of no use. Task ``propose_question``."""
    progress("ask", 0.0, "finding where the rules stop")
    options, checks = job_of(params)
    with overlay(params.get("texts") or {}):
        found = look(params["kernel"], params["spec"], options, checks.archs, State.of(params.get("state")))
    if found.role is None:
        return {"role": None, "why": found.why, "system": "", "user": "", "sites": [], "kernel_name": None}
    told = tuple(f"{d['code']}: {d['message']}" for d in params.get("found") or () if d["severity"] == "error")
    return {
        "role": found.role,
        "why": "",
        "system": filled("system", {}),
        "user": filled(found.role, _parts(found, told)),
        "sites": list(found.sites),
        "kernel_name": found.lifted.kernel.name if found.lifted.kernel is not None else None,
    }


def _parts(found: Situation, told: tuple[str, ...]) -> dict[str, str]:
    """All that prompts may name."""
    assert found.attention is not None
    kernel, result = found.lifted.kernel, found.transferred
    refusals = list(dict.fromkeys((*told, *map(_sentence, _errors(found.refusals)))))
    return {
        "kernel": kernel.name if kernel is not None else "the kernel",
        "refusal": "\n".join(refusals) or "the result of the rules did not pass verification",
        "cuir": print_kernel(kernel) if kernel is not None else "(not available)",
        "target": print_kernel(found.target) if found.target is not None else "(not available)",
        "spec": meaning(found.attention),
        "rules": "\n".join(f"- {rule.name}: {rule.summary}" for rule in RULES),
        "changes": "\n".join(f"- {s.rule}: {s.reason}" for s in result.steps) if result is not None else "",
        "bindings": "\n".join(f"{n} = {v}" for n, v in (result.bindings if result else {}).items()) or "(none)",
        "sites": _site_list(found),
        "code": code_around(found),
    }


def meaning(attention: Attention) -> str:
    """What the spec means, one fact a line."""
    facts = attention_dict(attention)
    lines = [one_line(attention)]
    for name in ("score", "mask", "fill", "sink", "normaliser", "divisor", "head_map", "empty_rows"):
        if facts[name] is not None:
            lines.append(f"{name} = {facts[name]}")
    lines += [f"input {t['name']}: {t['role']} [{', '.join(t['axes'])}] {t['dtype']}" for t in facts["inputs"]]
    lines += [f"output {t['role']} [{', '.join(t['axes'])}]" for t in facts["outputs"]]
    return "\n".join(lines)


def _site_list(found: Situation) -> str:
    assert found.source is not None
    parts: list[str] = []
    for site in found.sites.values():
        text, line = site.text(found.source), found.source.span_of(site.start, site.end).line + 1
        body = text if "\n" not in text else f"\n{text}"
        parts.append(
            f"### {site.name} (line {line}): {site.what}\n{body or '(nothing: what is given is inserted here)'}"
        )
    return "\n\n".join(parts)


def code_around(found: Situation) -> str:
    """The kernel's lines near any site, numbered; what lies between is left out."""
    assert found.source is not None
    lines = found.source.data.decode("utf-8", "replace").split("\n")
    wanted: set[int] = set()
    for site in found.sites.values():
        span = found.source.span_of(site.start, site.end)
        wanted |= set(range(max(0, span.line - AROUND), min(len(lines), span.end_line + AROUND + 1)))
    out: list[str] = []
    for number in sorted(wanted):
        if out and number - 1 not in wanted:
            out.append("   ...")
        out.append(f"{number + 1:4} {lines[number]}")
    return "\n".join(out)


def _errors(found: tuple[Diagnostic, ...]) -> list[Diagnostic]:
    """What stopped the rules: errors, else what was not understood."""
    errors = [d for d in found if d.severity is Severity.ERROR]
    return errors or [d for d in found if d.severity is Severity.WARNING]


def _sentence(item: Diagnostic) -> str:
    place = f" (line {item.span.line + 1})" if item.span is not None else ""
    return f"{item.code}{place}: {item.message}"
