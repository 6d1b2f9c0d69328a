"""What is said where a kernel fails by itself, and where it cannot be made to compute a spec."""

from __future__ import annotations

from cubridge_engine.diagnostics import make
from cubridge_engine.pipeline.inherited import inherited
from cubridge_engine.pipeline.offers import offer
from cubridge_engine.results import CaseResult
from tests.ladder.rungs import lifted_of
from tests.transfer.builders import make_attention


def failed(name, **sizes):
    values = {"B": 1, "H": 2, "Hkv": 2, "Sq": 5, "Sk": 9, "D": 32, **sizes}
    case = {"name": name, "why": "", "level": "ir", "sizes": values, "dtype": "float64", "layout": "contiguous"}
    return CaseResult(**case, schedule="early", seed=1, worst_o="inf", worst_lse=None, tolerance=1e-6, passed=False)


def test_a_case_that_the_original_fails_is_inherited():
    kernel = lifted_of("block_of_elements").kernel
    (found,) = inherited(kernel, {"scale": 0.125}, [failed("no-keys", Sk=0), failed("below-tile")])
    assert found.code == "CB033"
    assert found.data["case"] == "no-keys", "on nine keys the original is right, so a failure there is the adaptation's"
    assert found.data["got"] == "nan"
    assert "1 <= Sk" in found.help


def test_a_bundled_kernel_that_fits_is_offered():
    attention = make_attention(dtype="float32")
    wall = make("CB318", None, want="h // (H // Hkv)", kernel="warp_attention")
    (found,) = offer(attention, "warp.cu", "spec.py", [wall])
    assert (found.code, found.data["name"]) == ("CB034", "flash_fwd_scalar")
    assert found.message.endswith("flash_fwd_scalar/kernel.cu spec.py")
    assert offer(attention, "warp.cu", "spec.py", []) == (), "no wall, no offer"
    unlike = make_attention(dtype="float32", normaliser="entmax")
    assert offer(unlike, "warp.cu", "spec.py", [wall]) == (), "no bundled kernel computes that either"
