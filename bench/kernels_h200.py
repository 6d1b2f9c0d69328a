"""The expert kernels against the fastest attention that a user could pick instead, on one GPU, in one process.

``python -m bench.kernels_h200 --out bench/results/kernels_h200.json`` first checks each of our kernels on a grid of
shapes, then every contender of a row against a float32 reference, then times the row. Needs torch with a GPU and
NVRTC; a peer that is not installed is left out (fa3: ``fa3_fwd_interface`` or ``flash_attn_interface``; fa4:
``flash_attn.cute``; FlexAttention: Triton).

Method: all contenders of a row take turns launch by launch, 256 MB are written between launches so that nothing of the
inputs is left in the L2 cache, two sets of random inputs rotate, medians of GPU events. The card is power-limited under
these kernels: only figures of one run, taken in turns, compare. TFLOP/s count 2 (D + Dv) per attended pair (i, j).
"""

from __future__ import annotations

import argparse
import importlib
import json
import math
import statistics
import sys
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from .recording import record, surroundings

ROOT = Path(__file__).parents[1]
KERNELS = ("flash_fwd_sm90", "flash_fwd_sm90_plain", "flash_fwd_sm80")
FLUSH_BYTES = 256 << 20
ERROR_LIMIT = {"bfloat16": 6e-3, "float16": 1e-3}  # of O, relative, in the Frobenius norm
LSE_LIMIT = 2e-3
Call = Callable[[], Any]


@dataclass(frozen=True)
class Row:
    """A problem of the table."""

    variant: str
    B: int
    H: int
    Hkv: int
    S: int
    D: int
    Dv: int
    causal: bool
    dtype: str = "bfloat16"

    @property
    def tflop(self) -> float:
        """Useful work of one launch."""
        pairs = self.S * (self.S + 1) / 2 if self.causal else self.S**2
        return 2 * (self.D + self.Dv) * self.B * self.H * pairs / 1e12


def _pair(name: str, *sizes: int) -> list[Row]:
    return [Row(f"{name} full", *sizes, causal=False), Row(f"{name} causal", *sizes, causal=True)]


ROWS = [
    *_pair("D=128", 4, 32, 32, 4096, 128, 128),
    *_pair("D=64", 4, 32, 32, 4096, 64, 64),
    *_pair("GQA 64/8 S=8192", 1, 64, 8, 8192, 128, 128),
    *_pair("B=16 S=1024", 16, 32, 32, 1024, 128, 128),
    *_pair("D=256", 4, 16, 16, 4096, 256, 256),
    *_pair("D=192 Dv=128", 4, 16, 16, 4096, 192, 128),
]
# B, H, Hkv, Sq, Sk of the check before anything is timed
CHECKS = [
    (1, 2, 2, 128, 128), (2, 4, 2, 70, 200), (1, 4, 1, 200, 70), (1, 1, 1, 1, 1), (1, 6, 2, 5, 333), (2, 2, 1, 65, 0),
    (1, 3, 3, 1, 513), (3, 8, 2, 517, 517), (2, 38, 38, 1000, 1000), (4, 32, 8, 1024, 2048),
]  # fmt: skip


class Ours:
    """A bundled kernel, compiled for this device."""

    def __init__(self, name: str) -> None:
        from cubridge_engine.compile import compile_contract, read_contract
        from cubridge_engine.device import device_available, open_runner

        contract, problems = read_contract(ROOT / "expert_kernels" / name / "contract.toml")
        device = device_available()
        if contract is None or device is None:
            raise RuntimeError("; ".join(d.message for d in problems) or "no CUDA device")
        self.contract = contract
        self.compiled = compile_contract(contract, arch=device.arch)
        runner, problems = open_runner(self.compiled)
        if runner is None:
            raise RuntimeError("; ".join(d.message for d in (*self.compiled.diagnostics, *problems)))
        self.runner = runner

    def prepare(self, tensors: dict[str, Any], causal: bool) -> Call | None:
        """A launch on these tensors (q, k, v, o, lse), or None where the kernel has no such instance."""
        from cubridge_engine.device import bind_arguments, sizes_of, workspaces

        q, v = tensors["q"], tensors["v"]
        instance = self.contract.instance(str(q.dtype).removeprefix("torch."), q.shape[-1], v.shape[-1])
        if instance is None or (causal and "causal_bottom_right" not in self.contract.masks):
            return None
        sizes = {**sizes_of(tensors), "Dv": int(v.shape[-1])}
        given = {"scale": q.shape[-1] ** -0.5, "causal": int(causal), **workspaces(self.contract)}
        arguments, problems = bind_arguments(self.contract, tensors, sizes, given)
        if problems:
            raise RuntimeError("; ".join(d.message for d in problems))
        shape = self.contract.launch(sizes, instance.dtype)
        return self.runner.repeatedly(instance.expression, shape, arguments)

    def figures(self) -> dict[str, Any]:
        """Registers, spills and shared bytes by instance."""
        return {
            k.expression: {"registers": k.registers, "spill_bytes": (k.spill_stores or 0) + (k.spill_loads or 0)}
            for k in self.compiled.kernels
        }


