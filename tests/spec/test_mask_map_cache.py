"""Drawing a mask again at other lengths does not run the spec again; another text, or another file beside it, does."""

from __future__ import annotations

from pathlib import Path

import pytest

from cubridge_engine.pipeline import mask_map
from cubridge_engine.pipeline.files import Options
from cubridge_engine.source import overlay
from cubridge_engine.spec import SpecResult


def test_a_spec_is_read_once_for_one_text(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    read: list[str] = []

    def reading(path: str, **_: object) -> SpecResult:
        read.append(path)
        return SpecResult(None, (), None)

    monkeypatch.setattr(mask_map, "read_spec", reading)
    monkeypatch.setattr(mask_map, "_READ", {})
    spec = tmp_path / "spec.py"
    spec.write_text("a = 1\n")

    def times(sizes: dict[str, int], options: Options | None = None) -> int:
        mask_map.spec_mask(str(spec), options or Options(), sizes)
        return len(read)

    assert [times({}), times({"Sq": 128}), times({})] == [1, 1, 1]
    assert times({}, Options(head_dim=128)) == 2
    with overlay({str(spec): "a = 2\n"}):
        assert [times({}), times({})] == [3, 3]
    (tmp_path / "masks.py").write_text("b = 1\n")
    assert [times({}), times({})] == [4, 4]
    for count in range(2 * mask_map._MOST_READ):
        with overlay({str(spec): f"c = {count}\n"}):
            times({})
    assert len(mask_map._READ) == mask_map._MOST_READ
