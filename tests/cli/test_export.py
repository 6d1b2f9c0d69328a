"""`cubridge export` and `cubridge bench` as commands."""

from __future__ import annotations

from pathlib import Path

import pytest

from cubridge_engine.cli.bench import shape_of
from cubridge_engine.cli.main import main
from cubridge_engine.pipeline.export import export_kernel
from cubridge_engine.pipeline.files import Options

ROOT = Path(__file__).parents[2]
SCALAR = ROOT / "expert_kernels" / "flash_fwd_scalar" / "kernel.cu"


def test_a_module_is_written_and_not_overwritten(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    target = tmp_path / "scalar.py"
    assert main(["export", str(SCALAR), "--torch", str(target)]) == 0
    out = capsys.readouterr().out
    assert "kernel.cu (flash_fwd_scalar) as torch.ops.cubridge.scalar" in out
    assert "from scalar import scalar; o = scalar(q, k, v)" in out
    text = target.read_text()
    compile(text, "scalar.py", "exec")
    assert "def scalar(q, k, v, *, scale=None, return_lse=False):" in text
    assert main(["export", str(SCALAR), "-o", str(target)]) == 2
    assert "CB002" in capsys.readouterr().err
    assert main(["export", str(SCALAR), "-o", str(target), "--force", "--name", "other", "--set", "scale=0.5"]) == 0
    assert "def other(q, k, v, *, return_lse=False):" in target.read_text()
    assert 'float32("scale", 0.5)' in target.read_text()


def test_what_cannot_be_exported_is_refused(tmp_path: Path) -> None:
    plain = tmp_path / "plain.cu"
    plain.write_text("__global__ void k(float* x) { x[0] = 1.f; }\n")
    renamed = tmp_path / "renamed.cu"
    renamed.write_text(SCALAR.read_text().replace("float* __restrict__ LSE", "float* __restrict__ LSE_out"))
    with_header = tmp_path / "with_header.cu"
    with_header.write_text('#include "not_there.cuh"\n' + SCALAR.read_text())
    adapted = tmp_path / "adapted.cu"
    adapted.write_text("// cubridge: spec s.py\n// cubridge: set scale=0.125\n" + SCALAR.read_text())
    for kernel, name, options, code in (
        (plain, "out", Options(), "CB670"),
        (renamed, "out", Options(), "CB670"),
        (with_header, "out", Options(), "CB675"),
        (adapted, "out", Options(), "CB672"),
        (adapted, "out", Options(head_dim=48), None),
        (SCALAR, "two words", Options(), "CB676"),
        (SCALAR, "stride", Options(), "CB676"),
        (SCALAR, "out", Options(bindings={"window": 3}), "CB673"),
        (SCALAR, "out", Options(kernel_name="k"), "CB025"),
        (tmp_path / "missing.cu", "out", Options(), "CB001"),
    ):
        done = export_kernel(str(kernel), "out.py", name, options)
        assert [d["code"] for d in done.diagnostics] == ([code] if code else [])
        assert (done.text is None) == (code is not None) == (done.exit_code == 1)


def test_a_scale_of_the_header_holds_at_its_head_dimension(tmp_path: Path) -> None:
    adapted = tmp_path / "adapted.cu"
    header = "// cubridge: spec s.py\n// cubridge: set scale=0.125\n// cubridge: widths 64\n"
    header += "// cubridge: report at D = 32 it was executed with scale = 0.25\n"
    adapted.write_text(header + SCALAR.read_text())
    target = tmp_path / "out.py"
    text = export_kernel(str(adapted), str(target), None, Options()).text
    assert text is not None
    assert "SCALES = {64: 0.125, 32: 0.25}" in text
    assert "flash_fwd_scalar<64>" in text
    assert "flash_fwd_scalar<128>" not in text, "at 128 the scale is another one"


def test_shapes() -> None:
    assert shape_of("B=4,H=32, S=4096") == {"B": 4, "H": 32, "S": 4096}
    assert shape_of(None) == {}


@pytest.mark.parametrize("text", ["", "B", "B=x", "Q=3", "B=0", "element_bytes=2"])
def test_what_is_no_shape(text: str, capsys: pytest.CaptureFixture[str]) -> None:
    command = ["bench", str(SCALAR), str(ROOT / "examples" / "causal_sdpa.py"), "--shape", text]
    assert main(command) == 2
    assert "CB012" in capsys.readouterr().err


def test_rounds_are_counted(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["bench", str(SCALAR), str(ROOT / "examples" / "causal_sdpa.py"), "--rounds", "0"]) == 2
    assert "'0' is not a number above 0" in capsys.readouterr().err
