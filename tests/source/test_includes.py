import os
from pathlib import Path

import pytest

from cubridge_engine.source import follow_includes, parse


def source_at(folder: Path, text: str):
    path = folder / "k.cu"
    path.write_text(text)
    return parse(str(path), path.read_bytes())


def test_headers_beside_the_file_and_on_the_search_path(tmp_path: Path) -> None:
    (tmp_path / "lib").mkdir()
    (tmp_path / "a.cuh").write_text('#pragma once\n#include "b.cuh"\n#include "k.cu"\nint a;\n')
    (tmp_path / "lib" / "b.cuh").write_text('#include "../a.cuh"\n#define TILE 64\n')
    source = source_at(tmp_path, '#include "a.cuh"\n#include <cuda_fp16.h>\n__global__ void k() {}\n')
    found = follow_includes(source, search=[str(tmp_path / "lib")], budget_s=5)
    assert [Path(f.path).name for f in found] == ["a.cuh", "b.cuh"], "cycles end, system includes are not followed"
    assert found.files[1].defines_seen == {"TILE": "64"}
    assert found.diagnostics == ()
    assert all(f.diagnostics == () for f in found)


def test_missing_is_said_once_with_its_line(tmp_path: Path) -> None:
    (tmp_path / "a.cuh").write_text('#include "gone.cuh"\n')
    source = source_at(tmp_path, '\n#include "gone.cuh"\n#include "a.cuh"\n#include "bad\0name.h"\n')
    notes = follow_includes(source, budget_s=5).diagnostics
    assert notes[0].span is not None
    assert (notes[0].code, notes[0].span.line) == ("CB110", 1)
    assert sum("gone.cuh" in n.message for n in notes) == 1


def test_budget_is_kept_and_said(tmp_path: Path) -> None:
    (tmp_path / "a.cuh").write_text("int a;\n")
    found = follow_includes(source_at(tmp_path, '#include "a.cuh"\n'), budget_s=-1.0)
    assert [d.code for d in found.diagnostics] == ["CB111"]
    assert len(found) == 0


@pytest.mark.skipif(os.name != "posix", reason="needs a folder-less read error")
def test_unreadable_is_said(tmp_path: Path) -> None:
    (tmp_path / "a.cuh").write_text("int a;\n")

    def refuse(path: Path) -> bytes:
        raise PermissionError(13, "Permission denied", str(path))

    found = follow_includes(source_at(tmp_path, '#include "a.cuh"\n'), read=refuse)
    assert [d.code for d in found.diagnostics] == ["CB112"]
    assert "Permission denied" in found.diagnostics[0].message
