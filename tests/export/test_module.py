"""The exported module on a machine without a GPU: it refuses in words, and torch.compile sees one operator."""

from __future__ import annotations

import ast
import builtins
from pathlib import Path
from typing import Any

import pytest
import torch
from torch._subclasses.fake_tensor import FakeTensorMode

from cubridge_engine.export.parts import IMPORTS, machinery
from cubridge_engine.export.runtime import check_rows, check_steps, int32
from cubridge_engine.pipeline.export import export_kernel
from cubridge_engine.pipeline.files import Options

from .conftest import KERNELS, Importer, load

SM80 = KERNELS / "flash_fwd_sm80" / "kernel.cu"
GOLDEN = Path(__file__).parent / "flash_fwd_scalar.txt"


def qkv(**changes: Any) -> list[torch.Tensor]:
    shapes = {"q": (2, 4, 70, 64), "k": (2, 2, 100, 64), "v": (2, 2, 100, 64)} | changes
    return [torch.randn(shape, dtype=torch.float16) for shape in shapes.values()]


def test_the_part_that_is_particular_to_a_kernel_reads_like_this() -> None:
    result = export_kernel(str(KERNELS / "flash_fwd_scalar" / "kernel.cu"), "scalar.py", None, Options())
    assert result.text is not None
    assert result.text.partition("# -----")[0] == GOLDEN.read_text()
    assert result.text.endswith(
        'register(OPERATOR, "(Tensor q, Tensor k, Tensor v, float scale) -> (Tensor, Tensor)", SOURCE, forward, fake)\n'
    )


def test_the_module_needs_nothing_of_the_engine() -> None:
    text = machinery()
    assert "cubridge_engine" not in text
    scope = ast.parse(IMPORTS + text)
    stored = {n.id for n in ast.walk(scope) if isinstance(n, ast.Name) and not isinstance(n.ctx, ast.Load)}
    defined = stored | {n.name for n in ast.walk(scope) if isinstance(n, ast.FunctionDef | ast.ClassDef)}
    defined |= {a.arg for n in ast.walk(scope) if isinstance(n, ast.arguments) for a in (*n.args, *n.kwonlyargs)}
    defined |= {a.vararg.arg for a in ast.walk(scope) if isinstance(a, ast.arguments) and a.vararg}
    defined |= {n.name for n in ast.walk(scope) if isinstance(n, ast.ExceptHandler) and n.name}
    defined |= {
        a.asname or a.name for n in ast.walk(scope) if isinstance(n, ast.Import | ast.ImportFrom) for a in n.names
    }
    used = {n.id for n in ast.walk(scope) if isinstance(n, ast.Name) and isinstance(n.ctx, ast.Load)}
    assert used - defined - set(dir(builtins)) == {"HEADERS", "DEFINES"}, "those two stand with the kernel's source"


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"q": (4, 70, 64)}, r"dimensions of q: expected 4: \[B, H, Sq, D\], got 3"),
        (
            {"q": (2, 4, 70, 72), "k": (2, 2, 100, 72), "v": (2, 2, 100, 72)},
            r"head dimension: expected multiples of 16 \(values: of 16\) up to 256, got 72",
        ),
        ({"k": (1, 2, 100, 64)}, r"shape of k: expected \(2, 'any', 'any', 64\), got \(1, 2, 100, 64\)"),
        ({"v": (2, 2, 99, 64)}, r"shape of v: expected \(2, 2, 100, 'any'\), got \(2, 2, 99, 64\)"),
        ({"k": (2, 3, 100, 64), "v": (2, 3, 100, 64)}, "heads of k: expected a divisor of 4, got 3"),
        ({}, "device of q: expected a CUDA device, got cpu"),
    ],
)
def test_wrong_shapes_are_refused(changes: dict[str, Any], message: str, exported: Importer) -> None:
    with pytest.raises(ValueError, match=message):
        exported(SM80).call(*qkv(**changes))


