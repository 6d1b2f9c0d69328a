"""The expert kernels that come with CuBridge: where they are, what they are for, and a copy for the user's folder."""

from __future__ import annotations

import shutil
from dataclasses import dataclass
from pathlib import Path

from .contract import Contract
from .contract_file import read_contract

# In an installed package the kernels lie inside the engine; in a checkout, and in the editor extension, beside it.
_PLACES = (
    Path(__file__).resolve().parents[1] / "expert_kernels",
    Path(__file__).resolve().parents[2] / "expert_kernels",
)
_FILES = ("contract.toml", "README.md")  # what goes along with the kernel's own file
_MAX_COPIES = 100


@dataclass(frozen=True, slots=True)
class Expert:
    """A bundled kernel: its folder and its contract."""

    folder: Path
    contract: Contract

    @property
    def name(self) -> str:
        """The kernel's name, which is that of its folder."""
        return self.contract.name

    def unfit(self, dtype: str | None, head_dim: int | None) -> str:
        """Why it does not fit an element type and head dimension, in a few words; '' when it does."""
        if dtype is not None and dtype not in self.contract.dtypes:
            return f"is for {', '.join(self.contract.dtypes)}, not {dtype}"
        if head_dim is not None and not self.contract.candidates((head_dim, head_dim)):
            return f"is for head dimensions up to {self.contract.largest}, not {head_dim}"
        return ""


def bundled_contracts() -> tuple[Path, ...]:
    """The contract files of the bundled kernels, by name; empty when the package came without kernels."""
    return next((found for place in _PLACES if (found := tuple(sorted(place.glob("*/contract.toml"))))), ())


def experts() -> tuple[Expert, ...]:
    """The bundled kernels to start from: those with a sound contract that lifting reads."""
    found = ((path.parent, read_contract(path)[0]) for path in bundled_contracts())
    return tuple(Expert(folder, contract) for folder, contract in found if contract is not None and contract.adaptable)


def copy_expert(expert: Expert, folder: Path) -> Path:
    """Copy the kernel, its contract and its README to a new folder in `folder`; nothing is ever overwritten.

    Returns the path of the copied kernel. Raises OSError when it cannot be written.
    """
    for copy in range(1, _MAX_COPIES):
        target = folder / (expert.name if copy == 1 else f"{expert.name}-{copy}")
        try:
            target.mkdir(parents=True)
        except FileExistsError:
            continue
        for name in (expert.contract.source, *_FILES):
            if (expert.folder / name).is_file():
                shutil.copyfile(expert.folder / name, target / name)
        return target / expert.contract.source
    raise OSError(f"{folder / expert.name} exists {_MAX_COPIES - 1} times")
