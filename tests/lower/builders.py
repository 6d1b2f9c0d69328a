"""A hand-made lift of flash_fwd_sm80: CuIR text and anchors found by text search, so that lowering is tested by
itself.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, replace
from pathlib import Path

from cubridge_engine.ir.anchors import (
    Anchors,
    CallSite,
    ElementNest,
    EpilogueSite,
    HeadSite,
    LoopSite,
    MaskSite,
    Names,
    ScoreSite,
    SignatureSite,
    SoftmaxSite,
    StateSite,
    TileIndexUse,
    WeightSite,
)
from cubridge_engine.ir.nodes import Kernel
from cubridge_engine.ir.text import parse_kernel
from cubridge_engine.source import parse

ROOT = Path(__file__).parents[2]
SM80 = (ROOT / "expert_kernels" / "flash_fwd_sm80" / "kernel.cu").read_bytes()
STRIDES = [f"{t}_stride_{a}" for t in "qkvo" for a in ("b", "h", "row")]
PARAMS = [
    ("Q", "const T* __restrict__", "q"),
    ("K", "const T* __restrict__", "k"),
    ("V", "const T* __restrict__", "v"),
    ("O", "T* __restrict__", "o"),
    ("LSE", "float* __restrict__", "lse"),
    *[(s, "long long", f"stride:{s[0]}.{s.rsplit('_', 1)[1]}") for s in STRIDES],
    ("sq", "int", "Sq"),
    ("sk", "int", "Sk"),
    ("heads", "int", "H"),
    ("kv_heads", "int", "Hkv"),
    ("scale_log2", "float", "scale_log2"),
    ("causal", "int", "flag"),
]


def sm80_program() -> Kernel:
    """The reference program of the ir tests with this kernel's sizes, parameters and strides."""
    text = (ROOT / "tests" / "ir" / "flash.cuir").read_text()
    text = (
        re.sub(r"  param \d.*\n", "", text)
        .replace("Br=16 Bc=16 D=8", "Br=64 Bc=64 D=64")
        .replace("set D = 8", "set D = 64")
    )
    text = re.sub(r"  strides q = .*\n", "", text)
    text = text.replace("16, 8]", "64, 64]").replace("16, 16]", "64, 64]").replace("+16]", "+64]")
    text = text.replace("* 16", "* 64").replace("// 16", "// 64").replace("+ 15", "+ 63").replace("+ 16", "+ 64")
    text = re.sub(r"\bc\b", "scale_log2", text)
    params = "".join(f'  param {n} {name} : "{ctype}" : {role}\n' for n, (name, ctype, role) in enumerate(PARAMS))
    strides = "".join(f"  strides {t} = {t}_stride_b | {t}_stride_h | {t}_stride_row\n" for t in "qkvo")
    head, tail = text.split("  set D = 64\n")
    return parse_kernel(f"{head}  set D = 64\n{params}{strides}{tail}")


@dataclass(frozen=True)
class HandLift:
    """Kernel and anchors."""

    kernel: Kernel
    anchors: Anchors


class Finder:
    """Spans by text, on any variant of the file."""

    def __init__(self, source):
        self.source = source
        self.text = source.data.decode()

    def at(self, pattern: str, group: int = 0, after: int = 0):
        found = re.compile(pattern).search(self.text, after)
        assert found, pattern
        start = len(self.text[: found.start(group)].encode())
        return self.source.span_of(start, start + len(found[group].encode()))


