"""The result of an accepted proposal, as the change of the user's own file that it is, with its marks."""

from __future__ import annotations

import difflib
import hashlib

from ..diagnostics import Diagnostic, diagnostic_from_json, diagnostic_to_json, make
from ..lift.proposed import BEGIN, proposed_ranges
from ..lower import Hunk, header_lines, unified_diff, with_header
from ..lower.read_back import differences
from ..pipeline.adapt import moved
from ..pipeline.check import verify_kernel
from ..pipeline.files import Options, file_ref, lift_at, parse_kernel_file
from ..pipeline.header import below_header, inputs_lines, report_lines
from ..results import Adaptation, HunkResult, ProposedResult
from ..source import SourceFile, overlay
from ..verify.bindings import Given, bind_kernel
from ..verify.stages import Progress
from ..verify.subject import VerifyOptions
from .candidate import model_name
from .situation import Situation, State

HEADER = b"// cubridge:"


def of_verification(
    found: Situation, text: bytes, kernel: str, spec: str, options: Options, checks: VerifyOptions, progress: Progress
) -> tuple[Adaptation | None, str]:
    """`text` (without header) verified as any kernel is, in the form of an adaptation; or what it does otherwise than
    the target program.
    """
    result = found.transferred
    assert result is not None
    different = _off_target(found, text, kernel)
    operands = result.operands if result.target is not None else ()
    header = header_lines(file_ref(spec, None).name, "", result.binding_texts, operands)
    whole = with_header(text, header, _newline(text))
    if different:
        return None, different
    with overlay({kernel: whole.decode("utf-8")}):
        done = verify_kernel(kernel, spec, options, checks, progress)
    called = inputs_lines(found.lifted.kernel, found.attention) if found.attention is not None else []
    lines = (*header, *called, *report_lines(done.report))
    final = with_header(text, lines, _newline(text))
    report = below_header(done.report, len(lines) - len(header)) if done.report is not None else None
    adapted = Adaptation.model_validate(
        {
            **done.model_dump(exclude={"command", "report", "kernel", "bindings"}),
            "command": "adapt",
            "report": report,
            "text": final.decode("utf-8"),
            "bindings": dict(done.bindings),
            "kernel": done.kernel,
        }
    )
    return adapted, ""


def _off_target(found: Situation, text: bytes, kernel: str) -> str:
    """What `text` means otherwise than the target. Verifying executes a grid; this compares what is written."""
    assert found.target is not None
    assert found.attention is not None
    own, result = found.lifted.kernel, found.transferred
    again = lift_at(parse_kernel_file(kernel, text), own.name, own.D)
    if again.kernel is None or not again.coverage.complete:
        why = next((d.message for d in again.diagnostics if d.code == "CB123"), again.coverage.sentence())
        return f"the changed kernel can no longer be read: {why}"
    if result is not None and result.target is not None:
        values, operands = result.bindings, result.operands
    else:
        values, operands = bind_kernel(found.target, found.attention, Given({})).binding.values, ()
    return "; ".join(differences(found.target, again.kernel, values, operands)[:2])


def finished(result: Adaptation, found: Situation, state: State, model: str) -> Adaptation:
    """`result`, which speaks of the text with the proposed parts in it, as a change of the user's file."""
    assert found.original is not None
    assert result.text is not None
    original = found.original
    before = state.text.encode("utf-8") if state.text is not None else original.data
    name, parts = model_name(model), state.parts
    text, added = _with_lines(result.text.encode("utf-8"), [f"// cubridge: proposed {p} ({name})" for p in parts])
    hunks = line_hunks(original, text)
    back = line_hunks(original, before)
    spans = [original.span_of(h.start, h.end) for h in hunks if h.why == "proposed"]
    found_now = [moved(diagnostic_from_json(d), original, back) for d in result.diagnostics]
    for n, part in enumerate(parts):
        found_now.append(make("CB045", spans[min(n, len(spans) - 1)] if spans else None, site=part, model=name))
    ordered = sorted(found_now, key=lambda d: -int(d.severity))
    return result.model_copy(
        update={
            "text": text.decode("utf-8"),
            "hunks": tuple(_hunk(h) for h in hunks),
            "diff": unified_diff(original.path.replace("\\", "/").rpartition("/")[2], original.data, text),
            "report": below_header(result.report, added) if result.report is not None else None,
            "diagnostics": tuple(diagnostic_to_json(d) for d in _once(ordered)),
            "kernel": file_ref(original.path, original.data),
            "base_sha256": hashlib.sha256(original.data).hexdigest(),
            "encoding": "utf-8",
            "proposed": ProposedResult(
                model=model,
                host="",
                parts=parts,
                rounds=0,
                attempts=0,
                prompt_tokens=0,
                reply_tokens=0,
                seconds=0.0,
            ),
        }
    )


def line_hunks(original: SourceFile, text: bytes) -> tuple[Hunk, ...]:
    """The change from `original` to `text` by whole lines; `why` says whether a model wrote any of the new ones."""
    old, new = original.data.splitlines(keepends=True), text.splitlines(keepends=True)
    starts = [0]
    for line in old:
        starts.append(starts[-1] + len(line))
    at = [0]
    for line in new:
        at.append(at[-1] + len(line))
    ranges = proposed_ranges(text)
    hunks: list[Hunk] = []
    for tag, a, b, c, d in difflib.SequenceMatcher(None, old, new, autojunk=False).get_opcodes():
        if tag == "equal":
            continue
        written = any(start < at[d] and at[c] < end for start, end, *_ in ranges)
        hunks.append(
            Hunk(
                starts[a],
                starts[b],
                b"".join(old[a:b]).decode("utf-8"),
                b"".join(new[c:d]).decode("utf-8"),
                "proposed" if written else "rules",
                a,
            )
        )
    return tuple(hunks)


def _hunk(hunk: Hunk) -> HunkResult:
    return HunkResult(
        start=hunk.start,
        end=hunk.end,
        line=hunk.line,
        old=hunk.old,
        new=hunk.new,
        why=hunk.why,
        proposed=hunk.why == "proposed" or BEGIN in hunk.new,
    )


def _with_lines(text: bytes, lines: list[str]) -> tuple[bytes, int]:
    """`text` with `lines` after those of the header, and how many they are."""
    parts = text.splitlines(keepends=True)
    at = 0
    while at < len(parts) and parts[at].lstrip(b"\xef\xbb\xbf").startswith(HEADER):
        at += 1
    newline = _newline(text).encode()
    return b"".join([*parts[:at], *(line.encode() + newline for line in lines), *parts[at:]]), len(lines)


def _once(items: list[Diagnostic]) -> list[Diagnostic]:
    """Each finding once, in the same order."""
    seen: list[Diagnostic] = []
    for item in items:
        if not any(item.code == s.code and item.message == s.message and item.span == s.span for s in seen):
            seen.append(item)
    return seen


def _newline(text: bytes) -> str:
    return "\r\n" if b"\r\n" in text else "\n"
