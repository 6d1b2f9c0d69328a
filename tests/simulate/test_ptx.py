"""The PTX front end: what is read, and that nothing makes it raise."""

from __future__ import annotations

import re

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from cubridge_engine.compile import compile_source
from cubridge_engine.simulate import Schedule, load
from cubridge_engine.simulate.model import Imm, Mem, Pair, Reg, Special, Sym, Vec
from cubridge_engine.simulate.ptx import parse

from .conftest import ROOT, Shape  # type: ignore[import-not-found]

HEAD = ".version 9.0\n.target sm_90a\n.address_size 64\n"


def code_of(body: str):
    program, diagnostics = parse(HEAD + ".visible .entry k(.param .u64 p0) {\n" + body + "\n}")
    assert not diagnostics, diagnostics
    return program.functions["k"]


def test_operands():
    f = code_of(""".reg .b32 %r<9>; .reg .b64 %rd<4>; .reg .pred %p<3>;
      ld.global.v2.u32 {%r1, _}, [%rd1+-16];
      mov.b32 %r2, 0f3F800000; mov.u32 %r3, %tid.x; add.s32 %r4, %r3, -7; and.b32 %r4, %r4, 0xFFU;
      setp.lt.and.s32 %p1|%p2, %r1, 010, !%p0;
      mov.u64 %rd2, p0; ld.param.u64 %rd3, [p0+4];
      cp.async.bulk.tensor.2d.shared::cluster.global.mbarrier::complete_tx::bytes [%r1], [%rd1, {%r2, %r3}], [%r4];""")
    load_, one, tid, add, hexa, compare, address, param, tensor = f.code
    assert load_.args == (Vec((Reg("%r1"), Reg("_"))), Mem(Reg("%rd1"), -16))
    assert one.args[1] == Imm(0x3F800000, 32)
    assert tid.args[1] == Special("%tid.x")
    assert add.args[2] == Imm(-7)
    assert hexa.args[2] == Imm(255)
    assert compare.args[0] == Pair(Reg("%p1"), Reg("%p2"))
    assert compare.args[2] == Imm(8)
    assert address.args[1] == Sym("p0")
    assert param.args[1] == Mem(Sym("p0"), 4)
    assert tensor.args[1] == Mem(Reg("%rd1"), 0, (Reg("%r2"), Reg("%r3")))


def test_register_declarations_without_a_space():
    """As in the inline PTX of cuda_fp16.hpp."""
    f = code_of("{.reg.b16         hl, hu; .reg .b32 s;mov.b32 {hl,hu}, s;}")
    assert sorted(f.registers.values()) == ["b16", "b16", "b32"]
    assert isinstance(f.code[0].args[0], Vec)


def test_scopes_keep_registers_and_labels_apart():
    f = code_of(""".reg .b32 %r<4>;
      { .reg .pred p; L: setp.eq.s32 p, %r1, 0; @p bra L; }
      { .reg .pred p; L: setp.ne.s32 p, %r1, 0; @!p bra L; }""")
    first, second = f.code[0].args[0], f.code[2].args[0]
    assert first != second
    assert f.code[1].guard == first
    assert f.code[3].guard == second
    assert f.code[3].negated
    assert [f.labels[f.code[i].args[0].name] for i in (1, 3)] == [0, 2]


def test_parameters_have_offsets_and_alignment():
    program, _ = parse(
        HEAD
        + ".visible .entry k(.param .u32 a, .param .align 64 .b8 m[128], .param .u64 .ptr .global .align 16 p) { ret; }"
    )
    assert [(p.name, p.offset, p.size) for p in program.functions["k"].params] == [
        ("a", 0, 4),
        ("m", 64, 128),
        ("p", 192, 8),
    ]


def test_launch_bounds_are_read():
    program, _ = parse(HEAD + ".visible .entry k() .maxntid 128, 1, 1 .reqntid 64 .reqnctapercluster 2, 1, 1 { ret; }")
    f = program.functions["k"]
    assert (f.max_threads, f.block, f.cluster) == (128, (64, 1, 1), (2, 1, 1))


