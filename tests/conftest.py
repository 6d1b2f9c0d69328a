"""For all tests: one thread per process, set before NumPy and torch are imported (the tensors here are small). And who
runs what where several processes share the tests: the longest files first, so that all end at the same time.
"""

from __future__ import annotations

import os
from typing import Any

import pytest
from hypothesis import settings

for _name in ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS"):
    os.environ.setdefault(_name, "1")

# The same examples in every run, and no limit of time for one: CUBRIDGE_RANDOM=1 draws others.
settings.register_profile("house", deadline=None, derandomize="CUBRIDGE_RANDOM" not in os.environ)
settings.load_profile("house")

# Seconds of the files that take long, roughly, from `--durations=0`: only their order counts.
SECONDS = {
    "tests/examples/test_near_misses.py": 180,
    "tests/examples/test_generated_near_misses.py": 50,
    "tests/corpus/test_corpus.py": 140,
    "tests/server/test_jobs.py": 80,
    "tests/simulate/test_foreign_headers.py": 50,
    "tests/masks/test_masks.py": 65,
    "tests/check/test_watching.py": 65,
    "tests/bind/test_styles.py": 60,
    "tests/spec/test_cut.py": 50,
    "tests/spec/test_read_table.py": 45,
    "tests/faults/test_found.py": 45,
    "tests/spec/test_examples.py": 40,
    "tests/bind/test_recorder.py": 40,
    "tests/bind/test_refusals.py": 40,
    "tests/check/test_reading.py": 40,
    "tests/graft/test_adapting.py": 35,
    "tests/lift/test_names.py": 30,
    "tests/spec/test_caches.py": 30,
    "tests/cli/test_adapt.py": 30,
    "tests/server/test_findings.py": 25,
    "tests/lift/test_edits.py": 25,
    "tests/check/test_trust.py": 25,
    "tests/corpus/test_near_misses.py": 25,
    "tests/cli/test_model.py": 25,
    "tests/spec/test_merge.py": 20,
    "tests/server/test_specs_open.py": 20,
    "tests/server/test_panels.py": 20,
}
OTHERS = 10
# These share what was read and adapted: one process.
TOGETHER = {
    "tests/examples/test_near_misses.py": "tests/examples",
    "tests/examples/test_generated_near_misses.py": "tests/examples",
}
# Tests of about ten seconds each that share nothing: they come last, one by one, to whoever is free.
SINGLY = ("tests/examples/test_table.py",)


def _file(nodeid: str) -> str:
    return nodeid.split("::", 1)[0]


def _group(nodeid: str) -> str:
    """What is run by one process."""
    file = _file(nodeid)
    return nodeid if file in SINGLY else TOGETHER.get(file, file)


def _seconds(group: str) -> int:
    return sum(SECONDS.get(file, OTHERS) for file, name in TOGETHER.items() if name == group) or SECONDS.get(
        group, OTHERS
    )


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """The longest first, in the processes that get their share from `pytest_xdist_make_scheduler`."""
    if hasattr(config, "workerinput"):
        items.sort(key=lambda item: (_file(item.nodeid) in SINGLY, -_seconds(_group(item.nodeid))))


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_make_scheduler(config: pytest.Config, log: Any) -> Any:
    """`--dist loadfile`, with the groups above, in the order of collection."""
    if config.getoption("dist") != "loadfile":
        return None
    from xdist.scheduler import LoadFileScheduling

    class Longest(LoadFileScheduling):
        def _split_scope(self, nodeid: str) -> str:
            return _group(nodeid)

    config.option.loadscopereorder = False
    return Longest(config, log)
