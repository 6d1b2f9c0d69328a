"""The tasks of `cubridge eval`: KernelBench's join them where its package is installed; what is no suite is refused."""

from __future__ import annotations

from pathlib import Path

import pytest

from cubridge_engine.propose.suite_tasks import KERNELBENCH_TASKS, BadSuite, tasks_of


def test_kernelbench_joins_where_it_is_installed(tmp_path, monkeypatch) -> None:
    own = tasks_of("default", tmp_path / "without")
    package = tmp_path / "site" / "kernelbench"
    for name in (*KERNELBENCH_TASKS[:2], "level1/1_Square_matrix_multiplication_.py"):
        path = package / "KernelBench" / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text("class Model: ...\n")
    (package / "__init__.py").touch()
    monkeypatch.syspath_prepend(str(package.parent))
    joined = tasks_of("default", tmp_path / "with")
    added = joined[len(own) :]
    assert [task.name for task in added] == [f"KernelBench {name}" for name in KERNELBENCH_TASKS[:2]]
    assert all(Path(task.kernel).is_file() and Path(task.spec).is_file() and task.entry == "Model" for task in added)


@pytest.mark.parametrize(
    ("text", "word"),
    [
        ("task = 3", "no [[task]]"),
        ("[[task", "is no TOML"),
        ("[[task]]\nname = 'a'\nkernel = 'none.cu'\nspec = 'none.py'", "task 'a'"),
        ("[[task]]\nname = 'a'\nspec = 'none.py'", "'kernel' is missing"),
    ],
)
def test_what_is_no_suite_is_refused_by_name(tmp_path, text: str, word: str) -> None:
    suite = tmp_path / "suite.toml"
    suite.write_text(text)
    with pytest.raises(BadSuite) as refused:
        tasks_of(str(suite), tmp_path / "made")
    assert word in str(refused.value)