def draw(b: int, h: int, hkv: int, sq: int, sk: int, d: int, dv: int, dtype: str, seed: int) -> dict[str, Any]:
    """Random q, k, v and poisoned o, lse on the GPU."""
    import torch

    generator = torch.Generator("cuda").manual_seed(seed)
    kind = getattr(torch, dtype)

    def normal(*shape: int) -> Any:
        return torch.randn(*shape, device="cuda", generator=generator).to(kind)

    o = torch.full((b, h, sq, dv), math.nan, device="cuda", dtype=kind)
    lse = torch.full((b, h, sq), math.nan, device="cuda")
    return {"q": 1.5 * normal(b, h, sq, d), "k": normal(b, hkv, sk, d), "v": normal(b, hkv, sk, dv), "o": o, "lse": lse}


def reference(tensors: dict[str, Any], causal: bool) -> tuple[Any, Any]:
    """O and LSE in float32, head by head. A row that sees no key gives 0 and -inf."""
    import torch

    q, k, v = (tensors[name] for name in "qkv")
    o, lse = torch.empty(*q.shape[:3], v.shape[-1], device="cuda"), torch.empty(q.shape[:3], device="cuda")
    sq, sk = q.shape[2], k.shape[2]
    hidden = torch.ones(sq, sk, dtype=torch.bool, device="cuda").triu(sk - sq + 1) if causal else None
    for b in range(q.shape[0]):
        for h in range(q.shape[1]):
            hk = h // (q.shape[1] // k.shape[1])
            s = q[b, h].float() @ k[b, hk].float().T * q.shape[-1] ** -0.5
            s = s.masked_fill(hidden, -math.inf) if hidden is not None else s
            lse[b, h] = torch.logsumexp(s, -1) if sk else -math.inf
            p = torch.where(lse[b, h, :, None].isinf(), 0.0, torch.exp(s - lse[b, h, :, None]))
            o[b, h] = p @ v[b, hk].float()
    return o, lse


def error(got: Any, wanted: Any) -> float:
    """Relative error in the Frobenius norm; infinite for NaN."""
    size = float(wanted.norm())
    off = float((got.float() - wanted).norm()) / (size or 1.0)
    return off if math.isfinite(off) else math.inf


def check(ours: Ours) -> list[dict[str, Any]]:
    """Every instance of a kernel on the grid of shapes, twice each. Raises where a result is wrong."""
    import torch

    worst: list[dict[str, Any]] = []
    for instance in ours.contract.instances:
        found = 0.0
        for causal in (False, True) if "causal_bottom_right" in ours.contract.masks else (False,):
            for number, (b, h, hkv, sq, sk) in enumerate(CHECKS):
                tensors = draw(b, h, hkv, sq, sk, *instance.widths, instance.dtype, number)
                start = ours.prepare(tensors, causal)
                assert start is not None
                wanted, lse = reference(tensors, causal)
                for _ in range(2):
                    start()
                    torch.cuda.synchronize()
                    off = error(tensors["o"], wanted)
                    seen = lse.isfinite()
                    far = float((tensors["lse"] - lse)[seen].abs().max()) if bool(seen.any()) else 0.0
                    same = bool((tensors["lse"].isneginf() == ~seen).all())
                    if not (off < ERROR_LIMIT[instance.dtype] and far < LSE_LIMIT and same):
                        where = f"{instance.expression} B={b} H={h}/{hkv} Sq={sq} Sk={sk} causal={causal}"
                        raise SystemExit(f"wrong: {where}: error of O {off:.2e}, of LSE {far:.2e}")
                    found = max(found, off)
                    tensors["o"].fill_(math.nan)
        worst.append({"instance": instance.expression, "worst_error": found})
    return worst


