"""Watching a kernel: run it once with an observer, and say what it computes and what each instruction holds."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import replace

import numpy as np

from ..compile import compile_contract
from ..compile.contract import Contract, Instance
from ..diagnostics import Diagnostic, Severity, make
from ..simulate import Module, Run, load
from ..simulate.calling import Call, output, prepare_call
from .function import identify
from .items import item_walks, warp_roles
from .labels import Code, in_order, sites_of, with_spans
from .model import Array, Function, Label, Problem, Site, Watched
from .probe import Launch, confirmed, probed
from .problem import choose_instance, choose_problem, meets
from .record import Recorded, Recorder, finish
from .roles import Roles, read_roles
from .walks import grid_map, walks_of

Progress = Callable[[str, float], None]
_STORES = {("o", "store"): "O", ("lse", "store"): "LSE"}
_LOADS = {("q", "read"): "Q", ("k", "read"): "K", ("v", "read"): "V"}


class Cancelled(Exception):
    """The caller asked to stop."""


def watch(
    module: Module, kernel: str, call: Call, problem: Problem, *, path: str = "", arch: str = "", bc: int = 0,
    progress: Progress | None = None, cancel: Callable[[], bool] | None = None, again: Launch | None = None,
    persistent: int = 0,
) -> Watched:  # fmt: skip
    """Run `kernel` of `module` on `problem` and read what it did. `bc`: the KV tile, where it is known. `again` runs it
    on another problem: without it, caps, sinks, windows and biases are not looked for. `persistent`: query rows of an
    item, where a CTA goes on from item to item.

    Never raises for what a kernel does. Raises ``Cancelled`` when `cancel` returns True.
    """
    blank = Watched(kernel, path, arch, problem, False, None)
    if call.diagnostics:
        return replace(blank, diagnostics=call.diagnostics)
    recorder = Recorder(call, timeline=persistent > 0)
    started = time.perf_counter()
    run = module.launch(
        kernel, call.grid, call.block, call.args, dynamic_shared=call.dynamic_shared, checkers=(), cancel=cancel,
        progress=None if progress is None else lambda share: progress("simulate", share), observer=recorder,
    )  # fmt: skip
    if run.cancelled and cancel is not None and cancel():
        raise Cancelled
    seconds = {"simulate": time.perf_counter() - started}
    if not run.outputs:
        return replace(blank, diagnostics=run.findings, seconds=seconds)
    started = time.perf_counter()
    if progress is not None:
        progress("match", 0.0)
    found = _read(module, kernel, call, problem, run, finish(recorder), bc, again)
    if persistent:  # what such a CTA touches is no single tile and no single walk
        mask = (
            found.function.meaning.mask if found.function is not None and found.function.meaning is not None else None
        )
        walks = () if mask is None else item_walks(finish(recorder), problem, mask, persistent, bc)
        found = replace(found, grid=None, walks=walks)
    seconds["match"] = time.perf_counter() - started
    return replace(found, path=path, arch=arch, findings=run.findings, seconds=seconds)


def function_by_value(problem: Problem, o: Array, lse: Array | None, again: Launch | None) -> Function | None:
    """The function of the list, where it holds on rows that show a cap or a sink, too; else the one found by value."""
    found = identify(problem, o, lse)
    if again is None:
        return found
    sure = None if found is None else confirmed(found, problem, again)
    if found is not None and sure is not False:
        return replace(found, confirmed=sure is True)
    return probed(problem, o, lse, again)


def _read(
    module: Module, kernel: str, call: Call, problem: Problem, run: Run, recorded: Recorded, bc: int,
    again: Launch | None,
) -> Watched:  # fmt: skip
    o, lse = outputs_of(call, run)
    code = Code(module.kernel(kernel), module.collector(module.kernel(kernel)).sources)
    function = function_by_value(problem, o, lse, again)
    blank = Watched(kernel, "", "", problem, True, function)
    if function is None or function.meaning is None:
        walks = walks_of(recorded, bc)
        sites = with_spans(_accesses(recorded, code, None), code.home())
        said = make("CB130", None, error=f"{np.isnan(o).mean():.0%} of O is NaN" if np.isnan(o).any() else "none fits")
        return replace(
            blank, walks=walks, grid=grid_map(recorded, walks, bc), sites=in_order(sites), diagnostics=(said,)
        )
    roles = read_roles(recorded, code, problem, function.meaning, bc)
    sites = (*sites_of(roles.matches, recorded, code), *_accesses(recorded, code, function))
    width = _tile(roles, bc)
    walks = walks_of(recorded, width)
    return replace(
        blank,
        variant=roles.variant,
        sites=in_order(with_spans(sites, code.home())),
        grid=grid_map(recorded, walks, width),
        walks=walks,
        warps=warp_roles(recorded, [(m.role, m.places()[1]) for m in roles.matches if m.role in WARP_ROLES]),
    )


# Values that tell what a warp is for.
WARP_ROLES = frozenset({"S", "P", "O", "O unnormalised"})


def _tile(roles: Roles, bc: int) -> int:
    """Keys of a tile: as the maximum says where it runs over tiles."""
    variant = roles.variant
    known = variant is not None and variant.kind in ("online", "per tile") and variant.parts == 1 and variant.bc > 1
    return variant.bc if variant is not None and known else bc


def outputs_of(call: Call, run: Run) -> tuple[Array, Array | None]:
    """O as float64, and LSE where the kernel writes it."""
    lse = output(call, run, "lse") if "LSE" in run.outputs else None
    return output(call, run), lse


def _accesses(recorded: Recorded, code: Code, function: Function | None) -> tuple[Site, ...]:
    """Loads of Q, K and V and stores of O and LSE, known by their addresses. A store holds O where O is right."""
    found: list[Site] = []
    table = _LOADS if function is None else {**_LOADS, **_STORES}
    for key, role in table.items():
        touched = recorded.touched.get(key)
        if touched is None or (role == "LSE" and function is not None and function.lse not in ("natural", "log2")):
            continue
        by_chain: dict[tuple[object, ...], list[tuple[int, int]]] = {}
        for site, count in sorted(touched.sites.items()):
            chain = code.chain(site)
            by_chain.setdefault(tuple((s.path, s.line) for s in chain), []).append((site, count))
        for members in by_chain.values():
            chain = code.chain(members[0][0])
            labels = tuple(
                Label(s, 0, -1, code.ins(s).op, role, "", "", None, chain, n, n, n, 0.0, 1.0, "certain")
                for s, n in members
            )
            opcodes = tuple(dict.fromkeys(label.opcode for label in labels))
            found.append(Site(role, "", "", None, chain, opcodes, labels, "certain"))
    return tuple(found)


def watch_contract(
    contract: Contract, *, source: bytes | None = None, instance: Instance | None = None, arch: str | None = None,
    problem: Problem | None = None, progress: Progress | None = None, cancel: Callable[[], bool] | None = None,
) -> Watched:  # fmt: skip
    """Compile an instance of a contract's kernel (cached) and watch it on a small problem.

    `source` is the text to take in place of the contract's file. What stands in the way is in ``diagnostics``.
    """
    chosen = instance or choose_instance(contract)
    target = arch or contract.archs[0]
    path = str(contract.source_path)
    started = time.perf_counter()
    if progress is not None:
        progress("compile", 0.0)
    text = contract.source_path.read_bytes() if source is None else source
    compiled = compile_contract(
        contract, text, arch=target, instances=(chosen,), want=("ptx",), options=("-lineinfo",), path=path
    )
    spent = time.perf_counter() - started
    failed = [d for d in compiled.diagnostics if d.severity >= Severity.ERROR]
    if compiled.ptx is None or failed:
        return Watched(chosen.expression, path, target, None, False, None, diagnostics=tuple(failed))
    module = load(compiled.ptx, {path: text.decode("utf-8", "replace")})
    kernel = compiled.lowered[chosen.expression]
    unknown = _unreadable(module, kernel)
    if unknown:
        return Watched(chosen.expression, path, target, None, False, None, diagnostics=unknown)
    problem = problem or choose_problem(contract, chosen)
    if problem is None:
        refused = make("CB131", None, requires=" and ".join(contract.requires))
        return Watched(chosen.expression, path, target, None, False, None, diagnostics=(refused,))
    call = call_of(contract, chosen, problem)

    def again(other: Problem) -> Array | None:
        if not meets(contract, other.sizes):
            return None
        if progress is not None:
            progress("compare", 0.0)
        made = call_of(contract, chosen, other)
        run = module.launch(
            kernel, made.grid, made.block, made.args, dynamic_shared=made.dynamic_shared, checkers=(), cancel=cancel
        )
        if run.cancelled and cancel is not None and cancel():
            raise Cancelled
        return output(made, run) if run.outputs else None

    found = watch(
        module, kernel, call, problem, path=path, arch=target, bc=contract.bc, progress=progress, cancel=cancel,
        again=again, persistent=contract.br if contract.persistent else 0,
    )  # fmt: skip
    return replace(found, kernel=chosen.expression, seconds={"compile": spent, **found.seconds})


def call_of(contract: Contract, instance: Instance, problem: Problem) -> Call:
    """The launch of an instance on a problem; of a persistent kernel half the CTAs, so that each goes on to a next."""
    tensors = {"q": problem.q, "k": problem.k, "v": problem.v, **problem.operands}
    values = {"scale": problem.scale, "causal": int(problem.causal), **problem.values}
    call = prepare_call(contract, instance, problem.sizes, tensors, values)
    if contract.persistent and not call.diagnostics:
        x, y, z = call.grid
        call = replace(call, grid=(-(-x // 2), y, z))
    return call


def _unreadable(module: Module, kernel: str) -> tuple[Diagnostic, ...]:
    return (*module.diagnostics, *(module.kernel(kernel).unsupported if not module.diagnostics else ()))
