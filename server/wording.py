"""The engine's way out names flags of the command line; in an editor it is a setting, a lens, a field of a panel."""

from __future__ import annotations

import re
from dataclasses import replace

from cubridge_engine.diagnostics import Diagnostic

# What the command line calls it (a pattern) -> what a client of the server has in its place.
FLAGS: tuple[tuple[str, str], ...] = (
    (r"`?--empty-rows exact`?", "the setting `cubridge.emptyRows`: exact"),
    (r",? or pass --set [^ ]+=VALUE", ""),  # the other way is named before it
    (r"with --set ([^ ]+)=VALUE", r"with a line '// cubridge: set \1=VALUE' at the top of the kernel"),
    (r"with --kernel\b", "by the lens or the code action over it"),
    (r"with --outputs\b", "as `outputs` among the options of `cubridge.adapt`"),
    (r"with --sq, [^.]*--h\b", "in the fields of the mask panel, or as `sizes` of `cubridge.maskMap`"),
    (r"Answer with --set, or write", "Answer what CuBridge asks, or write"),
    (r"Pass --force to overwrite it, or keep it", "Delete it to have another one written, or keep it"),
    (
        r"Write --set NAME=ROLE (.*?), --set grid=(.*?), --set block=(.*?) or --set instance=NAME",
        r"Answer with a role \1",
    ),
    (r"--arch [^ ,]+, or archs", "archs"),
    (
        r"`cubridge explain --watch` on the kernel says more; `cubridge contract` shows",
        "Watch It Run in the explanation of the kernel says more; Show How Kernel Is Called shows",
    ),
    (r"`cubridge explain --watch` on the kernel shows", "Watch It Run in the explanation of the kernel shows"),
    (r": cubridge contract .+ --kernel [^ ]+", ": Show How Kernel Is Called in that file"),
    (r"`cubridge new`", "Start From an Expert Kernel"),
    (
        r"'cubridge adapt --watch' looks for the scores by running",
        "The command line can look for the scores by running",
    ),
    (r"--expect\b", "the setting `cubridge.check.expect`"),
    (r"[`']cubridge lift[`']", "the command Show CuIR"),
    (r"[`']cubridge verify[`']", "the command Verify"),
)
_PATTERNS = tuple((re.compile(pattern), words) for pattern, words in FLAGS)


def in_editor(text: str) -> str:
    """A sentence of the engine in the words of an editor."""
    for pattern, words in _PATTERNS:
        text = pattern.sub(words, text)
    return text


def of_editor(found: Diagnostic) -> Diagnostic:
    """`found` with its sentences in the words of an editor."""
    related = tuple(replace(item, message=in_editor(item.message)) for item in found.related)
    return replace(found, message=in_editor(found.message), help=in_editor(found.help), related=related)
