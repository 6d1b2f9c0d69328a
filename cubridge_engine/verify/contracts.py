"""Which contract says how to compile and call a kernel: the one beside it, or that of the bundled kernel it was made
from.

An adapted or hand-edited kernel keeps the parameters of its original and appends its own; their roles come from
lifting.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from ..compile import Contract, Parameter, bundled_contracts, contract_beside, read_contract
from ..diagnostics import Diagnostic
from ..ir.nodes import Kernel, Param

# Element type words of a pointer parameter -> contract type; the first that occurs in the C type counts.
_POINTERS = (
    ("__nv_bfloat16", "bfloat16*"),
    ("nv_bfloat16", "bfloat16*"),
    ("__half", "half*"),
    ("half", "half*"),
    ("float", "float*"),
    ("bool", "bool*"),
    ("unsigned char", "bool*"),
    ("int64_t", "int64*"),
    ("long long", "int64*"),
    ("int", "int32*"),
)
_SCALARS = (("long long", "int64"), ("int64_t", "int64"), ("size_t", "int64"), ("float", "float32"), ("int", "int32"))


def contract_type(ctype: str, element: str = "T*") -> str:
    """The contract's type of a parameter as written in C++; pointers to a template parameter are ``T*``."""
    if "*" in ctype:
        words = ctype.replace("__restrict__", " ").replace("const", " ")
        return next((kind for word, kind in _POINTERS if word in words.split("*")[0]), element)
    return next((kind for word, kind in _SCALARS if word in ctype), "int32")


def find_contract(kernel_path: Path, kernel: Kernel) -> tuple[Contract | None, tuple[Diagnostic, ...]]:
    """The contract beside `kernel_path`, else the bundled one whose kernel has that name and those first parameters."""
    beside = contract_beside(kernel_path)
    if beside is not None:
        return read_contract(beside)
    for path in bundled_contracts():
        contract, _ = read_contract(path)
        if contract is not None and _same_kernel(contract, kernel):
            return contract, ()
    return None, ()


def _same_kernel(contract: Contract, kernel: Kernel) -> bool:
    """Every parameter of the contract stands at its place in the kernel, by name."""
    given = [p.name for p in kernel.params]
    wanted = [p.name for p in contract.parameters]
    return contract.name == kernel.name and given[: len(wanted)] == wanted


def by_member(values: Mapping[str, Any]) -> dict[str, Any]:
    """`values` by the names that a contract has: a member of a struct parameter by its own, without the struct's. A
    name that two structs have is left out.
    """
    members = [name for name in values if "." in name]
    count = Counter(name.rsplit(".", 1)[1] for name in members)
    short = {name.rsplit(".", 1)[1]: values[name] for name in members if count[name.rsplit(".", 1)[1]] == 1}
    return {**short, **values}


def extended(contract: Contract, kernel: Kernel, operands: Mapping[str, str]) -> Contract:
    """`contract` with the parameters that `kernel` has beyond it; `operands` names the spec's tensor for a
    parameter.
    """
    # Members of a struct are parameters of the lifted kernel, and one parameter of the contract.
    plain = [p for p in kernel.params if "." not in p.name]
    known = sum(p.type != "struct" for p in contract.parameters)
    extra = tuple(_parameter(p, operands) for p in plain[known:])
    return contract.with_parameters(extra) if extra else contract


def _parameter(param: Param, operands: Mapping[str, str]) -> Parameter:
    kind = contract_type(param.ctype)
    if param.name in operands or param.role.startswith("operand:"):
        return Parameter(param.name, f"operand:{operands.get(param.name, param.name)}", kind)
    # Strides and scalars are bound by their own name.
    return Parameter(param.name, f"scalar:{param.name}", kind)
