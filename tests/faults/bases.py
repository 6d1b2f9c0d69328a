"""The clean kernels that faults are planted in: their texts, contracts, and the problems that tell right from wrong."""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path

from cubridge_engine.compile import Contract, Instance, read_contract

HERE = Path(__file__).parent
ROOT = HERE.parents[1]


@dataclass(frozen=True)
class Problem:
    """Sizes of one launch. `hkv` and `sk` follow the contract's `requires` where they are 0. `low`: all scores are far
    below 0.
    """

    sq: int
    sk: int = 0
    b: int = 1
    h: int = 2
    hkv: int = 0
    causal: bool = False
    low: bool = False


@dataclass(frozen=True)
class Base:
    """A clean kernel. `problems` are cheap, in the order in which faults tend to show. `top_left`: its causal mask
    starts there.
    """

    name: str
    family: str
    problems: tuple[Problem, ...]
    tolerance: float = 2e-3
    bundled: bool = False
    top_left: bool = False

    @property
    def contract_path(self) -> Path:
        """Where its contract is."""
        if self.bundled:
            return ROOT / "expert_kernels" / self.name / "contract.toml"
        return HERE / "contracts" / f"{self.name}.toml"

    @property
    def contract(self) -> Contract:
        """Its contract."""
        return _contract(self.contract_path)

    @property
    def path(self) -> Path:
        """The kernel's file."""
        return self.contract.source_path

    @property
    def text(self) -> str:
        """The clean text."""
        return self.path.read_text()

    @property
    def arch(self) -> str:
        """What it is compiled for."""
        return self.contract.archs[-1] if "sm_90a" in self.contract.archs[0] else "sm_80"

    @property
    def chosen(self) -> Instance:
        """The instance that is run."""
        return self.contract.instances[0]


@lru_cache(maxsize=64)
def _contract(path: Path) -> Contract:
    contract, problems = read_contract(path)
    assert contract is not None, problems
    return contract


P = Problem
RAGGED = (P(40, 50), P(33, 16), P(5, 7), P(3, 70), P(8, 40, low=True))
EQUAL = (P(70, b=2), P(33), P(40), P(40, low=True))
SCALAR = (P(40, 70, h=4, hkv=2), P(3, 32), P(33, 96), P(3, 0), P(20, 40, low=True))
SM80 = (
    P(70, 200, h=4, hkv=2), P(100, 150, causal=True), P(150, 129, causal=True), P(1, 66), P(8, 70, low=True)
)  # fmt: skip
DECODE = (P(1, 70, b=2, h=4, hkv=2), P(1, 3, h=4, hkv=2), P(1, 0))
RING = (P(40, 70, h=4, hkv=2), P(50, 40, causal=True), P(33, 80, h=4, hkv=2, causal=True))
WMMA = (P(40, 70, h=4, hkv=2), P(50, 40, causal=True), P(33, 100, h=4, hkv=2, causal=True), P(8, 40, low=True))
PADDED = (P(100, h=4, hkv=2), P(100, h=4, hkv=2, causal=True), P(64))
HOPPER = (P(70, 200, h=4, hkv=2), P(100, 150, causal=True), P(150, 129, causal=True))
HALF = 8e-3  # tolerance of fp16: P is rounded to it
BASES = {
    base.name: base
    for base in (
        Base("flash_fwd_scalar", "scalar, four threads a row", SCALAR, bundled=True),
        Base("flash_fwd_sm80", "raw mma, cp.async ring of two", SM80, HALF, bundled=True),
        Base("block2d", "two-dimensional block", RAGGED),
        Base("warp_per_row", "warp per row", RAGGED),
        Base("rows", "thread per row", RAGGED),
        Base("thread_per_row", "thread per row", EQUAL),
        Base("rows_in_shared", "row state in shared memory", (P(70), P(70, causal=True)), top_left=True),
        Base("kv_outer", "order of FlashAttention-1", RAGGED),
        Base("split_warps", "decode, keys split over warps", DECODE, HALF / 2),
        Base("vector_ring", "float4 and cp.async, two buffers", RING),
        Base("wmma_tiles", "wmma", WMMA, HALF),
        Base("mma_padded", "raw mma without cp.async", PADDED, HALF),
        Base("mma_three_stages", "raw mma, cp.async ring of three", (P(200), P(300), P(128)), HALF),
        Base("tma_wgmma", "TMA and wgmma", HOPPER, HALF),
    )
}