def test_initialisers():
    program, _ = parse(
        HEAD + ".const .align 4 .f32 c[3] = {0f3F800000, 0f40000000};\n.global .align 1 .b8 s[4] = {104, 105};"
    )
    assert [v.init for v in program.variables] == [b"\0\0\x80?\0\0\0@\0\0\0\0", b"hi\0\0"]


def test_inline_chains_of_both_compilers():
    path = ROOT / "expert_kernels/flash_fwd_sm80/kernel.cu"
    lines = path.read_text().split("\n")
    for backend in ("nvcc", "nvrtc"):
        compiled = compile_source(
            path.read_bytes(), path=str(path), name_expressions=["flash_fwd_sm80<__half, 64>"], want=("ptx",),
            backend=backend, options=("-lineinfo",),
        )  # fmt: skip
        if compiled.ptx is None:
            pytest.skip(f"{backend} is not here")
        module = load(compiled.ptx)
        code = module.program.functions[module.kernels[0]].code
        copies = [i for i in code if i.op.startswith("cp.async.cg")]
        chain = copies[-1].loc.chain()
        assert [c.function for c in chain] == ["cp_async_16", "load_tile", "load_kv_tile", ""]
        calls = ('asm volatile("cp.async', "cp_async_16(", "load_tile<T, DV>(smem_v", "load_kv_tile<T, D, DV>(")
        for place, call in zip(chain, calls, strict=True):
            assert call in lines[place.line - 1], (place, lines[place.line - 1])


def test_names_do_not_matter(build, flash80):
    """Registers, labels, the kernel and its parameters renamed: the same outputs."""
    shape = Shape(sq=40, sk=100)
    before = flash80(shape, Schedule())
    edits = tuple(
        (old, new)
        for old, new in (
            ("correction", "zz1"),
            ("m_scaled", "zz2"),
            ("load_kv_tile", "zz3"),
            ("swizzle<", "zz4<"),
            ("unsigned swizzle(", "unsigned zz4("),
        )
    )
    after = flash80(shape, Schedule(), edits)
    assert (before.run.outputs["O"] == after.run.outputs["O"]).all()


WORDS = '{ } [ ] ( ) ; , : @ %r1 %p1 mov.u32 ld.global .shared L bra .func .loc 0f3F800000 - + " /* // | !'
PIECES = [".reg .b32 %r<4>", ".entry k", ".loc 1 2 3", ".b8 x[4] = {1,2}", ".param .u64 p", ".param .u4 p", "\n"]
TOKENS = st.sampled_from([*WORDS.split(" "), *PIECES])


@given(st.lists(TOKENS, max_size=60).map(" ".join) | st.text(max_size=200))
@settings(max_examples=150, deadline=None)
def test_reading_never_raises(text):
    for whole in (text, HEAD + ".visible .entry k(.param .u64 p0) {\n" + text + "\n}"):
        program, diagnostics = parse(whole)
        assert isinstance(program.kernels, tuple)
        assert all(d.code == "CB511" for d in diagnostics)


@given(st.integers(0, 10_000), st.sampled_from(["", ";", "}", "%r1", "ret;"]))
@settings(max_examples=60, deadline=None)
def test_a_damaged_module_is_read(position, change):
    text = HEAD + ".visible .entry k(.param .u64 p0) {\n.reg .b32 %r<4>;\nL: add.s32 %r1, %r2, 3; @%p1 bra L; ret;\n}\n"
    position %= len(text)
    load(text[:position] + change + text[position + 1 :])


def test_a_kernel_of_unreadable_ptx_does_not_run():
    module = load(HEAD + ".visible .entry k() { mov.u32 %r1, [; ret; }")
    run = module.launch("k", (1,), (32,), [])
    assert [f.code for f in run.findings] == ["CB511"]
    assert re.search(r"line \d+", run.findings[0].message)
