"""Where reading a kernel and watching it run disagree, as findings of `check --watch`. Kept by content."""

from __future__ import annotations

from ..check.model import Finding
from ..compile import Contract
from ..compile.cache import cache_key
from ..compile.kept import engine_stamp, load_json, store_json
from ..diagnostics import Diagnostic, diagnostic_from_json, diagnostic_to_json
from ..lift import Lifted
from ..understand.observed import all_disagreements
from ..verify.stages import Stages
from ..watch.merge import merged
from .files import Options
from .watched import run_watched

KIND = "disagreements"


def disagreement_findings(
    path: str, data: bytes, lifted: Lifted, contract: Contract | None, options: Options, stages: Stages
) -> tuple[Finding, ...]:
    """CB132 for each part of the function, and each step, that a kernel which was read whole and the run of it do not
    say the same of. Nothing where it could not be run.
    """
    parts = (engine_stamp(), repr(contract), repr((options.kernel_name, options.head_dim)))
    key = cache_key(data, path, parts, ())
    table = load_json(KIND, key)
    if table is not None:
        return tuple(_finding(diagnostic_from_json(d)) for d in table["diagnostics"])
    watched = run_watched(path, data, lifted, contract, options, stages)
    found, _ = all_disagreements(watched, lifted.kernel, merged(lifted, watched))
    told = [d.diagnostic() for d in found]
    if watched.ran:
        store_json(KIND, key, {"diagnostics": [diagnostic_to_json(d) for d in told]})
    return tuple(_finding(d) for d in told)


def _finding(found: Diagnostic) -> Finding:
    return Finding(found, "softmax", "likely", "watching")
