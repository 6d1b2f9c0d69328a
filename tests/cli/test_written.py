"""Where an adaptation is written: a file, or a folder with every file that changes and what these include."""

from __future__ import annotations

from pathlib import Path

import pytest

from cubridge_engine.cli.arguments import BadArgument
from cubridge_engine.cli.written import check_output, is_folder, write_result
from cubridge_engine.results import Adaptation, ChangedFile, FileRef


@pytest.fixture
def project(tmp_path: Path) -> Path:
    """A kernel that includes a header beside it, one in another folder of the project and one outside."""
    for name, text in {
        "src/op/kernel.cu": '#include "tile.cuh"\n#include "../common/mask.cuh"\n#include "../../far/x.cuh"\nint k;\n',
        "src/op/tile.cuh": "int tile;\n",
        "src/common/mask.cuh": '#include "base.cuh"\nint mask;\n',
        "src/common/base.cuh": "int base;\n",
        "far/x.cuh": "int x;\n",
    }.items():
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text(text)
    return tmp_path


def adaptation(kernel: Path, **headers: str) -> Adaptation:
    ref = FileRef(path=str(kernel), name=kernel.name, sha256="")
    files = [
        ChangedFile(
            path=str(kernel.parent / name), name=name, base_sha256="", hunks=(), text=text, encoding="latin-1", diff=""
        )
        for name, text in headers.items()
    ]
    text = kernel.read_text().replace("int k;", "int adapted;")
    return Adaptation(
        command="adapt", diagnostics=(), stages=(), exit_code=0, level="simulated", applicability="verified",
        text=text, files=tuple(files), kernel=ref, spec=ref,
    )  # fmt: skip


def files_below(folder: Path) -> dict[str, str]:
    return {p.relative_to(folder).as_posix(): p.read_text("latin-1") for p in folder.rglob("*") if p.is_file()}


def test_a_folder_gets_all_files_by_their_names(project):
    kernel = project / "src/op/kernel.cu"
    before = files_below(project)
    result = adaptation(kernel, **{"../common/mask.cuh": '#include "base.cuh"\nint masks; // \xe9\n'})
    done, problems = write_result(str(project / "out/"), kernel, result, force=False)
    written = files_below(project / "out")
    assert set(written) == {"op/kernel.cu", "op/tile.cuh", "common/mask.cuh", "common/base.cuh"}
    assert "int adapted;" in written["op/kernel.cu"]
    assert "masks; // \xe9" in written["common/mask.cuh"]
    assert written["common/base.cuh"] == before["src/common/base.cuh"]
    assert done[0] == str(project / "out/op/kernel.cu")
    assert sorted(done) == sorted(str(project / "out" / name) for name in written)
    assert [(d.code, "../../far/x.cuh" in d.message) for d in problems] == [("CB014", True)]
    assert {name: text for name, text in files_below(project).items() if not name.startswith("out/")} == before


def test_a_file_is_no_place_for_several(project):
    kernel = project / "src/op/kernel.cu"
    result = adaptation(kernel, **{"tile.cuh": "int tiles;\n"})
    done, (problem,) = write_result(str(project / "out.cu"), kernel, result, force=True)
    assert (done, problem.code) == ([], "CB013")
    assert "-o DIR" in problem.help
    assert not (project / "out.cu").exists()


def test_nothing_is_written_over_without_force(project):
    kernel = project / "src/op/kernel.cu"
    result = adaptation(kernel, **{"tile.cuh": "int tiles;\n"})
    (project / "out").mkdir()
    (project / "out/tile.cuh").write_text("mine")
    done, (problem,) = write_result(str(project / "out"), kernel, result, force=False)
    assert (done, problem.code) == ([], "CB002")
    assert files_below(project / "out") == {"tile.cuh": "mine"}
    done, _ = write_result(str(project / "out"), kernel, result, force=True)
    assert "int tiles" in files_below(project / "out")["tile.cuh"]
    with pytest.raises(BadArgument) as bad:
        check_output(str(kernel.parent), kernel, force=True)
    assert bad.value.diagnostic.code == "CB003"


def test_a_single_file_may_go_to_a_folder_too(project):
    kernel = project / "far/x.cuh"
    done, problems = write_result(str(project / "out"), kernel, adaptation(kernel), force=False)
    assert (done, problems) == ([str(project / "out/x.cuh")], [])


def test_what_is_taken_for_a_folder(tmp_path):
    (tmp_path / "file").write_text("")
    names = {"new/": True, "new": True, "new.cu": False, "file": False, ".": True}
    assert {name: is_folder(f"{tmp_path}/{name}") for name in names} == names