def test_wrong_types_numbers_and_strides_are_refused(exported: Importer) -> None:
    call = exported(SM80).call
    q, k, v = qkv()
    for arguments, options, message in (
        ((q.float(), k, v), {}, "dtype of q: expected torch.float16 or torch.bfloat16, got torch.float32"),
        ((q, k.bfloat16(), v), {}, "dtype of k: expected torch.float16, got torch.bfloat16"),
        ((q, k, v), {"scale": -1.0}, "scale: expected a positive number, got -1.0"),
        ((q, k, v.transpose(2, 3).contiguous().transpose(2, 3)), {}, "stride of the last dimension of v: expected 1"),
    ):
        with pytest.raises(ValueError, match=message):
            call(*arguments, **options)
    with pytest.raises(ValueError, match="alignment of the rows of x: expected 16 bytes, got 4 bytes off"):
        check_rows("x", torch.zeros(2, 66, dtype=torch.float16)[:, :64], 16)
    with pytest.raises(ValueError, match="alignment of the rows of x: expected 16 bytes, got 2 bytes off"):
        check_rows("x", torch.zeros(72, dtype=torch.float16)[1:65].view(1, 64), 16)
    check_rows("x", torch.zeros(1, 66, dtype=torch.float16)[:, :64], 16)
    with pytest.raises(ValueError, match="stride 0 of x: expected 3, got 6"):
        check_steps("x", torch.zeros(2, 6)[:, :3], (0, 1))
    with pytest.raises(ValueError, match="sk: expected a number of 32 bits, got 2147483648"):
        int32("sk", 1 << 31)


def test_shapes_and_layouts_of_results_are_known_without_a_device(exported: Importer) -> None:
    call = exported(SM80).call
    with FakeTensorMode():
        q, k, v = (torch.empty(2, s, 4, 64, dtype=torch.bfloat16, device="cuda").transpose(1, 2) for s in (7, 9, 9))
        o, lse = call(q, k, v, causal=True, return_lse=True)
        assert (o.shape, o.dtype, o.device.type) == (q.shape, torch.bfloat16, "cuda")
        assert o.transpose(1, 2).is_contiguous(), "o lies in memory as q does"
        assert (lse.shape, lse.dtype) == ((2, 4, 7), torch.float32)
        dense = torch.empty(2, 4, 7, 64, dtype=torch.bfloat16, device="cuda")
        assert call(dense, k, v).is_contiguous()


def test_torch_compile_sees_one_operator_in_one_graph(exported: Importer) -> None:
    module = exported(SM80)
    seen: list[str] = []

    def backend(graph: Any, _inputs: Any) -> Any:
        seen.extend(str(node.target) for node in graph.graph.nodes if node.op == "call_function")
        return graph.forward

    torch._dynamo.reset()
    compiled = torch.compile(lambda q, k, v: module.call(q * 2, k, v, causal=True) + 1, backend=backend, fullgraph=True)
    with pytest.raises(ValueError, match="device of q: expected a CUDA device, got cpu"):
        compiled(*qkv())
    assert sum(module.OPERATOR.replace("::", ".") in name for name in seen) == 1
    assert len(seen) <= 4, seen


def test_a_name_is_taken_once(exported: Importer, tmp_path: Path) -> None:
    text = export_kernel(str(SM80), "taken.py", None, Options()).text
    other = export_kernel(str(KERNELS / "flash_fwd_scalar" / "kernel.cu"), "taken.py", None, Options()).text
    assert text is not None
    assert other is not None
    for name, content in (("first.py", text), ("again.py", text), ("second.py", other)):
        (tmp_path / name).write_text(content)
    load(tmp_path / "first.py")
    load(tmp_path / "again.py")  # the same kernel twice is no conflict
    with pytest.raises(ImportError, match=r"another kernel is registered as cubridge::taken; .* --name"):
        load(tmp_path / "second.py")


def test_the_backward_pass_is_an_error(exported: Importer) -> None:
    module = exported(SM80)
    with FakeTensorMode():
        q, k, v = (torch.empty(1, 2, 64, 64, dtype=torch.float16, requires_grad=True) for _ in range(3))
        with pytest.raises(RuntimeError, match="computes the forward pass only"):
            module.call(q, k, v).sum().backward()
