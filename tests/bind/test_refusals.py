"""What cannot be found is said with a code and a way out, or asked; nothing is guessed silently."""

from __future__ import annotations

from pathlib import Path

import pytest

from cubridge_engine.bind import Binding, BindOptions, bind

from .conftest import KERNELS

QUICK = BindOptions(trial=False)
BARE = (
    "__global__ void k(const float* Q, const float* K, const float* V, float* O, int x, float w) { O[0] = Q[x] * w; }\n"
)


def bound(tmp_path: Path, text: str, options: BindOptions = QUICK) -> Binding:
    file = tmp_path / "k.cu"
    file.write_text(text)
    return bind(file, None, options)


def codes(binding: Binding) -> list[str]:
    assert all(d.help for d in binding.diagnostics)
    return [d.code for d in binding.diagnostics]


def test_a_file_that_is_not_there(tmp_path):
    assert codes(bind(tmp_path / "none.cu")) == ["CB615"]


def test_a_file_without_a_kernel(tmp_path):
    assert codes(bound(tmp_path, "int main() { return 0; }\n")) == ["CB623"]


def test_a_kernel_that_is_not_in_the_file(tmp_path):
    found = bound(tmp_path, BARE, BindOptions(kernel="other"))
    assert codes(found) == ["CB624"]
    assert "it has k" in found.diagnostics[0].message


def test_two_kernels_are_a_question(tmp_path):
    found = bound(tmp_path, BARE + BARE.replace("void k(", "void l("))
    assert found.contract is None
    assert [(q.what, q.candidates) for q in found.questions] == [("kernel", ("k", "l"))]


def test_what_names_do_not_say_is_asked_with_candidates(tmp_path):
    found = bound(tmp_path, BARE)
    assert "CB625" in codes(found)
    asked = {q.key: q for q in found.questions}
    assert {"x", "w", "grid", "block"} <= set(asked)
    assert "scale" in asked["w"].candidates
    assert asked["x"].span is not None


def test_answers_make_it_whole(tmp_path):
    answers = {"x": "Sq", "w": "scale", "grid": "B,H,cdiv(Sq,64)", "block": "64", "shared": "0"}
    found = bound(tmp_path, BARE, BindOptions(trial=False, answers=answers))
    assert found.contract is not None
    assert found.contract.grid == ("B", "H", "cdiv(Sq,64)")
    assert {f.what: f.source for f in found.facts}["parameter x"] == "answer"
    assert {f.what: f.source for f in found.facts}["parameter Q"] == "name"


@pytest.mark.parametrize(
    ("key", "value"), [("nothing", "Sq"), ("x", "rubbish"), ("grid", "blockDim"), ("block", "many"), ("dtype", "int4")]
)
def test_an_answer_to_nothing_is_refused(tmp_path, key, value):
    assert "CB631" in codes(bound(tmp_path, BARE, BindOptions(trial=False, answers={key: value})))


def test_a_comment_says_how_it_is_called(tmp_path):
    comment = "// cubridge: Sq=x scale=w grid=cdiv(Sq,32),H,B block=32 shared=128\n"
    found = bound(tmp_path, comment + BARE)
    assert found.contract is not None
    assert (found.contract.block, found.contract.dynamic_shared_bytes) == ((32, 1, 1), "128")
    grid = next(f for f in found.facts if f.what == "grid")
    assert (grid.source, grid.where) == ("comment", "comment at line 1")


def test_an_answer_is_believed_before_a_comment(tmp_path):
    comment = "// cubridge: Sq=x scale=w grid=cdiv(Sq,32),H,B block=32 shared=0\n"
    found = bound(tmp_path, comment + BARE, BindOptions(trial=False, answers={"block": "64"}))
    assert found.contract is not None
    assert found.contract.block == (64, 1, 1)


@pytest.mark.parametrize("pair", ["q=Z", "nonsense=Q", "grid=cdiv(n,2)", "block=x"])
def test_a_wrong_comment_is_refused_at_its_line(tmp_path, pair):
    found = bound(tmp_path, f"\n// cubridge: {pair}\n" + BARE)
    wrong = [d for d in found.diagnostics if d.code == "CB630"]
    assert len(wrong) == 1
    assert wrong[0].span is not None
    assert wrong[0].span.line == 1


def test_the_lines_of_an_adapted_file_are_no_call(tmp_path):
    found = bound(tmp_path, "// cubridge: spec s.py\n// cubridge: set causal=1\n" + BARE)
    assert "CB630" not in codes(found)


def test_a_call_that_computes_something_else_is_shown_with_a_warning(tmp_path):
    text = (KERNELS / "raw_main.cu").read_text().replace("total += weight", "total = weight")
    text = text.replace("const float next = fmaxf(top, score)", "const float next = fmaxf(top, 2.f * score)")
    found = bound(tmp_path, text.replace("/ total", "/ (total + 1.f)"), BindOptions())
    assert "CB626" in codes(found)
    assert found.contract is not None
    assert found.way == "launch"


def test_a_wrong_role_is_not_confirmed(tmp_path):
    swapped = BindOptions(answers={"K": "v", "V": "k"})
    found = bound(tmp_path, (KERNELS / "raw_main.cu").read_text(), swapped)
    assert "CB626" in codes(found)
    assert "none of the forms" in found.tried


def test_user_code_does_not_run_unless_it_may(tmp_path, monkeypatch):
    import cubridge_engine.bind.recorder as recorder

    def never(*_: object) -> None:
        raise AssertionError("user code was run")

    monkeypatch.setattr(recorder, "run_program", never)
    assert bound(tmp_path, (KERNELS / "struct_params.cu").read_text()).contract is None


def test_a_contract_beside_the_file_is_what_counts():
    kernel = Path(__file__).parents[2] / "expert_kernels" / "flash_fwd_sm80" / "kernel.cu"
    found = bind(kernel)
    assert found.contract is not None
    assert {f.source for f in found.facts} == {"contract"}
