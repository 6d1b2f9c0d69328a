"""The ways of finding out how to call a kernel, each as a series of candidates."""

from __future__ import annotations

import itertools
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass

from ..compile import Instance
from ..compile.alone import Alone, AloneOptions
from ..compile.parameters import POINTER_DTYPES
from ..diagnostics import Diagnostic, make
from ..source import Launch, SourceFile
from .assemble import Candidate
from .instances import demangled, dtype_of, expression_of, guessed_arguments, head_dims, instance_for
from .launch import evaluate_launch, launches_of
from .names import ORDERS, blocks_to_try, parameters_named
from .propose import Proposal, propose
from .recorded import DTYPES, Recorded, record_samples
from .recorder import CannotRecord, files_of, has_registry, host_functions, parameter_bytes, recorder
from .signature import Argument, Signature
from .told import Told
from .trial import PROBE_ROWS

_BOUNDS = re.compile(r"\.maxntid\s+(\d+)")
_DYNAMIC = re.compile(r"\.extern\s+\.shared")
GENEROUS_SHARED = 98_304  # bytes for a kernel whose dynamic shared memory nobody knows: a trial alone


@dataclass(frozen=True, slots=True)
class Way:
    """What all ways share: the file, the one that the kernel is in (it, or a header), the kernel, the instance and the
    head dimension where the user named them.
    """

    source: SourceFile
    home: SourceFile
    kernel: Signature
    expression: str
    dim: int

    def first_expression(self) -> str:
        """The instance to compile where nothing is known of another; '' where names do not suggest one."""
        if self.expression or not self.kernel.templates:
            return self.expression or self.kernel.qualified
        dim = self.dims()[0]
        for file, launch in self.launches():
            found = evaluate_launch(file, self.kernel, launch, "float16", dim, "bhsd").template_args
            if found and len(found) <= len(self.kernel.templates):
                return expression_of(self.kernel, found)
        guessed, unknown = guessed_arguments(self.kernel, dim, {})
        return "" if unknown else expression_of(self.kernel, guessed)

    def launches(self) -> list[tuple[SourceFile, Launch]]:
        """The launches of the kernel in the file and its headers."""
        return [(file, launch) for file in files_of(self.source) for launch in launches_of(file, self.kernel.name)]

    def dims(self) -> list[int]:
        """Head dimensions to try."""
        return [self.dim] if self.dim else head_dims(self.home, self.kernel)

    def instance(self, expression: str, dim: int, dtype: str = "") -> Instance:
        """The instance of an expression, unless the user named another."""
        return instance_for(self.kernel, self.expression or expression, dim, dtype)


def by_launch(way: Way) -> Iterator[Candidate]:
    """The launches in the file, evaluated; the layouts in which a tensor can lie, where the kernel is not told."""
    for file, launch in way.launches():
        for dim in way.dims()[:2]:
            for layout in ("bhsd", "bshd", "sd"):
                dtype = dtype_of(way.kernel, way.first_expression())
                found = evaluate_launch(file, way.kernel, launch, dtype, dim, layout)
                proposal = propose(found.samples, way.kernel.arguments, layout, found.unknown, True)
                named = parameters_named(way.kernel)
                # What the file does not tell may have a name that does.
                for position, parameter in enumerate(proposal.parameters):
                    if parameter is None and position < len(named):
                        proposal.parameters[position] = named[position]
                expression = expression_of(way.kernel, found.template_args)
                where = f"launch at line {found.line}"
                span = file.span(launch.node)
                yield Candidate("launch", where, span, proposal, way.instance(expression, dim))


def by_recording(
    way: Way, alone: AloneOptions, answers: Mapping[str, str], notes: list[Diagnostic], seconds: float
) -> Iterator[Candidate]:
    """The host launcher, called on our shapes; why it could not be is noted (CB627)."""
    kernel = way.kernel
    concrete = dtype_of(kernel, way.expression or "")
    dtypes = tuple(dict.fromkeys((concrete, *DTYPES)))
    if not host_functions(way.source, kernel.name) and not has_registry(way.source):
        notes.append(make("CB627", kernel.span, reason="no host function of the file leads to a launch of it"))
        return
    try:
        with recorder(way.source, kernel.name, alone, seconds=seconds) as program:
            found, reasons = record_samples(program, kernel.name, dtypes, answers)
            ptx = program.ptx
    except CannotRecord as problem:
        missing = f" (headers not found: {', '.join(problem.missing)})" if problem.missing else ""
        notes.append(make("CB627", kernel.span, reason=f"{problem}{missing}"))
        return
    if not found:
        notes.append(make("CB627", kernel.span, reason="; ".join(reasons)[:400]))
    elif found[0].launcher.name == "main":
        # Its sizes are its own, and one launch does not tell what follows from what.
        notes.append(make("CB627", kernel.span, reason="main() launches it with sizes of its own alone"))
    else:
        yield from (_recorded(way, one, ptx) for one in found)


