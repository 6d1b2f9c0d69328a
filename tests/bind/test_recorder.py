"""Host code is user code: it runs under limits, in a process of its own, and what it does there is reported."""

from __future__ import annotations

import pytest

import cubridge_engine.bind.recorder as room
from cubridge_engine.bind.recorded import arguments_of, record_samples
from cubridge_engine.bind.recorder import CannotRecord, Launcher, recorder
from cubridge_engine.compile.alone import AloneOptions
from cubridge_engine.compile.toolchain import find_nvcc
from cubridge_engine.source import parse

needs_nvcc = pytest.mark.skipif(find_nvcc() is None, reason="recording a launcher needs nvcc")
UNRULY = b"""
#include <cstdio>
#include <cstdlib>
#include <cuda_runtime.h>
__global__ void k(const float* q, const float* key, const float* v, float* o, int n) { o[0] = q[n]; }
void crashes(float* q, float* k_, float* v, float* out, int n) { k<<<1, 1>>>(q, k_, v, out, n); *(volatile int*)1 = 0; }
void loops(float* q, float* k_, float* v, float* out, int n) {
  for (volatile int x = 0;; x = 0)
    if (x) k<<<1, 1>>>(q, k_, v, out, n);
}
void writes(float* q, float* k_, float* v, float* out, int n) {
  FILE* file = fopen("big", "w");
  for (int i = 0; i < 1 << 20; ++i) fprintf(file, "%1024d", i);
  k<<<1, 1>>>(q, k_, v, out, n);
}
void right(float* q, float* k_, float* v, float* out, int n) { k<<<dim3(n, 2), 96, 512>>>(q, k_, v, out, n); }
"""


def given(types: tuple[str, ...], names: tuple[str, ...]):
    source = parse("k.cu", f"void f({', '.join(f'int {n}' for n in names)}) {{}}".encode())
    from cubridge_engine.bind.signature import signature_of

    launcher = Launcher("f", types, signature_of(source, source.functions()["f"][0]).arguments)
    from cubridge_engine.bind.recorded import Way

    way = Way("bhsd", "float16", dict.fromkeys("qkvo", 0), True, True, 64)
    return arguments_of(launcher, way, {"B": 2, "H": 4, "Hkv": 2, "Sq": 8, "Sk": 16, "D": 64}, 0.25, {})


@needs_nvcc
def test_a_launcher_that_misbehaves_ends_alone(tmp_path, monkeypatch):
    monkeypatch.setattr(room, "CALL_SECONDS", 1)  # of work
    monkeypatch.setattr(room, "_WAITING", 100)
    path = tmp_path / "k.cu"
    path.write_bytes(UNRULY)
    with recorder(parse(str(path), UNRULY), "k", AloneOptions()) as program:
        by_name = {launcher.name: launcher for launcher in program.launchers}
        assert set(by_name) == {"crashes", "loops", "writes", "right"}
        tensor = [room.Given("tensor", r, "float32", (64,), (1,)) for r in ("q", "k", "v", "o")]
        arguments = [*tensor, room.Given("number", number=7)]
        crashed = program.call("crashes", arguments)
        assert "SIGSEGV" in crashed.error
        assert len(crashed.launches) == 1
        assert "SIGXCPU" in program.call("loops", arguments).error
        assert "SIGXFSZ" in program.call("writes", arguments).error
        first, second = program.calls("right", [arguments, [*tensor, room.Given("number", number=3)]])
        assert [c.launches[0].grid for c in (first, second)] == [(7, 2, 1), (3, 2, 1)]
        assert (first.launches[0].block, first.launches[0].shared) == ((96, 1, 1), 512)
        roles = [m.role for m in first.memories.values()]
        assert roles == ["q", "k", "v", "o"]
        found, reasons = record_samples(program, "k", ("float32",), {})
        assert not reasons
        assert found[0].launcher.name == "right"


@needs_nvcc
def test_host_code_that_does_not_compile_is_no_recorder(tmp_path):
    text = b"__global__ void k(float* q) {}\nvoid go(float* q) { undefined_thing(); k<<<1, 1>>>(q); }\n"
    with (
        pytest.raises(CannotRecord, match="undefined_thing"),
        recorder(parse(str(tmp_path / "k.cu"), text), "k", AloneOptions()),
    ):
        pass


def test_without_nvcc_there_is_no_recorder(monkeypatch, tmp_path):
    monkeypatch.setattr(room, "find_nvcc", lambda: None)
    with pytest.raises(CannotRecord, match="needs nvcc"), recorder(parse("k.cu", UNRULY), "k", AloneOptions()):
        pass


def test_arguments_are_made_by_type_and_name():
    types = ("Tensor", "Tensor", "Tensor", "Tensor?", "float", "float", "bool", "int", "int", "int")
    names = ("a", "b", "c", "mask", "p_dropout", "softmax_scale", "causal", "window_left", "num_heads", "seqlen_k")
    found = given(types, names)
    assert [(g.kind, g.role) for g in found[:4]] == [("tensor", "q"), ("tensor", "k"), ("tensor", "v"), ("none", "")]
    assert found[1].shape == (2, 2, 16, 64)
    assert [g.number for g in found[4:]] == [0.0, 0.25, 0.0, -1.0, 4.0, 16.0]
