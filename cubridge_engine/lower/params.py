"""New parameters through the kernel's signature, the launchers', the launches and every other call in the file."""

from __future__ import annotations

import re
from dataclasses import dataclass

from ..diagnostics import Diagnostic, make
from ..ir.anchors import Anchors, CallSite, CarrierSite, SignatureSite
from ..ir.nodes import Kernel, Param
from ..source import SourceFile
from ..transfer.model import Step
from ..transfer.rules.interface import base_type, tensor_pointer
from .context import CannotLower, Job
from .hunks import Hunk


def source_name(source: SourceFile, param: Param) -> str:
    """The parameter's name in the file: CuIR may have had to rename one that it uses itself."""
    if param.origin.span is None:
        return param.name
    text = source.data[param.origin.span.start : param.origin.span.end].decode("utf-8", "replace")
    found = re.search(r"(\w+)\s*(?:\[\s*\])?\s*$", text)
    return found[1] if found else param.name


@dataclass(frozen=True, slots=True)
class Added:
    """New parameters and the step that asked for each."""

    params: tuple[tuple[Param, Step], ...]

    @property
    def names(self) -> list[str]:
        """Their names, in order."""
        return [p.name for p, _ in self.params]


def at_interface(job: Job, added: Added) -> list[Hunk]:
    """Hunks for all new parameters."""
    if not added.params:
        return []
    step = added.params[0][1]
    signature = job.anchors.signature
    if signature is None:
        raise job.missing("the parameter list", step)
    hunks = [_signature(job, signature, added, step, _pointer_style(job, signature))]
    hunks += _carried(job, added, step, _pointer_style(job, signature))
    known = {signature.function, *(s.function for s in job.anchors.launchers)}
    for launcher in job.anchors.launchers:
        hunks.append(_signature(job, launcher, added, step, _launcher_style(job, launcher)))
    templated = set(job.scopes.kernel.instantiation)
    for site in job.anchors.instantiations:
        if any(templated & set(re.findall(r"\w+", p.ctype)) for p, _ in added.params):
            raise job.missing("the type of a new parameter in the explicit instantiation", step)
        hunks.append(_signature(job, site, added, step, None))
    for call in job.anchors.calls:
        if call.enclosing is None or call.enclosing not in known - {signature.function}:
            raise CannotLower(_unpassable(call, added, signature.function))
        hunks.append(job.hunk(call.insert, call.insert, _list(job, call.insert, added.names), step))
    return hunks


def _carried(job: Job, added: Added, step: Step, pointer: str | None) -> list[Hunk]:
    """New members of the struct that brings parameters to functions and methods, and their values."""
    if job.anchors.carrier is None:
        return []
    lines: dict[CarrierSite, list[str]] = {}
    names: dict[CarrierSite, list[str]] = {}
    for param, _ in added.params:
        text = re.sub(r"\s*\b__restrict__\b\s*", " ", _parameter(job, param, pointer)).replace("* ", "*").strip()
        carrier = carrier_of(job.anchors, job.scopes.kernel, text)
        if carrier is None:
            raise job.missing(f"a struct with a member `{text}`", step)
        text = re.sub(r"\*(?=\w)", "* ", text)
        lines.setdefault(carrier, []).append(f"{job.style.newline}{carrier.indent}{text};")
        names.setdefault(carrier, []).append(param.name)
    hunks = [job.hunk(c.members, c.members, "".join(text), step) for c, text in lines.items()]
    return hunks + [job.hunk(c.values, c.values, _list(job, c.values, named), step) for c, named in names.items()]


def carrier_of(anchors: Anchors, kernel: Kernel, declaration: str) -> CarrierSite | None:
    """The struct that can have this member: one that knows the template parameters that its type names."""
    types = set(kernel.instantiation) & set(re.findall(r"\w+", declaration))
    if not types:
        return anchors.carrier
    typed = anchors.typed_carrier
    return typed if typed is not None and types <= set(typed.types) else None


def _unpassable(call: CallSite, added: Added, function: str) -> Diagnostic:
    return make("CB404", call.span, function=function, params=", ".join(added.names))


