"""`cubridge spec`: the page, its JSON, the line-by-line table and the picture."""

from __future__ import annotations

import json
import xml.etree.ElementTree as ElementTree
from pathlib import Path

import pytest

SPEC = """
import torch


def attention(q, k, v, slopes):
    i = torch.arange(q.shape[2])[:, None]
    j = torch.arange(k.shape[2])[None, :]
    s = q @ k.transpose(-1, -2) * q.shape[-1] ** -0.5
    s = s + slopes[:, None, None] * (j - i)
    s = s.masked_fill((j > i) | (i - j >= 40), float("-inf"))
    s = torch.nn.functional.dropout(s, p=0.0)
    return torch.softmax(s, -1).to(v.dtype) @ v


def example_inputs():
    q, k, v = (torch.randn(2, 4, 96, 64, dtype=torch.float16) for _ in range(3))
    return q, k, v, torch.rand(4)
"""


@pytest.fixture
def spec(write_spec) -> Path:
    return write_spec(SPEC)


def test_the_page(cubridge, spec, tmp_path: Path) -> None:
    picture = tmp_path / "mask.svg"
    code, out, _ = cubridge("spec", spec, "--explain", "--tiles", picture, "--sq", "200", "--sk", "200", "--br", "32")
    assert code == 0
    assert "means: causal window 40, ALiBi, D 64" in out
    rows = out.splitlines()
    assert any(" ".join(r.split()) == "x = s * 0.125 + slopes[h] * (j - i) where line 9" for r in rows)
    assert any("slopes[H]" in r and "16 bytes" in r for r in rows)
    assert any(r.startswith("    10  s = s.masked_fill") and "mask: j > i | i - j >= 40" in r for r in rows)
    assert any(r.startswith("    11  s = torch.nn.functional.dropout") and "changes nothing" in r for r in rows)
    assert any("of all pairs are attended" in r for r in rows)
    assert "\x1b" not in out, "no colour in a pipe"
    root = ElementTree.parse(picture).getroot()
    assert root.tag.endswith("svg")


def test_the_json_says_the_same(cubridge, spec, tmp_path: Path) -> None:
    picture = tmp_path / "mask.svg"
    code, out, _ = cubridge("spec", spec, "--json", "--tiles", picture, "--sq", "128", "--sk", "256")
    assert code == 0
    data = json.loads(out)
    attention, tiles = data["attention"], data["tiles"]
    assert attention["summary"] == "causal window 40, ALiBi, D 64"
    assert {e["part"] for e in attention["equations"]} >= {"product", "score", "mask", "fill", "normaliser", "output"}
    slopes = next(t for t in attention["tensors"] if t["name"] == "slopes")
    assert (slopes["bytes"], slopes["from"]) == (16, "argument")
    assert [row["line"] for row in attention["explain"]] == sorted(row["line"] for row in attention["explain"])
    assert tiles["sizes"] == {"Sq": 128, "Sk": 256, "Br": 64, "Bc": 64, "b": 0, "h": 0}
    assert tiles["cells"] == ["PEEE", "PPEE"]
    assert tiles["ranges"] == [[0, 64], [0, 128]]
    assert tiles["counts"] == {"empty": 5, "partial": 3, "full": 0}
    kept = sum(min(i + 1, 40) for i in range(128))
    assert tiles["density"] == kept / (128 * 256)
    assert picture.read_text() == tiles["svg"]


def test_a_long_map_is_drawn_in_few_cells(cubridge, spec, tmp_path: Path) -> None:
    picture = tmp_path / "mask.svg"
    code, out, _ = cubridge("spec", spec, "--json", "--tiles", picture, "--sq", "8192", "--sk", "8192", "--br", "32")
    tiles = json.loads(out)["tiles"]
    assert code == 0
    assert max(len(tiles["cells"]), len(tiles["cells"][0])) <= 128
    assert picture.stat().st_size < 40_000


@pytest.mark.parametrize(
    ("extra", "code", "exit_code"),
    [
        (("--tiles", "mask.bmp"), "CB011", 2),
        (("--tiles", "no/such/folder/mask.svg"), "CB004", 1),
        (("--tiles", "mask.svg", "--h", "99"), "CB028", 1),
        (("--tiles", "mask.svg", "--br", "0"), "CB028", 1),
    ],
)
def test_a_picture_that_cannot_be(cubridge, spec, tmp_path, monkeypatch, extra, code, exit_code) -> None:
    monkeypatch.chdir(tmp_path)
    done, _, err = cubridge("spec", spec, *extra)
    assert done == exit_code
    assert code in err


def test_a_png_needs_pillow(cubridge, spec, tmp_path: Path) -> None:
    picture = tmp_path / "mask.png"
    code, _, err = cubridge("spec", spec, "--tiles", picture)
    try:
        import PIL.Image
    except ImportError:
        assert code == 1
        assert "CB011" in err
        assert "pillow" in err
        assert not picture.exists()
        return
    assert code == 0
    assert max(PIL.Image.open(picture).size) > 100


def test_a_mask_mod_is_chosen_by_name(cubridge, write_spec) -> None:
    text = "def a_mask_mod(b, h, i, j):\n    return i >= j\n\n\ndef b_mask_mod(b, h, i, j):\n    return i - j < 9\n"
    path = write_spec(text)
    code, _, err = cubridge("spec", path)
    assert code == 1
    assert "CB252" in err
    assert "--mask-mod NAME" in err
    code, out, _ = cubridge("spec", path, "--mask-mod", "b_mask_mod")
    assert code == 0
    assert "means: window 9, D 64" in out
