"""The torch function that a drop-in makes its tile list with: to the bit the list that verification is done with."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from torch.utils._python_dispatch import TorchDispatchMode

from cubridge_engine.ir.text_expr import parse_expr
from cubridge_engine.spec import evaluate_attention
from cubridge_engine.spec.dropin_plain import plain_drop_in
from cubridge_engine.spec.program import Program
from cubridge_engine.transfer.tile_builder import tile_builder
from cubridge_engine.transfer.tile_lists import build_tile_list, tile_list_of
from tests.transfer.builders import make_attention

# mask, operands
MASKS = {
    "document ids": ("document_ids[b, i] == document_ids[b, j] & i >= j", ("document_ids:B,Sk:int32",)),
    "tree": ("j < Sk - Sq | ancestors[i, max(j - (Sk - Sq), 0)]", ("ancestors:Sq,Sq:bool",)),
    "streaming": ("j <= i + (Sk - Sq) & (i + (Sk - Sq) - j < 20 | j < 4)", ()),
    "random eviction": ("i >= j & i < evicted_at[b, h, j]", ("evicted_at:B,H,Sk:int32",)),
    "lengths": ("i < lengths[b] & j < lengths[b] & i >= j", ("lengths:B:int64",)),
    "by KV head": ("(i + hk) % 3 == 0 & keep[hk, j]", ("keep:Hkv,Sk:bool",)),
    "names of its own": ("live[i] == q_tiles[j] & not(device[b, 0, 0, j])", (
        "live:Sk:int32", "q_tiles:Sk:int64", "device:B,1,1,Sk:bool",
    )),
    "a number": ("bias[0, h, i, j] > 0.4", ("bias:1,H,Sq,Sk:float16",)),
}  # fmt: skip
LENGTHS = [(64, 64), (70, 70), (33, 100), (100, 133), (1, 90), (5, 0), (0, 5)]


def tensors(attention, sizes, seed=0):
    """q, k and the operands as torch tensors."""
    rng = np.random.default_rng(seed)
    q, k = (torch.zeros(sizes["B"], sizes[h], sizes[s], 4) for h, s in (("H", "Sq"), ("Hkv", "Sk")))
    made = []
    for item in attention.operands:
        shape = tuple(int(a) if a.isdigit() else sizes[a] for a in item.axes)
        if item.dtype == "bool":
            made.append(torch.from_numpy(rng.random(shape) < 0.3))
        elif item.dtype.startswith("int"):
            most = 4 if item.name in ("document_ids", "live", "q_tiles") else max(sizes["Sk"], 1) + 1
            made.append(torch.from_numpy(rng.integers(0, most, shape)).to(getattr(torch, item.dtype)))
        else:
            made.append(torch.from_numpy(rng.standard_normal(shape)).to(getattr(torch, item.dtype)))
    return q, k, made


def both(name, sizes, br, bc, change=lambda source: source):
    """(the list by NumPy, by the generated function)"""
    mask, operands = MASKS[name]
    attention = make_attention(mask=mask, operands=operands)
    tiles = tile_list_of(parse_expr(mask), br, bc)
    q, k, made = tensors(attention, sizes, sizes["Sq"] + sizes["Sk"])
    arrays = {
        item.name: (t.double() if t.dtype.is_floating_point else t).numpy()
        for item, t in zip(attention.operands, made, strict=True)
    }
    want = build_tile_list(tiles, sizes, arrays)
    derived = tile_builder("kv_tiles", tiles, attention)
    scope = {"torch": torch}
    exec(change(derived.source), scope)
    return want, scope[derived.function](
        q, k, *(made[[i.name for i in attention.operands].index(n)] for n in derived.reads)
    )


@pytest.mark.parametrize("pages", [1, 3])
def test_of_a_paged_cache_the_table_says_how_many_keys_there_are(pages):
    mask, operands = "j < lengths[b] & (j < 4 | j >= lengths[b] - 20)", ("lengths:B:int32",)
    attention = make_attention(mask=mask, operands=operands, pages="block_table:16")
    tiles = tile_list_of(parse_expr(mask), 16, 8)
    sizes = {"B": 2, "H": 4, "Hkv": 2, "Sq": 3, "Sk": 16 * pages}
    q, cache, (lengths,) = tensors(attention, {**sizes, "Sk": 16}, pages)
    table = torch.arange(2 * pages, dtype=torch.int32).reshape(2, pages)
    derived = tile_builder("kv_tiles", tiles, attention)
    assert derived.call({"lengths": "lengths"}, "q", "k") == "build_tile_list(q, k, block_table, lengths)"
    scope = {"torch": torch}
    exec(derived.source, scope)
    got = scope[derived.function](q, cache, table, lengths)
    np.testing.assert_array_equal(got.numpy(), build_tile_list(tiles, sizes, {"lengths": lengths.numpy()}))


@pytest.mark.parametrize("name", MASKS)
@pytest.mark.parametrize(("sq", "sk"), LENGTHS)
@pytest.mark.parametrize(("br", "bc"), [(16, 16), (24, 8)])
def test_the_function_gives_the_list_to_the_bit(name, sq, sk, br, bc):
    want, got = both(name, {"B": 2, "H": 4, "Hkv": 2, "Sq": sq, "Sk": sk}, br, bc)
    assert got.dtype == torch.int32
    assert got.is_contiguous()
    assert tuple(got.shape) == want.shape
    np.testing.assert_array_equal(got.numpy(), want)


@pytest.mark.parametrize("name", MASKS)
def test_bands_make_no_difference(name):
    def small(source):
        changed = source.replace("BAND = 2**22", "BAND = 500").replace("min(kv_tiles, 512)", "min(kv_tiles, 3)")
        assert changed.count("500") == 1
        assert "min(kv_tiles, 3)" in changed
        return changed

    want, got = both(name, {"B": 2, "H": 4, "Hkv": 2, "Sq": 75, "Sk": 90}, 16, 8, small)
    np.testing.assert_array_equal(got.numpy(), want)


class Largest(TorchDispatchMode):
    """The most elements that any result has."""

    def __init__(self):
        super().__init__()
        self.most = 0

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        out = func(*args, **(kwargs or {}))
        if isinstance(out, torch.Tensor):
            self.most = max(self.most, out.numel())
        return out


def test_the_whole_mask_is_never_held():
    mask, operands = MASKS["document ids"]
    attention = make_attention(mask=mask, operands=operands)
    derived = tile_builder("kv_tiles", tile_list_of(parse_expr(mask), 64, 64), attention)
    scope = {"torch": torch}
    exec(derived.source.replace("BAND = 2**22", "BAND = 2**17"), scope)
    q = torch.zeros(1, 1, 2048, 1)
    ids = torch.zeros(1, 2048, dtype=torch.int32)
    with Largest() as seen:
        rows = scope[derived.function](q, q, ids)
    assert rows[0, -1, 0] == 32
    assert seen.most == 2**17, "a band of Q tiles, where Sq x Sk is 2**22"


def test_everything_is_on_the_device_of_q():
    """No tensor of the host meets one of the device, and no number is fetched from it but the longest row."""
    mask, operands = MASKS["random eviction"]
    attention = make_attention(mask=f"{mask} | max(evicted_at[b, h, i], 3) > j & not(i == 2)", operands=operands)
    derived = tile_builder("kv_tiles", tile_list_of(attention.mask, 16, 16), attention)
    longest = "max(int(count.max()) if count.numel() else 0, 1)"
    assert longest in derived.source
    scope = {"torch": torch}
    exec(derived.source.replace(longest, "3"), scope)  # without data there is no longest row
    q = torch.empty(2, 2, 40, 8, device="meta")
    rows = scope[derived.function](q, q, torch.empty(2, 2, 40, dtype=torch.int32, device="meta"))
    assert rows.device.type == "meta"
    assert tuple(rows.shape) == (2, 2, 3, 5)


def program():
    return Program("spec.py", "", "attention", lambda *_: None, (), (), 1)


@pytest.mark.parametrize(
    ("axes", "lse"), [(("b", "h", "i", "d"), False), (("b", "i", "h", "d"), True), (("h", "i", "d"), False)]
)
def test_the_drop_in_gives_the_kernel_bhsd_and_returns_what_the_spec_does(axes, lse):
    mask, operands = "ids[i] == ids[j]", ("ids:Sk:int32",)
    attention = make_attention(mask=mask, operands=operands, axes=axes, lse=lse)
    tiles = tile_list_of(parse_expr(mask), 8, 8)
    made = plain_drop_in(program(), attention, tile_builder("kv_tiles", tiles, attention, ["spec.py:4  same"]))
    sizes = {"b": 2, "h": 3, "hk": 3, "i": 20, "j": 20, "d": 4}
    generator = torch.Generator().manual_seed(0)
    shapes = [[sizes[a] for a in attention.input(role).axes] for role in "qkv"]
    inputs = [torch.randn(s, generator=generator, dtype=torch.float64) for s in shapes]
    inputs.append(torch.randint(0, 3, (20,), generator=generator, dtype=torch.int32))
    four = make_attention(mask=mask, operands=operands, lse=lse)
    seen = []

    def kernel(*given):
        seen.append(given[-1])
        out = [torch.from_numpy(x) for x in evaluate_attention(four, [t.numpy() for t in given[:-1]])]
        return tuple(out) if lse else out[0]

    got = made.run(inputs, kernel)
    want = evaluate_attention(attention, [t.numpy() for t in inputs])
    assert len(got) == len(want)
    for x, y in zip(got, want, strict=True):
        np.testing.assert_allclose(x.numpy(), y, rtol=1e-12)
    full = {"B": 1, "H": 3, "Hkv": 3, "Sq": 20, "Sk": 20}
    np.testing.assert_array_equal(seen[0].numpy(), build_tile_list(tiles, full, {"ids": inputs[3].numpy()}))
    assert "# spec.py:4  same" in made.text
    assert "cubridge" not in made.text.lower()


def test_the_size_that_is_reported_is_that_of_the_longest_row():
    tiles = tile_list_of(parse_expr("ids[b, i] == ids[b, j] | h < 0"), 16, 32)
    sizes = {"B": 2, "H": 4, "Hkv": 4, "Sq": 70, "Sk": 100}
    rows = build_tile_list(tiles, sizes, {"ids": np.zeros((2, 100), dtype=np.int32)})
    assert tiles.most_bytes(sizes) == rows.nbytes
    assert tiles.shape_text() == "[B, H, ceil(Sq / 16), 2 + ceil(Sk / 32)]"
    assert tiles.bytes_text() == "4 * B * H * ceil(Sq / 16) * (2 + ceil(Sk / 32)) bytes"
