"""The command line itself: help, usage errors, where results may be written, doctor."""

from __future__ import annotations

import json
import os
import stat
import subprocess
import sys
from pathlib import Path

import pytest

from cubridge_engine.cli import doctor
from cubridge_engine.cli.arguments import BadArgument, archs_of, bindings_of
from cubridge_engine.cli.main import COMMANDS
from cubridge_engine.cli.written import check_target, write_atomically


@pytest.mark.parametrize("argv", [[], ["nothing"], ["adapt"], ["adapt", "a.cu"], ["lift", "a.cu", "--format", "sarif"]])
def test_wrong_usage_is_exit_code_2(cubridge, argv: list[str]) -> None:
    code, _, err = cubridge(*argv)
    assert code == 2
    assert "usage" in err


@pytest.mark.parametrize("command", sorted(COMMANDS))
def test_every_command_has_help(cubridge, command: str) -> None:
    code, out, _ = cubridge(command, "--help")
    assert code == 0
    assert command in out


def test_set_takes_numbers() -> None:
    assert bindings_of(["causal=1", "scale=0.5", "flag=true", "w=-3"]) == {
        "causal": 1,
        "scale": 0.5,
        "flag": 1,
        "w": -3,
    }


@pytest.mark.parametrize("text", ["causal", "causal=", "=1", "a b=1", "x=one"])
def test_a_bad_set_is_named(text: str) -> None:
    with pytest.raises(BadArgument) as bad:
        bindings_of([text])
    assert bad.value.diagnostic.code == "CB005"
    assert text in bad.value.diagnostic.message


def test_archs() -> None:
    assert archs_of("sm_80, sm_90a") == ["sm_80", "sm_90a"]
    assert archs_of(None) is None
    with pytest.raises(BadArgument) as bad:
        archs_of("sm_80,ampere")
    assert bad.value.diagnostic.code == "CB008"


def test_an_existing_file_needs_force_and_the_kernel_is_never_overwritten(tmp_path: Path) -> None:
    kernel, other = tmp_path / "k.cu", tmp_path / "o.cu"
    kernel.write_text("k")
    other.write_text("o")
    with pytest.raises(BadArgument) as bad:
        check_target(other, kernel, False)
    assert bad.value.diagnostic.code == "CB002"
    check_target(other, kernel, True)
    with pytest.raises(BadArgument) as bad:
        check_target(tmp_path / "." / "k.cu", kernel, True)
    assert bad.value.diagnostic.code == "CB003"


def test_writing_is_whole_or_nothing(tmp_path: Path) -> None:
    target = tmp_path / "new" / "out.cu"
    write_atomically(target, b"text")
    assert target.read_bytes() == b"text"
    assert not stat.S_IMODE(target.stat().st_mode) & 0o111
    assert os.listdir(target.parent) == ["out.cu"]
    folder = tmp_path / "file"
    folder.write_text("no folder")
    with pytest.raises(OSError):  # noqa: PT011 - which one depends on the system
        write_atomically(folder / "out.cu", b"text")


def test_doctor_lists_what_is_there(cubridge) -> None:
    code, out, _ = cubridge("doctor", "--format", "json")
    data = json.loads(out)
    names = {check["name"]: check for check in data["checks"]}
    assert {"python", "torch", "tree-sitter-cuda", "NVRTC", "nvcc", "GPU", "cache"} <= set(names)
    assert names["torch"]["ok"]
    assert all(check["fix"] for check in data["checks"])
    assert code in (0, 3)


def test_doctor_says_how_to_install_what_is_missing(cubridge, monkeypatch) -> None:
    missing = lambda: doctor._package("no-such-package-here", "no_such", "a test", required=True)  # noqa: E731
    monkeypatch.setattr(doctor, "CHECKS", (missing,))
    code, out, _ = cubridge("doctor")
    assert code == 3
    assert "pip install no-such-package-here" in out
    assert "MISSING" in out


def test_the_command_starts_without_torch_numpy_or_pydantic() -> None:
    code = (
        "import sys, cubridge_engine.cli.main as m; m.build_parser();"
        "bad = {'torch', 'numpy', 'pydantic'} & set(sys.modules); sys.exit(str(bad) if bad else 0)"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