def _list(job: Job, offset: int, items: list[str], separator: str = ", ") -> str:
    """``, a, b`` broken into lines where they get too long, indented like the line they continue."""
    out = ""
    line = job.column(offset)
    nl = job.style.newline
    for item in items:
        if "\n" in separator or not job.style.fits(f"{line}, {item}) {{"):
            indent = _continued(job, offset, item)
            indent = separator[separator.rfind("\n") + 1 :] if "\n" in separator else indent
            out += f",{nl}{indent}{item}"
            line = f"{indent}{item}"
        else:
            out += f", {item}"
            line += f", {item}"
    return out


def _continued(job: Job, offset: int, item: str) -> str:
    """The indentation of a line that goes on with a list: behind its bracket where it opens on this line and there is
    room, else deeper by two steps, else that of the line.
    """
    before = job.column(offset)
    indent = job.line_indent(offset)
    if before.count("(") <= before.count(")"):
        return indent
    opened, depth = len(before), 0
    while opened and depth <= 0:
        opened -= 1
        depth += (before[opened] == "(") - (before[opened] == ")")
    behind = " " * (opened + 1)
    return behind if job.style.fits(f"{behind}{item}) {{") else indent + 2 * job.style.unit


def _signature(job: Job, site: SignatureSite, added: Added, step: Step, pointer: str | None) -> Hunk:
    items = [_parameter(job, p, pointer) for p, _ in added.params]
    separator = site.separator if "\n" in site.separator else ", "
    return job.hunk(site.insert, site.insert, _list(job, site.insert, items, separator), step)


def _parameter(job: Job, param: Param, pointer: str | None) -> str:
    """A parameter as text. `pointer` is the file's own spelling of a const pointer, with ``@`` for the type and ``$``
    for the name.
    """
    if not param.role.startswith("operand:"):
        return f"{param.ctype} {param.name}"
    element = _element(param.ctype)
    if pointer is None:
        return f"{param.ctype}{'' if param.ctype.endswith('*') else ' '}{param.name}"
    own = base_type(job.scopes.kernel)
    # The kernel's own element type may have another name in a launcher, so it keeps the one found there.
    marked = pointer if element == own else re.sub(r"@[^@]*@", element, pointer)
    return marked.replace("@", "").replace("$", param.name)


def _element(ctype: str) -> str:
    words = [w for w in re.split(r"[\s*&]+", ctype) if w and w not in ("const", "__restrict__", "restrict", "volatile")]
    return " ".join(words)


def _pointer_style(job: Job, site: SignatureSite) -> str | None:
    """How the kernel writes Q's parameter: ``const @T@* __restrict__ $``."""
    model = tensor_pointer(job.scopes.kernel)
    return None if model is None else _style_of(job, site, source_name(job.source, model))


def _launcher_style(job: Job, site: SignatureSite) -> str | None:
    """The same in a launcher, by the argument it passes for Q."""
    model = tensor_pointer(job.scopes.kernel)
    if model is None:
        return None
    position = model.position
    for launch in job.source.launches():
        inside = [c for c in job.anchors.calls if c.enclosing == site.function]
        if any(launch.node.start_byte <= c.insert <= launch.node.end_byte for c in inside) and position < len(
            launch.args
        ):
            name = job.source.text(launch.args[position])
            return _style_of(job, site, name)
    return None


def _style_of(job: Job, site: SignatureSite, name: str) -> str | None:
    text = job.text(site.span.start, site.span.end)
    found = re.search(rf"(?:^|[(,])\s*(?P<type>[^(),]*?[*&\s])(?P<name>{re.escape(name)})\s*(?=[,)]|$)", text)
    if found is None:
        return None
    declared = found["type"]
    element = _element(declared)
    if not element or "*" not in declared:
        return None
    marked = re.sub(rf"\b{re.escape(element)}\b", lambda m: f"@{m[0]}@", declared, count=1)
    marked = re.sub(r"\s+", " ", marked)
    marked = marked if "const" in marked else f"const {marked}"
    return f"{marked}$"
