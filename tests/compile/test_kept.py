"""Kept results: what was stored comes back, the bounds hold, and damage is a miss."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from cubridge_engine.compile import kept


def test_what_was_stored_comes_back_by_key_and_kind(private_cache: Path) -> None:
    key = kept.key_of(b"kernel", "options")
    kept.store_json("explain", key, {"a": [1, "x"]})
    assert kept.load_json("explain", key) == {"a": [1, "x"]}
    assert kept.load_json("watch", key) is None
    assert kept.load_json("explain", kept.key_of(b"kernel", "other options")) is None
    assert [path for path in private_cache.rglob("*") if path.is_file()], "nothing was written into the cache's folder"


def test_parts_of_a_key_do_not_run_together() -> None:
    assert kept.key_of("ab", "c") != kept.key_of("a", "bc")


def test_the_least_recently_used_goes_first(private_cache: Path) -> None:
    for n, key in enumerate("abc"):
        kept.store_json("k", key, {"n": n}, entries=3)
        os.utime(next(private_cache.rglob(f"{key}.json.z")), ns=(n, n))
    assert kept.load_json("k", "a") == {"n": 0}  # a use: now b is the oldest
    kept.store_json("k", "d", {"n": 3}, entries=3)
    assert {key for key in "abcd" if kept.load_json("k", key) is not None} == {"a", "c", "d"}


def test_bytes_are_bounded(private_cache: Path) -> None:
    noise = os.urandom(3000).hex()
    for key in "abcdef":
        kept.store_json("k", key, {"noise": noise + key}, limit=10_000)
    assert sum(path.stat().st_size for path in private_cache.rglob("*.json.z")) <= 10_000
    assert kept.load_json("k", "f") is not None
    kept.store_json("k", "g", {"noise": os.urandom(20_000).hex()}, limit=10_000)
    assert kept.load_json("k", "g") is None


def test_damage_and_a_cache_that_is_off_are_misses(private_cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    kept.store_json("k", "a", {"n": 1})
    path = next(private_cache.rglob("a.json.z"))
    path.write_bytes(path.read_bytes()[:-4])
    assert kept.load_json("k", "a") is None
    monkeypatch.setenv("CUBRIDGE_CACHE", "off")
    kept.store_json("k", "b", {"n": 1})
    assert kept.load_json("k", "b") is None
