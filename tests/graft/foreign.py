"""The foreign kernels adapted by watching to a soft cap, a window and a sink together: the column "adapted" of their
funnel.

``python -m tests.graft.foreign [NAME ...] [--record]`` runs those kernels (default: the tuned ones whose S, P and O are
labelled) and writes foreign.json. A kernel that cannot be adapted is refused with a code and a line, which is recorded.
"""

from __future__ import annotations

import json
import os
import sys
import tempfile
import time
from dataclasses import replace
from pathlib import Path

from cubridge_engine.compile import Contract
from cubridge_engine.compile.search import Build
from cubridge_engine.diagnostics import Severity
from cubridge_engine.pipeline.files import Options
from cubridge_engine.pipeline.graft import GraftJob, result_of
from cubridge_engine.spec.attention import Attention
from cubridge_engine.verify.subject import VerifyOptions
from tests.foreign_kernels.corpus import Foreign, kernels

TABLE = Path(__file__).parent / "foreign.json"
FUNNEL = Path(__file__).parents[1] / "foreign_kernels" / "table.json"
SPEC = '''"""Soft cap of 20, a causal window of {window} keys, and a sink of each head."""

import torch


def attention(q, k, v, sinks):
    s = torch.einsum("bhid,bhjd->bhij", q.float(), k.float()) / q.shape[-1] ** 0.5
    s = 20.0 * torch.tanh(s / 20.0)
    i = torch.arange(q.shape[2])[:, None]{shift}
    j = torch.arange(k.shape[2])[None]
    s = s.masked_fill(~((j <= i) & (i - j < {window})), float("-inf"))
    column = sinks[None, :, None, None].expand(*s.shape[:3], 1)
    p = torch.softmax(torch.cat([s, column], dim=-1), dim=-1)[..., :-1]
    return torch.einsum("bhij,bhjd->bhid", p, v.float()).to(q.dtype)


def example_inputs():
    torch.manual_seed(7)
    q, k, v = (torch.randn(1, 2, n, {dim}).to(torch.{dtype}) for n in ({rows}, 256, 256))
    return q, k, v, torch.randn(2)
'''

# Without a key FlashAttention-2 returns before its epilogue and writes LSE = inf, which no sink can be put into.
REQUIRES = dict.fromkeys(("fa2_full", "fa2_causal"), ("1 <= Sk",))


class ForeignJob(GraftJob):
    """One foreign kernel, called as its contract says and compiled as its package does."""

    def __init__(self, foreign: Foreign, spec: str) -> None:
        path = foreign.path()
        super().__init__(str(path), spec, Options(), VerifyOptions(use_gpu=False), lambda *_: None)
        self.foreign = foreign
        self.build = Build(foreign.include_dirs(), tuple(foreign.table.get("define", ())))

    def contract_for(self, attention: Attention) -> Contract:
        contract = self.foreign.contract_at(Path(self.kernel_path))
        return replace(
            contract, instances=contract.instances[:1],
            requires=(*contract.requires, *REQUIRES.get(self.foreign.name, ())),
        )  # fmt: skip


def labelled() -> list[str]:
    """The tuned kernels whose S, P and O are labelled."""
    table = json.loads(FUNNEL.read_text())
    tuned = [name for name, one in kernels().items() if not one.held_out]
    return [name for name in tuned if {"S", "P", "O"} <= set(table.get(name, {}).get("labels", "").split())]


def spec_for(contract: Contract) -> str:
    """The spec in the widths of a kernel, its rows aligned with the keys as the kernel aligns them."""
    one = contract.instances[0]
    shift = "" if contract.masks == ("causal",) else " + k.shape[2] - q.shape[2]"
    rows = 1 if "Sq == 1" in contract.requires else 256
    return SPEC.format(window=96, shift=shift, dim=one.head_dim, dtype=one.dtype, rows=rows)


def adapted(foreign: Foreign) -> dict[str, object]:
    """A row of the table. Raises Missing where the package cannot be had."""
    assert foreign.contract is not None
    started = time.perf_counter()
    with tempfile.TemporaryDirectory() as folder:
        spec = Path(folder) / "softcap_window_sink.py"
        spec.write_text(spec_for(foreign.contract))
        job = ForeignJob(foreign, str(spec))
        job.run()
        result = result_of(job)
    row: dict[str, object] = {"family": foreign.family, "level": result.level if result.text is not None else "refused"}
    errors = [d for d in job.diagnostics if d.severity is Severity.ERROR]
    if errors:
        span = errors[0].span
        line = f"{os.path.basename(span.path)}:{span.line + 1}" if span is not None else ""
        row |= {"code": errors[0].code, "line": line, "why": errors[0].message[:220]}
    elif result.report is not None:
        cases = result.report.cases
        row |= {
            "hunks": len(result.hunks) + sum(len(f.hunks) for f in result.files),
            "files": sorted(os.path.basename(f.name) for f in result.files),
            "problems": len({(c.name, c.seed) for c in cases}),
            "launches": len(cases),
            "worst": float(f"{max(float(c.worst_o) for c in cases):.1e}"),
        }
    if foreign.name in REQUIRES:
        row["requires"] = list(REQUIRES[foreign.name])
    return row | {"seconds": round(time.perf_counter() - started)}


def main(arguments: list[str]) -> int:
    """Run and print the rows; with ``--record`` keep them."""
    names = [a for a in arguments if not a.startswith("-")] or labelled()
    table = json.loads(TABLE.read_text()) if TABLE.exists() else {}
    for name in names:
        table[name] = adapted(kernels()[name])
        print(name, json.dumps(table[name]), flush=True)
        if "--record" in arguments:
            TABLE.write_text(json.dumps(dict(sorted(table.items())), indent=1) + "\n")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
