"""A batch of CTAs: their memories, the state of their barriers, and the scheduler that runs their warps."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from .buffers import Heap
from .bulk import BulkLoad, BulkStore, finish_load
from .counts import Counts
from .emit import SHARED_START, UNSIGNED
from .engine import NOWHERE, Engine, LaneOps
from .findings import Findings
from .global_races import GlobalRaces
from .kernel import Kernel
from .mbarrier import MBarriers
from .observe import Observer
from .shadow import LOW, Shadow
from .spins import Spins
from .sync import PendingCopy
from .tensormap import TensorMap
from .wgmma import OperandRead

Array = NDArray[Any]
Triple = tuple[int, int, int]
BARRIERS = 16
LOOK_S = 0.05  # how often progress is reported and a cancel looked at
HALF_WAY = 400  # blocks after which half of a batch is taken to be done, as long as no lane has ended


@dataclass(frozen=True, slots=True)
class Schedule:
    """How a launch is scheduled where PTX leaves it open.

    `async_`: asynchronous copies land at once (``early``) or when someone waits for them (``late``). `order`:
    ``forward`` runs the warps of a CTA together, block by block, lower warps first; ``reverse`` runs one warp after
    the other, the last first, each until it must wait.
    """

    async_: str = "late"
    order: str = "forward"

    def __post_init__(self) -> None:
        if self.async_ not in ("early", "late") or self.order not in ("forward", "reverse"):
            raise ValueError(f"a schedule is early or late, forward or reverse, not {self.async_!r}, {self.order!r}")


SCHEDULES = tuple(Schedule(a, o) for o in ("forward", "reverse") for a in ("late", "early"))


@dataclass(frozen=True, slots=True)
class Launch:
    """What all batches of a launch share."""

    kernel: Kernel
    heap: Heap
    params: Array
    symbol_address: dict[str, int]
    tensor_maps: dict[int, TensorMap]  # by the generic address the kernel sees
    buffer_index: dict[int, int]  # id of a buffer -> its place in the heap
    grid: Triple
    block: Triple
    cluster: Triple
    dynamic_shared: int
    schedule: Schedule
    checkers: frozenset[str]
    findings: Findings
    counts: Counts
    max_steps: int
    tick: Callable[[float], bool]  # progress of the batch in [0, 1]; True means stop
    global_races: GlobalRaces | None = None  # one for all batches: CTAs of any two may clash
    observer: Observer | None = None


def lanes_together(kernel: Kernel, threads: int, order: str) -> int:
    """Lanes of a CTA that an engine runs: a warpgroup where there is wgmma, else all, or a warp in reverse order.

    Warpgroups tend to have roles of their own: together, most lanes of a block would be idle.
    """
    if kernel.has_wgmma:
        return 128
    return threads if order == "forward" else 32


class Machine:
    """One batch. `cta_index` (CTAs, 3) are their places in the grid."""

    def __init__(self, launch: Launch, cta_index: Array, first: bool) -> None:
        self.launch = launch
        kernel = launch.kernel
        self.code = kernel.flow.code
        self.heap, self.params, self.symbol_address = launch.heap, launch.params, launch.symbol_address
        self.grid, self.block_size, self.block, self.cluster = launch.grid, launch.block, launch.block, launch.cluster
        self.findings, self.counts = launch.findings, launch.counts
        self.late = launch.schedule.async_ == "late"
        self.cta_index = cta_index
        self.cta_linear = (
            cta_index[:, 0] + launch.grid[0] * (cta_index[:, 1] + launch.grid[1] * cta_index[:, 2])
        ).astype(np.int32)
        self.ctas = len(cta_index)
        self.team = int(np.prod(launch.cluster))  # CTAs per cluster; those of one cluster follow each other
        self.threads = int(np.prod(launch.block))
        self.warps = -(-self.threads // 32)
        self.warp_threads = np.minimum(self.threads - 32 * np.arange(self.warps), 32)
        self.lanes = self.ctas * self.warps * 32
        self.sample = first and "banks" in launch.checkers
        self.dynamic_shared = launch.dynamic_shared
        self.shared_limit = kernel.shared_bytes + launch.dynamic_shared
        self.shared_size = max(-(-self.shared_limit // 128) * 128, 128)
        # What nobody wrote is NaN, so that numbers show whether it matters.
        self._shared = np.full(self.ctas * self.shared_size, 0xFF, np.uint8)
        self._shared_views = {size: self._shared.view(UNSIGNED[8 * size]) for size in (1, 2, 4, 8)}
        self.local_size = kernel.local_bytes
        self._local = np.zeros(self.lanes * self.local_size, np.uint8)
        self.shadow = self._make_shadow() if "races" in launch.checkers else None
        self.global_races = launch.global_races
        self.observer = launch.observer
        self.tell_product = getattr(launch.observer, "product", None)
        self.group = np.zeros(self.lanes, np.int64)  # cp.async groups closed by each lane
        self.pending: list[PendingCopy] = []
        self.blocked = np.zeros(self.lanes, bool)
        self.any_blocked = False
        self.block_site = np.full(self.lanes, -1, np.int64)
        self.barrier_of = np.full(self.lanes, -1, np.int16)
        self.barrier_count = np.zeros((self.ctas, BARRIERS), np.int64)
        self.barrier_votes = np.zeros((self.ctas, BARRIERS), np.int64)
        self.barrier_result = np.zeros((self.ctas, BARRIERS, 2), np.int64)  # votes and threads of the last completion
        self.barrier_need = np.zeros((self.ctas, BARRIERS), np.int64)
        self.barrier_known = np.full((self.ctas, BARRIERS, self.shadow.width if self.shadow else 1), LOW, np.int64)
        self.bulk_group = np.zeros(self.lanes, np.int64)
        self.wgmma_group = np.zeros(self.lanes, np.int64)
        self.loads: list[BulkLoad] = []
        self.stores: list[BulkStore] = []
        self.operands: list[OperandRead] = []
        self.mbarriers = MBarriers(self)
        self.spins = Spins(self, kernel.spins)
        self.waiting = False  # for what another batch may write
        clusters = self.ctas // self.team
        self.cluster_arrived = np.zeros(clusters, np.int64)
        self.cluster_phase = np.zeros(clusters, np.int64)
        self.cluster_known = np.full((clusters, self.shadow.width if self.shadow else 1), LOW, np.int64)
        self.cluster_done = self.cluster_known.copy()
        rows = self.ctas * self.warps if self.team > 1 else 0
        self.cluster_fenced = np.full((rows, self.cluster_known.shape[1]), LOW, np.int64)
        self.cluster_phase_of = np.zeros(self.lanes, np.int64)
        self.cluster_waits = np.zeros(self.lanes, bool)
        self.stopped = False
        self.patient = True  # lanes wait for those that a warp instruction names with them
        self.steps = 0
        self._look_at = 0.0
        self.executed = np.zeros((len(kernel.flow.blocks), 2), np.int64)
        self.engines = self._make_engines()

    def _make_shadow(self) -> Shadow:
        kernel = self.launch.kernel
        size, granule, barriers = self.shared_size, kernel.granule, kernel.has_mbarriers
        shadow = Shadow(self.ctas, self.warps, self.team, size, granule, barriers, self.findings)
        shadow.name_at = self.launch.kernel.name_shared
        return shadow

    def _make_engines(self) -> list[Engine]:
        size = lanes_together(self.launch.kernel, self.warps * 32, self.launch.schedule.order) // 32
        groups = [list(range(w, min(w + size, self.warps))) for w in range(0, self.warps, size)]
        if self.launch.schedule.order == "reverse":
            groups.reverse()
        engines: list[Engine] = []
        for warps in groups:
            cta = np.repeat(np.arange(self.ctas), len(warps))
            engines.append(Engine(self, LaneOps(self, cta, np.tile(np.array(warps), self.ctas))))
        return engines

    def shared_view(self, size: int) -> Array:
        """Shared memory of the batch as unsigned integers of `size` bytes."""
        return self._shared_views[size]

    def local_view(self, size: int) -> Array:
        """Local memory of the batch."""
        return self._local.view(UNSIGNED[8 * size])

    # -- waiting
    def block_lanes(self) -> Array:
        """Indices of the blocked lanes."""
        return np.flatnonzero(self.blocked)

    def wait(self, gid: Array, site: int) -> None:
        """Block lanes at an instruction."""
        self.blocked[gid] = True
        self.block_site[gid] = site
        self.any_blocked = True

    def wake(self, gid: Array) -> None:
        """Let blocked lanes go on."""
        self.blocked[gid] = False
        self.any_blocked = bool(self.blocked.any())

    def arrive(self, number: int, rows: Array, threads: Array, need: Array, votes: Array) -> None:
        """Arrivals of warps (sorted by CTA) at barrier `number`; releases the CTAs that are complete."""
        cta = rows // self.warps
        starts = np.flatnonzero(np.r_[True, cta[1:] != cta[:-1]])
        touched = cta[starts]
        self.barrier_count[touched, number] += np.add.reduceat(threads, starts)
        self.barrier_votes[touched, number] += np.add.reduceat(votes, starts)
        self.barrier_need[touched, number] = need[starts]
        if self.shadow is not None:
            self.shadow.tick(rows)
            known = np.maximum.reduceat(self.shadow.limit[rows], starts, axis=0)
            self.barrier_known[touched, number] = np.maximum(self.barrier_known[touched, number], known)
        done = touched[self.barrier_count[touched, number] >= self.barrier_need[touched, number]]
        if not len(done):
            return
        self.barrier_result[done, number, 0] = self.barrier_votes[done, number]
        self.barrier_result[done, number, 1] = self.barrier_count[done, number]
        self.barrier_count[done, number] = self.barrier_votes[done, number] = 0
        waiting = np.zeros((self.ctas, self.warps * 32), bool)
        waiting[done] = self.barrier_of.reshape(self.ctas, -1)[done] == number
        gid = np.flatnonzero(waiting.ravel())
        self.barrier_of[gid] = -1
        self.wake(gid)
        if self.shadow is not None:
            released = np.unique(gid // 32)
            self.shadow.learn(released, self.barrier_known[released // self.warps, number])
            self.barrier_known[done, number] = LOW

    # -- running
    def run(self, last: bool = True) -> None:
        """Until every lane has ended, nothing can move, or someone says stop.

        Unless this is the `last` chance, lanes that wait for memory are left to a later call: see ``waiting``.
        """
        self.spins.begin(last)
        with np.errstate(all="ignore"):
            pass_over = self._pass_forward if self.launch.schedule.order == "forward" else self._pass_reverse
            while not self.stopped and (pass_over() or self._advance() or self._go_without()):
                pass
        self.waiting = not self.stopped and not last and self.spins.any_asleep()
        if self.waiting:
            return
        if not self.stopped:
            self._report_deadlock()
            for store in self.stores:  # the end of the kernel waits for bulk stores
                if store.apply is not None:
                    store.apply()
        self.counts.add_blocks(self.launch.kernel.flow, self.executed)

    def _pass_forward(self) -> bool:
        """Run the engine that is at the lowest block, again and again; False when none could move."""
        if len(self.engines) == 1:
            return self._pass_reverse()
        moved = False
        while not self.stopped:
            places = [engine.place() for engine in self.engines]
            lowest = min(places)
            if lowest == NOWHERE:
                break
            moved |= self.engines[places.index(lowest)].step()
            self._count_step()
        return moved

    def _pass_reverse(self) -> bool:
        """Run each engine until it must wait; False when none could move."""
        moved = False
        for engine in self.engines:
            while not self.stopped and engine.step():
                moved = True
                self._count_step()
        return moved

    def _count_step(self) -> None:
        self.steps += 1
        now = time.monotonic()
        if now >= self._look_at:
            self._look_at = now + LOOK_S
            if self.launch.tick(self._share()):
                self.stopped = True
        if self.steps > self.launch.max_steps:
            self.stopped = True
            if self.spins.report(self.steps):
                return
            self.findings.add("CB532", self.engines[0].site(), 1, steps=self.steps)

    def _share(self) -> float:
        """A guess at the share of the batch that is done. It grows: by the blocks executed, and with lanes that end."""
        ended = 1 - sum(engine.alive() for engine in self.engines) / max(self.lanes, 1)
        return max(ended, self.steps / (self.steps + HALF_WAY))

    def _advance(self) -> bool:
        """Everything waits: let something asynchronous happen. False when there is nothing."""
        if self.loads:
            seen = np.zeros(self.ctas, bool)
            due: list[BulkLoad] = []
            rest: list[BulkLoad] = []
            for load in self.loads:  # the oldest of every CTA
                fresh = ~seen[load.cta]
                seen[load.cta] = True
                due += [load.part(fresh)] if fresh.any() else []
                rest += [] if fresh.all() else [load.part(~fresh)]
            self.loads = rest
            for load in due:
                finish_load(self, load)
            return True
        return self.any_blocked and (self.spins.wake() or self.mbarriers.expire())

    def _go_without(self) -> bool:
        """Only lanes that wait for others of their warp are left: one block without those; the instruction says so."""
        if self.spins.any_asleep():
            return False  # the others may come
        self.patient = False
        moved = any(engine.step() for engine in self.engines)
        self.patient = True
        return moved

    def complete_clusters(self) -> None:
        """Start the next phase of the clusters where all threads have arrived."""
        full = np.flatnonzero(self.cluster_arrived >= self.threads * self.team)
        if len(full):
            self.cluster_arrived[full] = 0
            self.cluster_phase[full] += 1
            self.cluster_done[full] = self.cluster_known[full]
            self.release_clusters()

    def release_clusters(self) -> None:
        """Wake the lanes that wait for a phase of their cluster that is complete."""
        gid = np.flatnonzero(self.cluster_waits)
        cluster = gid // 32 // self.warps // self.team
        free = self.cluster_phase_of[gid] < self.cluster_phase[cluster]
        gid = gid[free]
        if len(gid):
            self.cluster_waits[gid] = False
            self.wake(gid)
            if self.shadow is not None:
                rows = np.unique(gid // 32)
                self.shadow.learn(rows, self.cluster_done[rows // self.warps // self.team])

    def _report_deadlock(self) -> None:
        gid = self.block_lanes()
        if not len(gid):
            return
        if self.spins.report():  # who else waits, waits for these
            self.stopped = True
            return
        ended = self.lanes - sum(engine.alive() for engine in self.engines)
        for site in np.unique(self.block_site[gid]).tolist():
            here = gid[self.block_site[gid] == site]
            cta = int(here[0]) // (self.warps * 32)
            number = int(self.barrier_of[here[0]])
            if number >= 0:
                count, need = int(self.barrier_count[cta, number]), int(self.barrier_need[cta, number])
                why = f"barrier {number} of CTA {tuple(self.cta_index[cta].tolist())} has {count} of {need} threads"
            else:
                why = self._why(int(here[0]))
            if ended:
                why += f"; {ended} threads of the batch have ended"
            self.findings.add("CB520", site, len(here), threads=len(here), why=why)
        self.stopped = True

    def _why(self, gid: int) -> str:
        """Why a lane that waits for no barrier of the CTA waits."""
        if self.mbarriers.waits_for[gid] >= 0:
            return self.mbarriers.describe(gid)
        cluster = gid // 32 // self.warps // self.team
        return (
            f"{int(self.cluster_arrived[cluster])} of {self.threads * self.team} threads arrived at the cluster barrier"
        )


__all__ = ["SCHEDULES", "SHARED_START", "Launch", "Machine", "Schedule"]
