"""What each architecture offers a CTA, as tables."""

from __future__ import annotations

import re
from dataclasses import dataclass

KIB = 1024

# Most shared memory one CTA can opt in to (bytes), by compute capability. CUDA programming guide, technical
# specifications.
SHARED_PER_CTA = {
    75: 64 * KIB,
    80: 163 * KIB,
    86: 99 * KIB,
    87: 163 * KIB,
    89: 99 * KIB,
    90: 227 * KIB,
    100: 227 * KIB,
    103: 227 * KIB,
    110: 227 * KIB,
    120: 99 * KIB,
    121: 99 * KIB,
}
# Without the opt-in (cudaFuncAttributeMaxDynamicSharedMemorySize) every architecture stops here.
SHARED_WITHOUT_OPT_IN = 48 * KIB
REGISTERS_PER_THREAD = 255

_ARCH = re.compile(r"(?:sm|compute)_(\d+)([af]?)$")


@dataclass(frozen=True, slots=True)
class Arch:
    """A target such as sm_90a: `capability` 90, `suffix` 'a' (architecture specific), 'f' (family) or ''."""

    capability: int
    suffix: str

    @property
    def name(self) -> str:
        """``sm_90a``."""
        return f"sm_{self.capability}{self.suffix}"

    def runs_on(self, capability: int) -> bool:
        """True when machine code for this target loads on a device of `capability`."""
        if self.suffix:
            return self.capability == capability
        return self.capability // 10 == capability // 10 and self.capability <= capability


def parse_arch(text: str) -> Arch | None:
    """Read ``sm_80``, ``sm_90a``, ``compute_86``; None when it is none of these."""
    match = _ARCH.match(text.strip())
    return Arch(int(match[1]), match[2]) if match else None


def shared_limit(arch: str) -> int | None:
    """Bytes of shared memory one CTA may use on `arch`; None when the architecture is not in the table."""
    parsed = parse_arch(arch)
    return SHARED_PER_CTA.get(parsed.capability) if parsed else None
