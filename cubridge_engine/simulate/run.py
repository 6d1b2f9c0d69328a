"""Loading PTX and launching its kernels: the room's public face."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ..diagnostics import Diagnostic, Severity, make
from .buffers import Buffer, Heap
from .counts import BankSite, Counts, LineCost, line_costs
from .emit import PARAM_BASE
from .findings import Findings, Sources
from .global_races import GlobalRaces
from .kernel import Kernel
from .machine import Launch, Machine, Schedule, lanes_together
from .model import Param, Program
from .observe import Observer
from .ptx import parse
from .tensormap import TensorMap

Array = NDArray[Any]
Triple = tuple[int, int, int]

CHECKERS = frozenset({"races", "banks"})  # bounds, alignment, roles and barriers are always checked
MAX_LANES = 8192  # lanes that execute a block together: the registers it uses stay in the cache
MAX_BATCH = 16384  # lanes of a batch
SHADOW_BYTES = 1 << 28  # of a batch, at most
MAX_THREADS = 1024
CLUSTER_WARPS = 240  # that the checker of races tells apart, beside the copy engine
MAP_BYTES = 128


@dataclass(frozen=True, slots=True)
class Run:
    """The result of a launch. `outputs` maps the names of the out and inout buffers to their contents afterwards."""

    outputs: dict[str, Array]
    findings: tuple[Diagnostic, ...]
    counts: Counts
    seconds: float
    cpu_seconds: float = 0.0
    cancelled: bool = False
    bank_lines: dict[int, BankSite] = field(default_factory=dict[int, BankSite])  # by line of the kernel's file
    ctas: int = 0
    warps: int = 0  # of all CTAs together

    @property
    def ok(self) -> bool:
        """True when it ran to the end and no finding is an error."""
        return not self.cancelled and all(f.severity < Severity.ERROR for f in self.findings)


@dataclass(frozen=True, slots=True)
class Struct:
    """A parameter passed by value: its parts by byte offset (NumPy scalars, bytes, buffers, tensor maps)."""

    parts: Mapping[int, object]


def _pack(param: Param, value: object) -> bytes:
    """The bytes of a scalar argument. Raises ValueError when it does not fit."""
    if isinstance(value, bytes | bytearray):
        if len(value) != param.size:
            raise ValueError(f"{param.name} has {param.size} bytes, not {len(value)}")
        return bytes(value)
    if isinstance(value, np.generic):
        raw = value.tobytes()
        if len(raw) == param.size:
            return raw
        value = value.item()
    if param.type[0] == "f" or isinstance(value, float):
        if param.size not in (4, 8) or param.type[0] not in "fb":
            raise ValueError(f"{param.name} is no float")
        return np.array([value], f"f{param.size}").tobytes()
    if isinstance(value, bool | int):
        if param.size > 8:
            raise ValueError(f"{param.name} is a struct of {param.size} bytes: pass bytes")
        return (int(value) & ((1 << 8 * param.size) - 1)).to_bytes(param.size, "little")
    raise ValueError(f"{param.name} cannot be {type(value).__name__}")


class Module:
    """A PTX module. `diagnostics` say what could not be read; `kernels` are the names of its entries."""

    def __init__(self, program: Program, diagnostics: tuple[Diagnostic, ...], sources: Sources) -> None:
        self.program = program
        self.diagnostics = diagnostics
        self._sources = sources
        self._ready: dict[str, Kernel] = {}

    @property
    def kernels(self) -> tuple[str, ...]:
        """Names of the entries."""
        return self.program.kernels

    def kernel(self, name: str) -> Kernel:
        """The entry made ready to run. Raises KeyError for an unknown name."""
        if name not in self._ready:
            self._ready[name] = Kernel(self.program, self.program.functions[name], self._sources)
        return self._ready[name]

    def collector(self, kernel: Kernel) -> Findings:
        """An empty list of findings that knows the kernel's instructions and source lines."""
        return Findings(kernel.flow.code, self._sources, kernel.home)

    def launch(
        self,
        kernel: str,
        grid: Sequence[int],
        block: Sequence[int],
        args: Sequence[object],
        *,
        dynamic_shared: int = 0,
        schedule: Schedule | None = None,
        checkers: Iterable[str] = CHECKERS,
        progress: Callable[[float], None] | None = None,
        cancel: Callable[[], bool] | None = None,
        cluster: Sequence[int] | None = None,
        max_steps: int = 200_000,
        observer: Observer | None = None,
    ) -> Run:
        """Execute a kernel. Never raises for what a kernel does: see ``Run.findings``.

        `grid` and `block` have up to three extents. `args` by position: ``Buffer`` for a pointer, ``TensorMap`` for a
        tensor map, numbers, NumPy scalars, bytes or ``Struct`` for structs. `dynamic_shared` in bytes. `cluster` where
        the kernel does not say it itself. `checkers` is a subset of
        ``CHECKERS``. `progress` gets the share done; when `cancel` returns True the run ends with ``cancelled``.
        `observer` is told every result that may be a float, and every access to global memory.
        """
        started, cpu = time.perf_counter(), time.process_time()
        ready = self.kernel(kernel)
        counts = Counts()
        if ready.unsupported or self.diagnostics:
            return Run({}, (*self.diagnostics, *ready.unsupported), counts, 0.0)
        g, b = _triple(grid), _triple(block)
        team = ready.function_data.cluster if cluster is None else _triple(cluster)
        wrong = self._check(ready, g, b, team, args)
        if wrong is not None:
            return Run({}, (wrong,), counts, 0.0)
        findings = self.collector(ready)
        for site, problem in ready.lint.items():
            findings.add("CB529", site, 1, problem=problem)
        launcher = _Launcher(ready, g, b, team, args, findings, counts)
        try:
            params = launcher.params()
        except ValueError as error:
            return Run({}, (make("CB512", None, reason=str(error), hint="the arguments"),), counts, 0.0)
        stop = launcher.run(
            params, dynamic_shared, schedule or Schedule(), frozenset(checkers), progress, cancel, max_steps, observer
        )
        if not stop:
            launcher.check_outputs()
        lines = _bank_lines(counts, findings)
        seconds = time.perf_counter() - started
        cancelled = stop and not any(map(findings.has, ("CB520", "CB528", "CB532", "CB542")))
        cpu = time.process_time() - cpu
        ctas = int(np.prod(g))
        warps = ctas * -(-int(np.prod(b)) // 32)
        return Run(launcher.outputs(), findings.diagnostics(), counts, seconds, cpu, cancelled, lines, ctas, warps)

    def line_costs(self, kernel: str, run: Run, *, calls: bool = False) -> dict[int, LineCost]:
        """What each 1-based line of the kernel's own file did in a run of `kernel`; line 0 is all that has no place.

        With `calls`, a line that calls a function has what was inlined there too.
        """
        ready = self.kernel(kernel)
        return line_costs(run.counts, ready.flow, run.warps, ready.home, calls)

    @staticmethod
    def _check(
        ready: Kernel, grid: Triple, block: Triple, cluster: Triple, args: Sequence[object]
    ) -> Diagnostic | None:
        function = ready.function_data
        threads = int(np.prod(block))
        reason = hint = ""
        if min(*grid, *block) < 1:
            reason, hint = f"grid {grid} and block {block} have an empty extent", "at least 1 in every direction"
        elif threads > min(MAX_THREADS, function.max_threads or MAX_THREADS):
            reason, hint = f"{threads} threads per CTA", f"at most {function.max_threads or MAX_THREADS}"
        elif function.block and function.block != block:
            reason, hint = f"the block is {block}", f"the kernel requires {function.block}"
        elif len(args) != len(function.params):
            reason, hint = f"{len(args)} arguments", f"the kernel takes {len(function.params)}"
        elif any(g % c for g, c in zip(grid, cluster, strict=True)):
            reason, hint = f"the grid {grid} is no multiple of the cluster", f"{cluster}"
        elif int(np.prod(cluster)) * -(-threads // 32) > CLUSTER_WARPS:
            reason, hint = f"a cluster of {int(np.prod(cluster)) * -(-threads // 32)} warps", f"at most {CLUSTER_WARPS}"
        return make("CB512", None, reason=reason, hint=hint) if reason else None


def _triple(extents: Sequence[int]) -> Triple:
    x, y, z = (*map(int, extents), 1, 1, 1)[:3]
    return x, y, z


def _bank_lines(counts: Counts, findings: Findings) -> dict[int, BankSite]:
    lines: dict[int, BankSite] = {}
    counts.settle()
    for site, entry in counts.banks.items():
        span, _ = findings.place(site)
        if span is not None:
            total = lines.setdefault(span.line + 1, BankSite())
            total.ideal += entry.ideal
            total.actual += entry.actual
    return lines


def _run_together(machines: list[Machine], waiting: list[Machine]) -> bool:
    """Run batches until each has ended or waits for memory that the others do not write: those are left in `waiting`.

    Returns True when one was stopped.
    """
    moved = True
    while moved:
        moved = False
        for machine in machines:
            before = machine.steps
            machine.run(last=False)
            if machine.stopped:
                return True
            moved |= machine.waiting and machine.steps > before
        machines = [m for m in machines if m.waiting]
        moved &= len(machines) > 1
    waiting[:] = machines
    return False


class _Launcher:
    """One launch: memory, parameters, batches."""

    def __init__(
        self, kernel: Kernel, grid: Triple, block: Triple, cluster: Triple, args: Sequence[object], findings: Findings,
        counts: Counts,
    ) -> None:  # fmt: skip
        self.kernel, self.grid, self.block, self.cluster, self.args = kernel, grid, block, cluster, args
        self.findings, self.counts = findings, counts
        self.buffers: list[Buffer] = []
        parts = [x for a in args for x in (a.parts.values() if isinstance(a, Struct) else (a,))]
        for position, arg in enumerate(parts):
            buffer = arg.buffer if isinstance(arg, TensorMap) else arg
            if isinstance(buffer, Buffer) and not any(buffer is b for b in self.buffers):
                buffer.name = buffer.name or f"argument {position}"
                self.buffers.append(buffer)
        self.given = len(self.buffers)
        self.symbols: dict[str, int] = {}
        for variable in kernel.module_variables:
            data = np.frombuffer((variable.init or b"").ljust(max(variable.size, 1), b"\0"), np.uint8)
            self.symbols[variable.name] = len(self.buffers)
            self.buffers.append(Buffer(data, "in" if variable.space == "const" else "inout", variable.name))
        self.handles: dict[int, TensorMap] = {}  # buffer that stands for a map in global memory -> the map
        for arg, param in zip(args, kernel.function_data.params, strict=True):
            if isinstance(arg, TensorMap) and param.size == 8:
                self.handles[len(self.buffers)] = arg
                self.buffers.append(Buffer(np.zeros(128, np.uint8), "in", "tensor map"))
        self.heap = Heap(self.buffers)
        self.tensor_maps: dict[int, TensorMap] = {}

    def params(self) -> Array:
        """The parameter block. Raises ValueError for an argument that does not fit."""
        declared = self.kernel.function_data.params
        size = max((p.offset + p.size for p in declared), default=0)
        block = np.zeros(-(-max(size, 1) // 16) * 16, np.uint8)
        for param, arg in zip(declared, self.args, strict=True):
            pieces = arg.parts if isinstance(arg, Struct) else {0: arg}
            for offset, piece in pieces.items():
                raw = self._bytes_of(param, offset, piece, whole=not isinstance(arg, Struct))
                if offset + len(raw) > param.size:
                    raise ValueError(f"{param.name} has {param.size} bytes, less than {offset + len(raw)}")
                start = param.offset + offset
                block[start : start + len(raw)] = np.frombuffer(raw, np.uint8)
        return block

    def _bytes_of(self, param: Param, offset: int, arg: object, whole: bool) -> bytes:
        if isinstance(arg, Buffer):
            position = next(i for i, b in enumerate(self.buffers) if b is arg)
            if whole and param.size != 8:
                raise ValueError(f"{param.name} is no pointer")
            return self.heap.address(position).to_bytes(8, "little")
        if isinstance(arg, TensorMap):
            return self._map_argument(param, offset, arg)
        if whole:
            return _pack(param, arg)
        if isinstance(arg, np.generic):
            return arg.tobytes()
        if isinstance(arg, bytes):
            return arg
        raise ValueError(f"a part of {param.name} cannot be {type(arg).__name__}: give a NumPy scalar or bytes")

    def _map_argument(self, param: Param, offset: int, arg: TensorMap) -> bytes:
        """A map is passed in the parameter block (128 bytes), or as a pointer to global memory."""
        if param.size >= MAP_BYTES:
            self.tensor_maps[PARAM_BASE + param.offset + offset] = arg
            return bytes(MAP_BYTES)
        if param.size != 8:
            raise ValueError(f"{param.name} is no tensor map")
        index = next(i for i, held in self.handles.items() if held is arg)
        self.tensor_maps[self.heap.address(index)] = arg
        return self.heap.address(index).to_bytes(8, "little")

    def run(
        self, params: Array, dynamic_shared: int, schedule: Schedule, checkers: frozenset[str],
        progress: Callable[[float], None] | None, cancel: Callable[[], bool] | None, max_steps: int,
        observer: Observer | None = None,
    ) -> bool:  # fmt: skip
        """Run all batches; True when a launch was stopped before its end."""
        batches = list(self._batches(dynamic_shared, schedule))
        done = 0

        def tick(share: float) -> bool:
            if progress is not None:
                progress((done + share) / len(batches))
            return cancel is not None and cancel()

        addresses = {name: self.heap.address(i) for name, i in self.symbols.items()}
        places = {id(b): i for i, b in enumerate(self.buffers)}
        launch = Launch(
            self.kernel, self.heap, params, addresses, self.tensor_maps, places, self.grid, self.block,
            self.cluster, dynamic_shared, schedule, checkers, self.findings, self.counts,
            max_steps, tick, self._global_races() if "races" in checkers else None, observer,
        )  # fmt: skip
        waiting: list[Machine] = []
        for number, index in enumerate(batches):
            stopped = _run_together([*waiting, Machine(launch, index, number == 0)], waiting)
            done = number + 1
            if stopped or tick(0.0):
                return stopped or done < len(batches)
        for machine in waiting:  # no other batch is left that could write what they wait for
            machine.run()
        return any(machine.stopped for machine in waiting)

    def _global_races(self) -> GlobalRaces | None:
        """The checker of global memory; None where there is nothing that the kernel may write."""
        if not any(b.role != "in" and b.nbytes for b in self.buffers):
            return None
        place = np.indices(self.grid[::-1]).reshape(3, -1)[::-1]  # x, y, z of every CTA, x fastest
        extents = np.array(self.cluster)[:, None]
        corner = place // extents * extents
        cluster_of = corner[0] + self.grid[0] * (corner[1] + self.grid[1] * corner[2])
        return GlobalRaces(self.heap, self.kernel.order, cluster_of, self.findings)

    def _batches(self, dynamic_shared: int, schedule: Schedule) -> Iterable[Array]:
        """CTA indices (n, 3). CTAs of equal blockIdx.x come together: they tend to take equally long."""
        x, y, z = self.grid
        index = np.stack(np.meshgrid(np.arange(x), np.arange(y), np.arange(z), indexing="ij"), -1).reshape(-1, 3)
        threads = -(-int(np.prod(self.block)) // 32) * 32
        cluster = int(np.prod(self.cluster))
        if cluster > 1:
            extents = np.array(self.cluster)
            index = index[np.lexsort((*(index % extents).T, *(index // extents).T))]
        # The shadow holds a write entry and one read entry per warp of the cluster for every granule.
        shadow = (self.kernel.shared_bytes + dynamic_shared) // self.kernel.granule * 8 * (1 + threads // 32 * cluster)
        lanes = min(MAX_BATCH // threads, MAX_LANES // lanes_together(self.kernel, threads, schedule.order))
        size = max(min(lanes, SHADOW_BYTES // max(shadow, 1)) // cluster, 1)
        teams = len(index) // cluster
        size = -(-teams // -(-teams // size)) * cluster  # batches of equal size
        for start in range(0, len(index), size):
            yield index[start : start + size]

    def check_outputs(self) -> None:
        """Unwritten elements of outputs."""
        for index, buffer in enumerate(self.buffers[: self.given]):
            if buffer.role == "out":
                missing, first = self.heap.unwritten(index)
                if missing:
                    text = f"{buffer.name}[{', '.join(map(str, first))}]"
                    self.findings.add(
                        "CB523", -1 - index, 1, missing=missing, total=buffer.array.size, buffer=buffer.name, first=text
                    )

    def outputs(self) -> dict[str, Array]:
        """Contents of the out and inout buffers."""
        return {
            b.name: np.array(self.heap.region(i)) for i, b in enumerate(self.buffers[: self.given]) if b.role != "in"
        }


def load(ptx: str, sources: Mapping[str, str] | None = None) -> Module:
    """Read a PTX module. `sources` are the texts of its files by path, for spans.

    Files on disk are found by themselves.
    """
    program, diagnostics = parse(ptx)
    return Module(program, diagnostics, Sources(sources))
