"""`export`: the text of a Python module that makes a kernel a PyTorch operator."""

from __future__ import annotations

import keyword
from dataclasses import dataclass
from pathlib import Path

from ..compile import Contract, bundled_contracts, contract_beside, read_contract
from ..diagnostics import Diagnostic, make
from ..export import module_text, plan_export
from ..export.parts import defined_names
from ..export.plan import RESERVED, Plan, stem_name
from ..export.sources import gather
from ..export.text import tensors_in_order
from ..lift import lift
from ..lower import parse_header
from ..results import Exporting
from ..source import SourceFile
from ..source.source_file import Function
from ..verify.stages import Progress
from .common import diagnostic_dicts, exit_code
from .files import Options, file_ref, parse_kernel_file, read_file


@dataclass(frozen=True, slots=True)
class Planned:
    """The plan of a kernel file, and what was read for it."""

    plan: Plan | None
    kernel_name: str | None
    data: bytes | None
    diagnostics: tuple[Diagnostic, ...]


def plan_of(kernel_path: str, name: str, options: Options) -> Planned:
    """What the exported module of a kernel file must know. Never raises for what the file holds."""
    data, problems = read_file(kernel_path)
    if data is None:
        return Planned(None, None, None, problems)
    source = parse_kernel_file(kernel_path, data)
    functions = {f.name: parameter_names(source, f) for f in source.kernels()}
    asked = options.kernel_name
    if asked is not None and asked not in functions:
        wrong = make("CB025", source.span_of(0, 0), want=asked, have=", ".join(functions) or "none")
        return Planned(None, None, data, (wrong,))
    contract, problems = _contract(Path(kernel_path), functions, asked)
    if contract is None:
        chosen = asked or next(iter(functions), Path(kernel_path).name)
        return Planned(None, asked, data, problems or (make("CB670", source.span_of(0, 0), kernel=chosen),))
    chosen = function_of(contract)
    if chosen not in functions or asked not in (None, chosen):
        wrong = make("CB025", source.span_of(0, 0), want=chosen, have=asked or ", ".join(functions) or "none")
        return Planned(None, chosen, data, (wrong,))
    text = data.decode("utf-8", "replace")
    header, names = parse_header(text), functions[chosen]
    sources, problems = gather(Path(kernel_path), text)
    if sources is None:
        return Planned(None, chosen, data, problems)
    # The contract says it all, but for what an adaptation appends to it.
    adapted = bool(header.spec) or len(names) > len(contract.parameters)
    kernel = lift(source, kernel=chosen).kernel if adapted else None
    plan, problems = plan_export(name, contract, kernel, names, header, sources, options.bindings, options.head_dim)
    return Planned(plan, chosen, data, problems)


def function_of(contract: Contract) -> str:
    """The name of the contract's kernel in the text."""
    return contract.instances[0].expression.partition("<")[0].rpartition("::")[2].strip()


def _contract(
    path: Path, functions: dict[str, tuple[str, ...]], asked: str | None
) -> tuple[Contract | None, tuple[Diagnostic, ...]]:
    """The contract beside the file, or that of the bundled kernel that it was made from: it has the same name, and
    its parameters come first.
    """
    beside = contract_beside(path)
    if beside is not None:
        return read_contract(beside)
    for one in bundled_contracts():
        contract, _ = read_contract(one)
        if contract is None or asked not in (None, function_of(contract)):
            continue
        wanted = tuple(p.name for p in contract.parameters)
        if functions.get(function_of(contract), ())[: len(wanted)] == wanted:
            return contract, ()
    return None, ()


def parameter_names(source: SourceFile, function: Function) -> tuple[str, ...]:
    """The parameters of a kernel in order, by the syntax of its text."""
    found: list[str] = []
    for entry in function.params.named_children:
        if "parameter_declaration" not in entry.type:
            continue
        node = entry.child_by_field_name("declarator")
        while node is not None and node.type != "identifier":
            node = node.child_by_field_name("declarator") or next(iter(reversed(node.named_children)), None)
        found.append(source.text(node) if node is not None else "")
    return tuple(found)


def export_kernel(
    kernel_path: str, target: str, name: str | None, options: Options, progress: Progress = lambda *_: None
) -> Exporting:
    """An ``Exporting``: the module's text for the file `target`, with the operator `name` (default: that file's).

    Nothing is written. Never raises for what the files hold.
    """
    progress("export", 0.0, "")
    chosen = name or stem_name(target)
    reason = _bad_name(chosen)
    planned = Planned(None, None, None, ())
    diagnostics: list[Diagnostic] = []
    if reason:
        diagnostics.append(make("CB676", None, name=chosen, reason=reason))
    else:
        planned = plan_of(kernel_path, chosen, options)
        diagnostics.extend(planned.diagnostics)
    plan = planned.plan
    return Exporting.model_validate(
        {
            "command": "export",
            "diagnostics": diagnostic_dicts(diagnostics),
            "stages": (),
            "exit_code": exit_code(diagnostics),
            "kernel": file_ref(kernel_path, planned.data),
            "kernel_name": planned.kernel_name,
            "operator": f"cubridge::{chosen}",
            "level": parse_header(planned.data.decode("utf-8", "replace")).level if planned.data else "",
            "inputs": tuple(tensors_in_order(plan)) if plan is not None else (),
            "text": module_text(plan) if plan is not None else None,
        }
    )


def _bad_name(name: str) -> str:
    if not name.isidentifier() or keyword.iskeyword(name):
        return "it is no Python name"
    if not name.isascii():
        return "only ASCII letters, digits and underscores are allowed"
    return "the module uses it itself" if name in RESERVED | defined_names() else ""
