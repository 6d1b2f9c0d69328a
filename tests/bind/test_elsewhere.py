"""A kernel in a header: the file of its project that launches it is named, and no other."""

from __future__ import annotations

from pathlib import Path

from cubridge_engine.bind import BindOptions, bind
from cubridge_engine.bind.elsewhere import launch_elsewhere
from cubridge_engine.bind.hints import is_backward

KERNEL = (
    "template <int N> __global__ void attend(const float* a, const float* b, float* c, int what) { c[0] = a[0]; }\n"
)
LAUNCH = '#include "{header}"\nvoid run(int n) {{\n  attend<64><<<n, 64>>>(0, 0, 0, 1);\n}}\n'


def project(root: Path, launched: bool) -> Path:
    """A header with a kernel, a copy that launches its own, and a file that launches that of the header."""
    for name in ("inner", "copy"):
        (root / name).mkdir(parents=True)
    (root / "setup.py").touch()
    (root / "copy/attend_old.cu").write_text(KERNEL + LAUNCH.format(header="other.cuh"))
    if launched:
        (root / "run.cu").write_text(LAUNCH.format(header="inner/attend.cuh"))
    path = root / "inner/attend.cuh"
    path.write_text(KERNEL)
    return path


def test_the_file_that_includes_the_header_and_launches_the_kernel_is_named(tmp_path):
    assert launch_elsewhere(project(tmp_path / "alone", launched=False), "attend") is None
    header = project(tmp_path / "whole", launched=True)
    assert launch_elsewhere(header, "attend") == (tmp_path / "whole/run.cu", 2)
    assert launch_elsewhere(header, "attends") is None
    bound = bind(header, None, BindOptions(trial=False, seconds=20))
    assert bound.contract is None
    told = next(d for d in bound.diagnostics if d.code == "CB635")
    assert "run.cu, line 3" in told.message
    assert "--kernel attend" in told.help


def test_a_file_that_launches_its_kernel_itself_is_sent_nowhere(tmp_path):
    path = tmp_path / "copy.cu"
    path.write_text(KERNEL + LAUNCH.format(header="x.cuh"))
    assert launch_elsewhere(path, "attend") is None


def test_kernels_of_gradients_are_known_by_their_names():
    backward = ("flash_bwd_kernel", "qknorm_bwd_k", "attn_tf32_dkv_kernel", "attn_dqb", "backward", "grad_q")
    assert [name for name in backward if not is_backward(name)] == []
    forward = ("flash_fwd_kernel", "attend", "decode_kernel", "dquant_kernel", "attn_dq8", "embedding_bw")
    assert [name for name in forward if is_backward(name)] == []