def _recorded(way: Way, found: Recorded, ptx: str) -> Candidate:
    kernel, first = way.kernel, found.samples[0]
    arguments = kernel.arguments or _arguments_of(parameter_bytes(ptx).get(first.kernel, ()))
    proposal = propose(found.samples, arguments, found.way.layout, {}, found.ragged)
    where = f"{found.launcher.name}() recorded"
    instance = way.instance(demangled(first.kernel), found.way.head_dim, _dtype_recorded(found.way.dtype, way))
    return Candidate("recorded", where, kernel.span, proposal, instance, first.kernel, ptx)


def _dtype_recorded(dtype: str, way: Way) -> str:
    """The dtype of Q as it was passed, unless the kernel's own pointer type says it."""
    q = next((a for a in way.kernel.arguments if POINTER_DTYPES.get(a.kind)), None)
    return dtype if q is None else dtype_of(way.kernel, "")


def _arguments_of(sizes: Sequence[int]) -> tuple[Argument, ...]:
    """Arguments without a signature (a kernel that a macro declares): only their sizes are known."""
    from ..diagnostics import Span

    nowhere = Span("", 0, 0, 0, 0, 0, 0)
    return tuple(Argument(f"p{n}", "", "int64" if s == 8 else "struct", nowhere) for n, s in enumerate(sizes))


def by_names(
    way: Way, compiled: Alone | None, told: Sequence[Told], probe: Callable[[Candidate], int]
) -> Iterator[Candidate]:
    """Roles by name; grid and block by probing: with one CTA on an axis, how many rows of every head are written?
    `probe` answers that. Without `compiled` there is nothing to run.
    """
    parameters = parameters_named(way.kernel)
    dim = way.dims()[0]
    if compiled is None or not compiled.ok:
        yield Candidate("name", "names", way.kernel.span, Proposal(list(parameters)), way.instance("", dim))
        return
    if any(p is None for p in parameters):
        # Whole only with what the user told; else it says what is open.
        named = way.instance(way.first_expression(), dim)
        yield Candidate("name", "names", way.kernel.span, Proposal(list(parameters)), named)
    function = next(iter(way.home.functions().get(way.kernel.name, ())), None)
    bounds = function.attributes.get("__launch_bounds__", "").partition(",")[0].strip() if function else ""
    threads = _BOUNDS.search(compiled.ptx or "")
    limit = int(bounds) if bounds.isdigit() else int(threads[1]) if threads else None
    shared = str(GENEROUS_SHARED) if _DYNAMIC.search(compiled.ptx or "") else "0"
    instance = way.instance(way.first_expression(), dim)
    said_grid = next((t.grid for t in told if t.grid is not None), None)
    said_block = next((t.block for t in told if t.block is not None), None)
    blocks = [said_block] if said_block is not None else blocks_to_try(way.home, limit)

    def candidate(grid: tuple[str, str, str], block: tuple[int, int, int], layout: str) -> Candidate:
        return Candidate(
            "name", "names, by trial", way.kernel.span, _named(parameters, grid, block, shared, layout), instance
        )

    for layout, block in itertools.product(("bhsd", "bshd"), blocks):
        if said_grid is not None:
            yield candidate(said_grid, block, layout)
            continue
        for order in ORDERS:
            rows = probe(candidate(_axes(order, "1"), block, layout))
            if rows:
                tiles = "1" if rows >= PROBE_ROWS else "Sq" if rows == 1 else f"cdiv(Sq, {rows})"
                yield candidate(_axes(order, tiles), block, layout)


def _axes(order: tuple[str, str, str], tiles: str) -> tuple[str, str, str]:
    x, y, z = (tiles if axis == "T" else axis for axis in order)
    return x, y, z


def _named(
    parameters: Sequence[object], grid: tuple[str, str, str], block: tuple[int, int, int], shared: str, layout: str
) -> Proposal:
    from ..compile import Parameter
    from .propose import laid_out, requires_of

    found = [p if isinstance(p, Parameter) else None for p in parameters]
    proposal = Proposal(laid_out(found, layout), grid, block, shared, (), layout)
    proposal.requires = requires_of(proposal, layout, True, 2)
    return proposal