# ---- peers: name -> a function that makes a call on (q, k, v, causal), or None where it is not installed


def _found(*names: str) -> Any | None:
    for name in names:
        try:
            return importlib.import_module(name)
        except (ImportError, OSError):
            continue
    return None


def _sdpa(backend: str) -> Callable[[dict[str, Any], bool], Call]:
    import torch
    from torch.nn.attention import SDPBackend, sdpa_kernel

    chosen = getattr(SDPBackend, backend)

    def make(t: dict[str, Any], causal: bool) -> Call:
        grouped = t["q"].shape[1] != t["k"].shape[1]

        def call() -> Any:
            with sdpa_kernel(chosen):
                return torch.nn.functional.scaled_dot_product_attention(
                    t["q"], t["k"], t["v"], is_causal=causal, enable_gqa=grouped
                )

        return call

    return make


def _flex(backend: str) -> Callable[[dict[str, Any], bool], Call]:
    import torch
    from torch.nn.attention.flex_attention import create_block_mask, flex_attention

    compiled: Any = torch.compile(flex_attention, dynamic=False)
    options = {"kernel_options": {"BACKEND": backend}} if backend else {}

    def below(b: Any, h: Any, i: Any, j: Any) -> Any:
        return i >= j

    def make(t: dict[str, Any], causal: bool) -> Call:
        length = t["q"].shape[2]
        mask = create_block_mask(below, None, None, length, length) if causal else None
        grouped = t["q"].shape[1] != t["k"].shape[1]
        return lambda: compiled(t["q"], t["k"], t["v"], block_mask=mask, enable_gqa=grouped, **options)

    return make


def _flash_attn(module: Any) -> Callable[[dict[str, Any], bool], Call]:
    def make(t: dict[str, Any], causal: bool) -> Call:
        q, k, v = (t[name].transpose(1, 2).contiguous() for name in "qkv")  # [B, S, H, D], as it wants it

        def call() -> Any:
            result = module.flash_attn_func(q, k, v, causal=causal)
            return (result[0] if isinstance(result, tuple) else result).transpose(1, 2)

        return call

    return make


def peers() -> dict[str, Callable[[dict[str, Any], bool], Call]]:
    """Makers of calls, by the name in the record."""
    found = {"sdpa_flash": _sdpa("FLASH_ATTENTION"), "sdpa_cudnn": _sdpa("CUDNN_ATTENTION")}
    if _found("triton") is not None:
        found["flex_triton"] = _flex("")
    fa3, fa4 = (
        _found("fa3_fwd_interface", "flash_attn_interface"),
        _found("flash_attn.cute", "flash_attn.cute.interface"),
    )
    if fa4 is not None and hasattr(fa4, "flash_attn_func"):
        found |= {"fa4": _flash_attn(fa4), "flex_flash": _flex("FLASH")}
    if fa3 is not None:
        found["fa3"] = _flash_attn(fa3)
    return found


# ---- a row


def contenders(row: Row, sets: list[dict[str, Any]], kernels: dict[str, Ours]) -> Iterator[tuple[str, list[Call]]]:
    """(name, a call per set of inputs) of everything that can compute the row, each checked. Ours write to o."""
    import torch

    for name, ours in kernels.items():
        starts = [ours.prepare(t, row.causal) for t in sets]
        if any(start is None for start in starts):
            continue

        def result(start: Call | None, t: dict[str, Any]) -> Call:
            return lambda: (start() if start else None, t["o"])[1]

        yield name, [result(s, t) for s, t in zip(starts, sets, strict=True)]
    for name, make in peers().items():
        try:
            calls = [make(t, row.causal) for t in sets]
            calls[0]()
            torch.cuda.synchronize()
        except Exception as problem:  # a peer that cannot do this row
            print(f"  {name}: {type(problem).__name__}: {str(problem).splitlines()[0][:90]}", file=sys.stderr)
            continue
        yield name, calls


