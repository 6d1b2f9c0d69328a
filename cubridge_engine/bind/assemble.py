"""From a proposal, and what the user told, to a contract with a source for each of its facts."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from ..compile import Contract, Instance, Parameter
from ..compile.contract import LSE_UNITS
from ..diagnostics import Span
from ..source import SourceFile
from . import hints
from .model import Fact
from .names import constants
from .propose import Proposal, tile_of
from .signature import Signature
from .told import Told, parameter_told

GRID_MAX = (2147483647, 65535, 65535)
_COLUMNS = re.compile(r"(k?b_?c|k?block_?n|block_?k|kv_tile|tile_?k|bn|kv_block\w*|block_size_?[nck]|tile_?n)$", re.I)
TENSORS = ("q", "k", "v", "o")


@dataclass(frozen=True, slots=True)
class Candidate:
    """A possible call: the proposal of one way, and the instance. `source` is a key of SOURCES, `where` its words;
    `ptx` and the kernel's name in it are there where the way compiled the file itself.
    """

    source: str
    where: str
    span: Span | None
    proposal: Proposal
    instance: Instance
    ptx_name: str = ""
    ptx: str = ""


@dataclass(frozen=True, slots=True)
class Assembled:
    """A contract, or what is open: ``role NAME``, ``grid``, ``block``, ``shared``."""

    contract: Contract | None
    facts: tuple[Fact, ...]
    open: tuple[str, ...]
    candidate: Candidate


def assemble(source: SourceFile, kernel: Signature, candidate: Candidate, told: Sequence[Told]) -> Assembled:
    """Put together what is known; `told` in the order of belief (answers, then comments)."""
    facts: list[Fact] = [
        Fact("kernel", kernel.qualified, "signature", f"line {kernel.span.line + 1}", kernel.span),
        _instance_fact(candidate, told),
    ]
    open_: list[str] = [] if candidate.instance.expression else ["instance"]
    parameters = _parameters(kernel, candidate, told, facts, open_)
    grid, block, shared = _launch(candidate, told, facts, open_)
    roles = [leaf.role for p in parameters for leaf in p.leaves]
    for role in TENSORS:
        if roles.count(role) != 1 and not open_:
            open_.append(f"tensor {role}")
    if open_ or grid is None or block is None or shared is None:
        return Assembled(None, tuple(facts), tuple(dict.fromkeys(open_)), candidate)
    br = tile_of(grid) or 1
    columns = constants(source, _COLUMNS)
    bc = columns[0] if columns else max(br, 1)
    facts.append(Fact("tiles", f"Br {br}, Bc {bc}", "name" if columns else candidate.source, "grid and constants"))
    requires = _requires(candidate.proposal.requires, parameters)
    facts += [Fact("requires", text, candidate.source, candidate.where) for text in requires]
    contract = Contract(
        path=str(Path(source.path).parent / "contract.toml"),
        name=kernel.name,
        source=Path(source.path).name,
        summary="",
        parameters=tuple(parameters),
        grid=grid,
        block=block,
        dynamic_shared_bytes=shared,
        br=br,
        bc=bc,
        stages=1,
        masks=("full",),
        gqa="H == Hkv" not in requires,
        scale="",
        lse=LSE_UNITS[-1],
        empty_rows="undefined",
        archs=("sm_80", "sm_86", "sm_89", "sm_90", "sm_90a"),
        alignment_bytes=16,
        scale_positive=False,
        grid_max=GRID_MAX,
        instances=(candidate.instance,),
        adaptable=False,
        requires=requires,
    )
    return Assembled(contract, tuple(facts), (), candidate)


def _instance_fact(candidate: Candidate, told: Sequence[Told]) -> Fact:
    said = next((t for t in told if "instance" in t.launch), None)
    instance = candidate.instance
    text = f"{instance.expression} ({instance.dtype}, D = {instance.head_dim})"
    if said is not None:
        return Fact("instance", text, _source(said), said.where, said.span)
    return Fact("instance", text, candidate.source, candidate.where, candidate.span)


def _source(told: Told) -> str:
    return "answer" if told.where == "answered" else "comment"


def _parameters(
    kernel: Signature, candidate: Candidate, told: Sequence[Told], facts: list[Fact], open_: list[str]
) -> list[Parameter]:
    found: list[Parameter] = []
    proposed = candidate.proposal.parameters
    layout = next((t.launch["layout"] for t in told if "layout" in t.launch), candidate.proposal.layout)
    if not kernel.arguments:  # a macro declares it: what was recorded is all that is known
        facts += [
            _fact(p.name, p, candidate.source, candidate.where, candidate.span) for p in proposed if p is not None
        ]
        open_ += [f"role {n}" for n, p in enumerate(proposed) if p is None]
        return [p for p in proposed if p is not None]
    for position, argument in enumerate(kernel.arguments):
        said = next((t for t in told if argument.name in t.roles), None)
        parameter = parameter_told(argument, said.roles[argument.name]) if said is not None else None
        if parameter is not None and said is not None:
            parameter = replace(parameter, layout=layout) if parameter.role in TENSORS else parameter
            facts.append(_fact(argument.name, parameter, _source(said), said.where, said.span))
            found.append(parameter)
            continue
        parameter = proposed[position] if position < len(proposed) else None
        if parameter is None:
            open_.append(f"role {argument.name}")
            continue
        facts.append(_fact(argument.name, parameter, candidate.source, candidate.where, candidate.span))
        found.append(parameter)
    return found


def _fact(name: str, parameter: Parameter, source: str, where: str, span: Span | None) -> Fact:
    return Fact(f"parameter {name}", role_text(parameter), source, where, span)


def role_text(parameter: Parameter) -> str:
    """A parameter's role for a reader: ``q``, ``value 32``, ``scratch [B * H * Sq], -inf before each launch``."""
    if parameter.role == "struct":
        inner = ", ".join(f"+{f.offset} {role_text(f.parameter)}" for f in parameter.fields)
        return f"struct of {parameter.size} bytes: {inner}"
    if parameter.role == "value":
        return f"value {parameter.value}"
    if parameter.optional:
        return "null"
    text = f"{parameter.role} [{parameter.elements}]" if parameter.elements else parameter.role
    if parameter.role in TENSORS and parameter.layout != "bhsd":
        text += f" as {parameter.layout}"
    return text if parameter.fill is None else f"{text}, {parameter.fill:g} before each launch"


