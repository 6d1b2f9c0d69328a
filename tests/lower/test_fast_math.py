"""tanh as the kernel's own exponentials are: exact, by an exponential and a quotient, or by Hopper's instruction."""

from __future__ import annotations

import dataclasses
import math

import numpy as np
import pytest

from cubridge_engine.lower import lower
from cubridge_engine.transfer import transfer
from tests.lower.builders import SM80, hand_lift
from tests.lower.test_lower import CASES
from tests.transfer.builders import make_attention

BY_EXPONENTIAL = b"cap_out - __fdividef(2.f * cap_out, 1.f + exp2_approx(s[nb][e] * cap_in))"
WGMMA = b'\n__device__ void product() { asm volatile("wgmma.mma_async.sync.aligned;"); }\n'


def softcap(data: bytes, *, known: bool = True, **options) -> bytes:
    """The lowered text; `known`: whether the places of the softmax are."""
    lifted, source = hand_lift(data, **options)
    if not known:
        lifted = dataclasses.replace(lifted, anchors=dataclasses.replace(lifted.anchors, softmax=None))
    result = transfer(lifted.kernel, make_attention(**CASES["softcap"]), tile_lists=False)
    lowered = lower(lifted, result, source)
    assert not lowered.diagnostics
    return lowered.text


def test_softcap_by_an_exponential_is_the_tanh():
    text = softcap(SM80)
    assert BY_EXPONENTIAL in text
    assert b"tanh" not in text.replace(b"50 * tanh(S / 50)", b"")
    x = np.linspace(-400.0, 400.0, 4001)
    by_exponential = 50.0 - 100.0 / (1.0 + np.exp2(x * 2.0 * math.log2(math.e) / 50.0))
    np.testing.assert_allclose(by_exponential, 50.0 * np.tanh(x / 50.0), rtol=0, atol=1e-11)


def test_an_exact_kernel_keeps_its_tanh():
    exact = SM80.replace(b"exp2_approx(s[nb][e]", b"exp2f(s[nb][e]")
    assert b"tanhf(s[nb][e] * cap_in) * cap_out" in softcap(exact, function="exp2f")


@pytest.mark.parametrize("known", [True, False])
def test_a_kernel_that_runs_on_hopper_alone_takes_the_instruction(known):
    text = softcap(SM80 + WGMMA, known=known)
    assert b"tanh_approx(s[nb][e] * cap_in) * cap_out" in text
    helper = text.index(b"float tanh_approx(float x)")
    assert text.index(b"float exp2_approx(float x)") < helper < text.index(b"__global__")
    assert text.count(b"tanh.approx.f32") == 1


def test_an_exact_kernel_on_hopper_keeps_its_tanh():
    exact = SM80.replace(b"exp2_approx(s[nb][e]", b"exp2f(s[nb][e]")
    assert b"tanhf(s[nb][e] * cap_in) * cap_out" in softcap(exact + WGMMA, function="exp2f")


@pytest.mark.parametrize("data", [SM80 + b"\n// unlike a kernel of wgmma.mma_async\n"])
def test_a_comment_makes_no_hopper_kernel(data):
    assert BY_EXPONENTIAL in softcap(data)


def test_without_a_place_for_the_function_the_exponential_serves():
    """The kernel's exponential comes from a header: nowhere in this file is a place for another such function."""
    start = SM80.index(b"__device__ __forceinline__ float exp2_approx")
    stop = SM80.index(b"}\n", start) + 2
    assert BY_EXPONENTIAL in softcap(SM80[:start] + SM80[stop:] + WGMMA)