def time_calls(calls: dict[str, list[Call]], rounds: int) -> dict[str, float]:
    """Median milliseconds by contender; they take turns."""
    import torch

    flush = torch.empty(FLUSH_BYTES, dtype=torch.int8, device="cuda")
    events: dict[str, list[tuple[Any, Any]]] = {name: [] for name in calls}
    for number in range(rounds + 3):
        for name, own in calls.items():
            pair = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
            flush.zero_()
            pair[0].record()
            own[number % len(own)]()
            pair[1].record()
            if number >= 3:  # the first rounds warm up
                events[name].append(pair)
        torch.cuda.synchronize()
    return {name: statistics.median(a.elapsed_time(b) for a, b in pairs) for name, pairs in events.items()}


def measure(row: Row, kernels: dict[str, Ours], rounds: int) -> dict[str, Any]:
    """The record of a row: TFLOP/s by contender; one whose result is wrong is named and not timed."""
    sizes = (row.B, row.H, row.Hkv, row.S, row.S, row.D, row.Dv)
    sets = [draw(*sizes, row.dtype, seed) for seed in (1, 2)]
    wanted, _ = reference(sets[0], row.causal)
    calls: dict[str, list[Call]] = {}
    errors: dict[str, float] = {}
    for name, own in contenders(row, sets, kernels):
        errors[name] = error(own[0](), wanted)
        if errors[name] < ERROR_LIMIT[row.dtype]:
            calls[name] = own
    speed = {name: round(row.tflop / ms * 1e3, 1) for name, ms in time_calls(calls, rounds).items()}
    theirs = {name: value for name, value in speed.items() if name not in kernels}
    best = max(theirs, key=theirs.__getitem__, default=None)
    own_best = max((speed[name] for name in kernels if name in speed), default=None)
    shape = {key: value for key, value in asdict(row).items() if key != "variant"}
    return {
        "variant": row.variant,
        "shape": shape,
        "ours": own_best,
        "best_peer": theirs[best] if best else None,
        "best_peer_name": best,
        "ratio": round(own_best / theirs[best], 3) if best and own_best else None,
        **speed,
        "errors": {name: float(f"{value:.2e}") for name, value in errors.items()},
        "wrong": [name for name in errors if name not in speed],
    }


def main() -> int:
    """Command line."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--out", action="store_true", help="write bench/results/kernels_h200.json")
    parser.add_argument("--only", nargs="*", default=[], help="rows whose name contains one of these")
    parser.add_argument("--kernels", nargs="*", default=list(KERNELS))
    parser.add_argument("--rounds", type=int, default=60)
    parser.add_argument("--skip-check", action="store_true", help="time without the grid of shapes first")
    args = parser.parse_args()
    import torch

    if not torch.cuda.is_available():
        print("bench.kernels_h200 needs a CUDA device", file=sys.stderr)
        return 2
    torch.backends.cuda.matmul.allow_tf32 = False
    kernels = {name: Ours(name) for name in args.kernels}
    checks = {} if args.skip_check else {name: check(ours) for name, ours in kernels.items()}
    rows: list[dict[str, Any]] = []
    for row in ROWS:
        if args.only and not any(part in row.variant for part in args.only):
            continue
        rows.append(measure(row, kernels, args.rounds))
        print(json.dumps(rows[-1]), flush=True)
    ratios = [r["ratio"] for r in rows if r["ratio"]]
    report = {
        "what": "TFLOP/s of our kernels and of the peers installed, in turns, in one process",
        "device": torch.cuda.get_device_name(),
        "versions": {"torch": torch.__version__, "cuda": torch.version.cuda, "cudnn": torch.backends.cudnn.version()},
        "rounds": args.rounds,
        "geometric_mean": round(statistics.geometric_mean(ratios), 3) if ratios else None,
        "checks": checks,
        "compiled": {name: ours.figures() for name, ours in kernels.items()},
        "rows": rows,
    }
    print(record("kernels_h200", report) if args.out else json.dumps({**surroundings(), **report}, indent=2))
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