def _launch(
    candidate: Candidate, told: Sequence[Told], facts: list[Fact], open_: list[str]
) -> tuple[tuple[str, str, str] | None, tuple[int, int, int] | None, str | None]:
    proposal = candidate.proposal

    def choose(what: str, said: Sequence[tuple[Told, object]], own: object) -> object:
        for one, value in said:
            if value is not None:
                facts.append(Fact(what, _text(value), _source(one), one.where, one.span))
                return value
        if own is None:
            open_.append(what)
        else:
            guess = what == "shared" and candidate.source == "name" and own != "0"
            where = "nothing tells it: more than it needs" if guess else candidate.where
            facts.append(Fact(what, _text(own), candidate.source, where, candidate.span))
        return own

    grid = choose("grid", [(t, t.grid) for t in told], proposal.grid)
    block = choose("block", [(t, t.block) for t in told], proposal.block)
    shared = choose("shared", [(t, t.launch.get("shared")) for t in told], proposal.shared)
    return grid, block, shared  # type: ignore[return-value]


def _text(value: object) -> str:
    return ", ".join(map(str, value)) if isinstance(value, tuple) else str(value)


def _requires(rows: Sequence[str], parameters: Sequence[Parameter]) -> tuple[str, ...]:
    """Conditions that still hold when the user told more of the parameters than the way knew."""
    words = {w for p in parameters for leaf in p.leaves for w in re.findall(r"\w+", f"{leaf.role} {leaf.value}")}
    drop = {"Sq == Sk"} if "Sk" in words else set[str]()
    drop |= {"H == Hkv"} if words & {"Hkv", "group"} else set()
    return tuple(row for row in rows if row not in drop)


def candidates_for(name: str, kind: str) -> tuple[str, ...]:
    """Roles that a parameter of a type can have, the likeliest first."""
    if kind == "struct":
        return ()
    likely = hints.tensor_role(name) or hints.size_role(name) or hints.scale_role(name)
    pointers = ("q", "k", "v", "o", "lse", "null", "scratch:B * H * Sq")
    numbers = ("B", "H", "Hkv", "Sq", "Sk", "D", "group", "flag:causal", "0", "1")
    rows = pointers if "*" in kind else ("scale", "scale_log2", "0.0", "1.0") if "float" in kind else numbers
    return tuple(dict.fromkeys((*([likely] if likely in rows else []), *rows)))
