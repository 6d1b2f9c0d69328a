"""Where the rules stopped on a kernel and a spec, and so what a model can be asked. Runs in the worker."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from ..compile import Contract
from ..diagnostics import Diagnostic
from ..ir.nodes import Kernel
from ..ir.text import parse_kernel
from ..lower import identifiers, lower
from ..pipeline.files import Options, contract_of, lift_at, parse_kernel_file, read_file
from ..pipeline.widths import fit_widths, widths_of_kernel
from ..source import SourceFile
from ..spec import read_spec
from ..spec.attention import Attention, widths_of
from ..transfer import TransferResult, transfer
from ..verify.targets import archs_of
from .sites import Site, edit_sites, opaque_sites


@dataclass(frozen=True, slots=True)
class State:
    """What was accepted so far: the kernel's text with proposed parts, a target program, values, the head dimension to
    read the kernel with, and the names of all parts. Travels as JSON between the two processes."""

    text: str | None = None
    target: str | None = None
    bindings: Mapping[str, float] = field(default_factory=dict[str, float])
    head_dim: int | None = None
    parts: tuple[str, ...] = ()

    @classmethod
    def of(cls, value: Mapping[str, Any] | None) -> State:
        """Read the JSON form."""
        given: dict[str, Any] = {**value, "parts": tuple(value["parts"])} if value else {}
        return cls(**given)

    def json(self) -> dict[str, Any]:
        """The JSON form."""
        return {
            "text": self.text,
            "target": self.target,
            "bindings": dict(self.bindings),
            "head_dim": self.head_dim,
            "parts": list(self.parts),
        }


@dataclass(slots=True)
class Situation:
    """`role` names what to ask for; None, and `why`, where no model is of use. `original` is the user's file, `source`
    that with the parts accepted so far."""

    role: str | None
    why: str = ""
    original: SourceFile | None = None
    source: SourceFile | None = None
    lifted: Any = None
    contract: Contract | None = None
    attention: Attention | None = None
    program: Any = None
    transferred: TransferResult | None = None
    target: Kernel | None = None
    sites: dict[str, Site] = field(default_factory=dict[str, Site])
    refusals: tuple[Diagnostic, ...] = ()


def look(kernel_path: str, spec_path: str, options: Options, archs: tuple[str, ...], state: State) -> Situation:
    """Find where the rules stop. Never raises for what the files hold."""
    data, problems = read_file(kernel_path)
    if data is None:
        return Situation(None, "the kernel cannot be read", refusals=problems)
    try:
        data.decode("utf-8")
    except UnicodeDecodeError:
        return Situation(None, "the kernel's file is not UTF-8")
    found = Situation(None, original=parse_kernel_file(kernel_path, data))
    text = data if state.text is None else state.text.encode("utf-8", "surrogatepass")
    found.source = found.original if state.text is None else parse_kernel_file(kernel_path, text)
    spec = read_spec(spec_path, **options.reading(), head_dim=options.head_dim)
    if spec.attention is None:
        found.why = "the spec was refused, so that nothing says what is right"
        found.refusals = spec.diagnostics
        return found
    found.attention, found.program = spec.attention, spec.program
    want = options.head_dim or state.head_dim or spec.attention.specialised.get("D")
    assert found.source is not None
    found.lifted = lift_at(found.source, options.kernel_name, want)
    if found.lifted.kernel is None or not found.lifted.coverage.complete:
        return _to_lift(found)
    found.contract, problems = contract_of(kernel_path, found.lifted.kernel)
    arch = archs_of(archs, found.contract, text)[0]
    widths = widths_of(spec.attention, widths_of_kernel(found.lifted.kernel))
    found.lifted, misfits = fit_widths(found.source, found.lifted, found.contract, widths, arch, options.kernel_name)
    problems = (*problems, *misfits)
    if problems:
        found.why, found.refusals = "the kernel has no form for the spec's sizes", problems
        return found
    return _to_change(found, spec.core is not None, options, state)


def _to_lift(found: Situation) -> Situation:
    assert found.source is not None
    found.sites = {site.name: site for site in opaque_sites(found.source, found.lifted)}
    found.refusals = found.lifted.diagnostics
    if found.sites:
        found.role = "lift"
    else:
        found.why = "no statement stands out as the one that was not understood"
    return found


def _to_change(found: Situation, has_core: bool, options: Options, state: State) -> Situation:
    assert found.source is not None
    assert found.attention is not None
    lifted = found.lifted
    if has_core:
        found.why = "the spec does more than the attention, and what surrounds it is the work of rules"
        return found
    found.transferred = transfer(
        lifted.kernel,
        found.attention,
        empty_rows=options.empty_rows,
        reserved=identifiers(found.source),
        # A proposal changes the text of sites; making lists of tiles for the caller is the work of rules.
        tile_lists=False,
    )
    found.target = found.transferred.target or (parse_kernel(state.target) if state.target else None)
    if found.target is None:
        found.role, found.refusals = "transfer", found.transferred.diagnostics
        return found
    found.role = "lower"
    found.sites = {site.name: site for site in edit_sites(found.source, lifted.kernel, lifted.anchors)}
    if found.transferred.target is not None:
        found.refusals = lower(lifted, found.transferred, found.source, spec="").diagnostics
    return found
