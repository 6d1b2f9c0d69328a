"""Persistent CTAs: items told apart by the order of tiles, and refused where the accesses contradict each other."""

from __future__ import annotations

import os

import numpy as np
import pytest

from cubridge_engine.watch import watch_contract
from cubridge_engine.watch.items import item_walks, warp_roles
from cubridge_engine.watch.problem import problem_of
from cubridge_engine.watch.record import Recorded, Sample, Touched
from tests.watch.test_watch import EXPERT, contract_at

PROBLEM = problem_of({"B": 1, "H": 2, "Hkv": 1, "Sq": 8, "Sk": 12, "D": 4, "Dv": 4}, "float32")
MASK = np.broadcast_to(np.arange(12) <= np.arange(8)[:, None] + 4, (1, 2, 8, 12))  # tiles of 4 rows and 4 keys


def read(*tiles: tuple[int, int]) -> list[np.ndarray]:
    """Accesses of CTA 0: (head, tile of 4 rows) each."""
    return [np.array([[0, 0, h, 4 * tile + r] for r in range(4)]) for h, tile in tiles]


def recorded(q: list[np.ndarray], k: list[np.ndarray], v: list[np.ndarray]) -> Recorded:
    lanes = np.array([0, 40, 70])
    sample = Sample(np.zeros(3, int), np.zeros((3, 3), int), lanes)
    loads, stores = Touched(np.zeros((1, 1, 1, 1), bool)), Touched(np.zeros((1, 1, 1, 1), bool))
    loads.warps.add(0)
    stores.warps.update((1, 2))
    touched = {("k", "read"): loads, ("o", "store"): stores}
    return Recorded(sample, {}, touched, (1, 1, 1), (96, 1, 1), {"q": q, "k": k, "v": v})


def test_items_are_told_apart_though_the_next_tile_is_fetched_early():
    keys = read((0, 2), (0, 1), (0, 0), (0, 1), (0, 0))
    walks = item_walks(recorded(read((0, 1), (1, 0)), keys, keys), PROBLEM, MASK, 4, 4)
    assert [(w.h, w.kv_head, w.rows, w.tiles, w.order) for w in walks] == [
        (0, 0, (4, 7), (8, 4, 0), "descending"),
        (1, 0, (0, 3), (4, 0), "descending"),
    ]


@pytest.mark.parametrize("wrong", ["a tile of V less", "an item more", "a tile that counts is missing"])
def test_what_the_accesses_do_not_tell_is_not_said(wrong):
    keys = read((0, 2), (0, 1), (0, 0), (0, 1), (0, 0))
    q, k, v = read((0, 1), (1, 0)), keys, keys
    if wrong == "a tile of V less":
        v = keys[:-1]
    elif wrong == "an item more":
        q = read((0, 1), (1, 0), (1, 1))
    else:
        k = v = read((0, 1), (0, 0), (0, 1), (0, 0))
    assert item_walks(recorded(q, k, v), PROBLEM, MASK, 4, 4) == ()


def test_warps_that_load_and_warps_that_compute_are_told_apart():
    roles = warp_roles(recorded([], [], []), [("S", np.array([1, 2]))])
    assert [(r.words, r.does) for r in roles] == [
        ("warp 0", ("loads K",)),
        ("warps 1 to 2", ("holds S", "stores O")),
    ]


@pytest.mark.skipif(os.environ.get("CUBRIDGE_LADDER") != "all", reason="15 s: CUBRIDGE_LADDER=all")
def test_the_persistent_hopper_kernel_as_it_ran():
    found = watch_contract(contract_at(EXPERT / "flash_fwd_sm90" / "contract.toml"))
    assert [(w.cta[0], w.h, w.rows, w.tiles) for w in found.walks] == [
        (0, 0, (128, 255), (256, 128, 0)),
        (0, 0, (0, 127), (128, 0)),
        (1, 1, (128, 255), (256, 128, 0)),
        (1, 1, (0, 127), (128, 0)),
    ]
    does = {r.words: r.does for r in found.warps}
    assert does["warp 0"] == ("loads K", "loads Q", "loads V")
    assert {"holds S", "stores O"} <= set(does["warps 4 to 11"])