def sm80_anchors(source, crlf=False, function="exp2_approx") -> Anchors:
    f = Finder(source)
    body = f.at(r"__global__").start
    line = r"[^\n]*\n"
    names = Names({"h": "h", "b": "b", "hk": "hk", "q0": "q0", "Sq": "sq", "Sk": "sk", "scale_log2": "scale_log2"})
    inner = Names({**names.text, "kv0": "kv0", "lane": "(lane % 4)"})
    nest = ElementNest(
        ("#pragma unroll\nfor (int nb = 0; nb < Bc / 8; ++nb)", "#pragma unroll\nfor (int e = 0; e < 4; ++e)"),
        (
            "const int row = q0 + warp * 16 + lane / 4 + 8 * (e / 2);",
            "const int col = kv0 + nb * 8 + 2 * (lane % 4) + (e & 1);",
        ),
        "s[nb][e]",
        "row",
        "col",
    )
    comment = f.at(r"[ \t]*// S = -inf where j >= Sk or")
    condition = f.at(r"if \((col >= sk \|\| \(causal && col > row \+ sk - sq\))\)", 1)
    guard = f.at(r"if \((kv0 \+ Bc > sk \|\| \(causal && kv0 \+ Bc - 1 > q0 \+ sk - sq\))\)", 1)
    statement = f.at(r"if \(col >= sk[^}]*\}")
    fill = f.at(r"s\[nb\]\[e\] = (-INFINITY);", 1)
    definition = f.at(r"(?:const )?int n_tiles = [^;]*;")
    tile = f.at(r"k_stride_row, v_stride_row, (0), sk\)", 1)
    loop = f.at(r"for \(int tile = (0);", 1)
    hi = f.at(r"tile < (n_tiles);", 1)
    m, total = f.at(r"m\[r\] = (-INFINITY);", 1), f.at(r"l\[r\] = (0\.f);", 1)
    indent = comment and f.source.data[comment.start : comment.end].decode()
    indent = indent[: len(indent) - len(indent.lstrip())]
    setup = f.at(r"[ \t]*const unsigned smem_q")
    setup_text = f.source.data[setup.start : setup.end].decode()
    setup_indent = setup_text[: len(setup_text) - len(setup_text.lstrip())]
    kernel_list = f.at(r"float scale_log2, int causal(?=\))")
    launcher_list = f.at(r"bool causal, cudaStream_t stream(?=\))")
    launch = f.at(r"static_cast<int>\(causal\)(?=\);)")
    signature_text = f.at(r"flash_fwd_sm80\(const T[^{]*?int causal(?=\))", after=0)
    launcher_text = f.at(r"launch_flash_fwd_sm80\(const T[^{]*?stream(?=\))")
    weight = f.at(rf"({function}\(s\[nb\]\[e\][^;]*);", 1)
    del line, crlf
    return Anchors(
        score=(ScoreSite(comment.start, indent, nest, inner, "scale_log2", comment),),
        mask=(MaskSite(condition, True, statement, fill, guard, nest, inner),),
        kv_loop=LoopSite(
            loop, "tile", loop, hi, "n_tiles", definition.end, setup_indent, (TileIndexUse(tile, "tile"),), names
        ),
        state=(StateSite("m", m, m, None, 4, inner), StateSite("l", total, total, None, 4, inner)),
        epilogue=EpilogueSite(f.at(r"inv_l\[r\] = (l\[r\] == 0\.f \? [^;]*);", 1), True, None, inner),
        head=HeadSite(
            f.at(r"const int hk = ([^;]*);", 1), replace(names, text={**names.text, "H": "heads", "Hkv": "kv_heads"}), 2
        ),
        signature=SignatureSite("flash_fwd_sm80", kernel_list.end, ", ", signature_text),
        launchers=(SignatureSite("launch_flash_fwd_sm80", launcher_list.end, ", ", launcher_text),),
        calls=(CallSite(launch.end, "launch_flash_fwd_sm80", launch),),
        setup_offset=setup.start,
        setup_indent=setup_indent,
        setup_names=names,
        softmax=SoftmaxSite(
            (WeightSite(weight, "s[nb][e]", "exp2", function),), (), (), (), f.source.span_of(body, body)
        ),
    )


def hand_lift(data: bytes = SM80, function="exp2_approx"):
    """(lifted, source) of a variant of flash_fwd_sm80."""
    source = parse("flash_fwd_sm80/kernel.cu", data)
    return HandLift(sm80_program(), sm80_anchors(source, function=function)), source
