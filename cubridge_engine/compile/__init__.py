"""Compiling: CUDA text -> PTX, machine code, ptxas figures; and the contract that says how to call a kernel.

`compile_source` for any file, `compile_contract` for a kernel with a contract.toml.
"""

from .build import check_shared, compile_contract, compile_source
from .bundled import Expert, bundled_contracts, copy_expert, experts
from .codes import PIP_INSTALL
from .contract import Contract, Instance, LaunchShape
from .contract_file import contract_beside, parse_contract, read_contract
from .limits import Arch, parse_arch, shared_limit
from .model import Compiled, KernelFigures
from .parameters import Field, Parameter
from .size_text import evaluate_condition, evaluate_size

__all__ = [
    "PIP_INSTALL",
    "Arch",
    "Compiled",
    "Contract",
    "Expert",
    "Field",
    "Instance",
    "KernelFigures",
    "LaunchShape",
    "Parameter",
    "bundled_contracts",
    "check_shared",
    "compile_contract",
    "compile_source",
    "contract_beside",
    "copy_expert",
    "evaluate_condition",
    "evaluate_size",
    "experts",
    "parse_arch",
    "parse_contract",
    "read_contract",
    "shared_limit",
]
