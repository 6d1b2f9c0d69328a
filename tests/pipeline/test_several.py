"""An adaptation of a kernel that is in headers of the user: hunks for each file, and each only for the text it was
made from.
"""

from __future__ import annotations

import hashlib
import os
from pathlib import Path

import pytest

from cubridge_engine.compile.toolchain import find_nvcc, find_nvrtc
from cubridge_engine.lower import Hunk, apply_hunks
from cubridge_engine.pipeline.adapt import adapt
from cubridge_engine.pipeline.check import verify_kernel
from cubridge_engine.pipeline.several import taken_apart
from cubridge_engine.source import flatten, overlay, parse, with_includes
from cubridge_engine.verify.subject import VerifyOptions

EXPERT = Path("expert_kernels/flash_fwd_scalar")
SPEC = Path("tests/ladder/specs/softcap_window_sink.py")
FULL = os.environ.get("CUBRIDGE_LADDER") == "all"
CHECKS = VerifyOptions(archs=("sm_80",), use_gpu=False, use_simulator=FULL)

pytestmark = pytest.mark.skipif(find_nvrtc() is None and find_nvcc() is None, reason="no compiler")


def project(folder: Path) -> Path:
    """The scalar kernel as a project has it: sizes and the kernel in headers, the launcher in the file."""
    text = (EXPERT / "kernel.cu").read_text()
    kernel, launcher = text.index("// grid = (ceil"), text.index("#ifndef __CUDACC_RTC__\n\n// Inst")
    (folder / "parts").mkdir()
    (folder / "parts" / "tiles.cuh").write_text("#pragma once\n" + text[:kernel])
    body = text[kernel:launcher].replace("\n", "\r\n")
    guarded = f'#ifndef FLASH_CUH\r\n#define FLASH_CUH\r\n#include "tiles.cuh"\r\n\r\n{body}#endif\r\n'
    (folder / "parts" / "flash.cuh").write_bytes(guarded.encode())
    (folder / "other.cu").write_text('#include "parts/flash.cuh"\n')
    (folder / "kernel.cu").write_text('#include "parts/flash.cuh"\n\n' + text[launcher:])
    (folder / "contract.toml").write_text((EXPERT / "contract.toml").read_text())
    return folder / "kernel.cu"


@pytest.fixture(scope="module")
def done(tmp_path_factory):
    kernel = project(tmp_path_factory.mktemp("project"))
    return kernel, adapt(str(kernel), str(SPEC), checks=CHECKS)


def test_the_hunks_are_those_of_the_files(done):
    kernel, result = done
    assert result.level == ("simulated" if FULL else "compiled"), result.diagnostics
    (header,) = result.files
    assert header.name == "parts/flash.cuh"
    for path, digest, hunks, text in (
        (kernel, result.base_sha256, result.hunks, result.text),
        (Path(header.path), header.base_sha256, header.hunks, header.text),
    ):
        data = path.read_bytes()
        assert hashlib.sha256(data).hexdigest() == digest
        assert hunks
        assert all(data[h.start : h.end].decode() == h.old for h in hunks)
        assert all(data.count(b"\n", 0, h.start) == h.line for h in hunks)
        made = apply_hunks(data, [Hunk(h.start, h.end, h.old, h.new, h.why) for h in hunks]).decode()
        assert made == "".join(line for line in text.splitlines(True) if not line.startswith("// cubridge: "))
    assert any("tanhf" in h.new for h in header.hunks)
    assert any("sinks" in h.new for h in result.hunks), "the launcher passes the new parameter"
    assert "// cubridge: report changed with it: parts/flash.cuh" in result.text
    assert "\n" not in header.text.replace("\r\n", ""), "the header keeps its line endings"
    assert "+++ b/kernel.cu" in result.diff
    assert "+++ b/parts/flash.cuh" in result.diff


def test_who_else_includes_a_changed_header_is_said(done):
    _, result = done
    (found,) = [d for d in result.diagnostics if d["code"] == "CB035"]
    assert "other.cu" in found["message"]
    assert found["span"]["path"].endswith("flash.cuh")
    assert [d["span"]["path"].rpartition("/")[2] for d in result.diagnostics if d["code"] == "CB124"] == ["flash.cuh"]


def test_the_result_verifies_with_its_header_beside_it(done, tmp_path):
    kernel, result = done
    (tmp_path / "parts").mkdir()
    (tmp_path / "kernel.cu").write_text(result.text)
    (tmp_path / "parts" / "flash.cuh").write_bytes(result.files[0].text.encode())
    for name in ("parts/tiles.cuh", "contract.toml"):
        (tmp_path / name).write_bytes((kernel.parent / name).read_bytes())
    again = verify_kernel(str(tmp_path / "kernel.cu"), str(SPEC), checks=CHECKS)
    assert again.level == result.level, again.diagnostics
    # The same text with the window of the original's header: wrong, and said there.
    text = (tmp_path / "parts" / "flash.cuh").read_text()
    assert "sk - sq - 40" in text
    (tmp_path / "parts" / "flash.cuh").write_text(text.replace("sk - sq - 40", "sk - sq - 41"))
    wrong = verify_kernel(str(tmp_path / "kernel.cu"), str(SPEC), checks=CHECKS)
    assert wrong.exit_code == 1
    places = {Path(d["span"]["path"]).name for d in wrong.diagnostics if d["severity"] == "error" and d["span"]}
    assert places <= {"flash.cuh", SPEC.name}
    assert "flash.cuh" in places


def test_a_header_as_the_editor_has_it(tmp_path):
    kernel = project(tmp_path)
    header = tmp_path / "parts" / "flash.cuh"
    text = header.read_text().replace("__global__", "// not a kernel ")
    with overlay({str(header): text}):
        result = adapt(str(kernel), str(SPEC), checks=CHECKS)
    assert result.text is None
    assert "CB023" in {d["code"] for d in result.diagnostics}


def test_a_hunk_across_an_include_is_not_taken_apart(tmp_path):
    (tmp_path / "a.cuh").write_text("int a;\n")
    data = b'int x;\n#include "a.cuh"\nint y;\n'
    flat = flatten(with_includes(parse(str(tmp_path / "k.cu"), data)))
    assert flat is not None
    assert flat.data == b"int x;\nint a;\n\nint y;\n"

    def apart(start, end, new):
        hunk = Hunk(start, end, flat.data[start:end].decode(), new, "test")
        return taken_apart(flat, [hunk], apply_hunks(flat.data, [hunk]))

    assert apart(4, 11, "z") is None
    own, header = apart(4, 5, "z"), apart(11, 12, "b")
    assert own is not None
    assert not own.headers
    assert header is not None
    assert [Path(p).name for p in header.headers] == ["a.cuh"]
    assert header.texts[header.headers[0]] == b"int b;\n"
    assert apart(14, 14, "#pragma once\n") is None, "pasted again it is not the text that was verified"
