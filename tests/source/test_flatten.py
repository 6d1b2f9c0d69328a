"""A file pasted together with its headers: what stands where, and when it cannot be pasted."""

from __future__ import annotations

import pytest

from cubridge_engine.source import flatten, parse, with_includes

MAIN = b'#include "a.cuh"\n#include <cuda_fp16.h>\n\n__global__ void k() { f(); }\n'
A = b'#pragma once\n#include "sub/b.cuh"\n__device__ void f() { g(); }\n'
B = b"#ifndef B_H\n#define B_H\n__device__ void g() {}\n#endif\n"


def flat_of(folder, main=MAIN, **headers):
    (folder / "sub").mkdir(exist_ok=True)
    for name, data in {"a": A, "b": B, **headers}.items():
        (folder / ("sub" if name == "b" else ".") / f"{name}.cuh").write_bytes(data)
    path = folder / "kernel.cu"
    path.write_bytes(main)
    return flatten(with_includes(parse(str(path), main)))


def test_every_byte_comes_from_a_place(tmp_path):
    flat = flat_of(tmp_path)
    assert flat.data.startswith(b"            \n#ifndef B_H\n"), "#pragma once is for headers"
    assert b'#include "' not in flat.data
    assert b"#include <cuda_fp16.h>" in flat.data
    for name, text in (("kernel.cu", b"f(); }"), ("a.cuh", b"g(); }"), ("b.cuh", b"void g() {}")):
        at = flat.data.index(text)
        path, start, end = flat.place(at, at + len(text))
        assert path.endswith(name)
        assert flat.files[path].data[start:end] == text
    functions = parse("flat.cu", flat.data).functions()
    assert list(functions) == ["g", "f", "k"]


def test_what_is_in_two_files_has_no_place(tmp_path):
    flat = flat_of(tmp_path)
    at = flat.data.index(b"#include <cuda_fp16.h>")
    assert flat.place(at - 3, at + 3) is None


def test_a_place_between_two_files_is_in_the_header(tmp_path):
    flat = flat_of(tmp_path)
    at = flat.data.index(b"\n#include <cuda_fp16.h>")
    path, start, end = flat.place(at, at)
    assert path.endswith("a.cuh")
    assert start == end == len(A)


def test_a_guarded_header_is_pasted_once(tmp_path):
    flat = flat_of(tmp_path, main=b'#include "sub/b.cuh"\n' + MAIN + b'#include "a.cuh"\n')
    assert flat.data.count(b"void g()") == flat.data.count(b"void f()") == 1


@pytest.mark.parametrize(
    ("main", "headers"),
    [
        (b"__global__ void k() {}\n", {}),  # nothing to paste
        (b'#include "a.cuh"\n#include "a.cuh"\n', {"a": b"X(int)\n"}),  # twice on purpose
        (b'#include "a.cuh" /* and\n so on */\n', {}),
    ],
)
def test_what_cannot_be_pasted(tmp_path, main, headers):
    assert flat_of(tmp_path, main, **headers) is None
