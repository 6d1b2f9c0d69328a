"""What the panels of an editor ask: the tree, the pipeline, the mask, the programs before and after an adaptation."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

from .conftest import Session, Start, until

pytestmark = [pytest.mark.timeout(600), pytest.mark.asyncio(loop_scope="module")]

WAIT = "    cp_async_wait<0>();\n    __syncthreads();"


def nodes(roots: list[dict[str, Any]]) -> Iterator[dict[str, Any]]:
    for root in roots:
        yield root
        yield from nodes(root["children"])


def at_line(text: str, needle: str) -> int:
    return next(number for number, line in enumerate(text.split("\n")) if needle in line)


async def test_the_tree_has_the_phases_in_their_order(shared: Session) -> None:
    shared.open()
    reply = await shared.command("cubridge.irTree")
    assert (reply["state"], reply["stale"], reply["name"]) == ("done", False, "flash_fwd_sm80")
    assert [root["id"] for root in reply["roots"]] == ["parameters", "buffers", "prologue", "kv_loop", "epilogue"]
    loop = [node["phase"] for node in reply["roots"][3]["children"]]
    assert loop == ["sync", "load", "scores", "mask", "softmax", "output"]
    ids = [node["id"] for node in nodes(reply["roots"])]
    assert len(ids) == len(set(ids))


async def test_nodes_point_at_their_lines(shared: Session) -> None:
    text = shared.open()
    reply = await shared.command("cubridge.irTree")
    product = next(n for n in nodes(reply["roots"]) if n["detail"].startswith("mma qk"))
    assert product["lines"][0] == at_line(text, "mma_m16n8k16<T>(s[2 * np]")
    assert "Q·Kᵀ" in product["title"]


async def test_nodes_keep_their_identity_when_lines_move(shared: Session) -> None:
    text = shared.open()
    before = await shared.command("cubridge.irTree")
    line = at_line(text, "for (int tile")
    lines = text.split("\n")
    shared.change("\n".join([*lines[:line], "    // one", "    // two", *lines[line:]]))
    after = await shared.command("cubridge.irTree")
    old = {node["id"]: node["lines"] for node in nodes(before["roots"])}
    new = {node["id"]: node["lines"] for node in nodes(after["roots"])}
    assert set(new) == set(old)
    moved = {key for key in old if new[key] != old[key]}
    assert "kv_loop" in moved
    assert all(new[key][0] == old[key][0] + 2 for key in moved if old[key][0] >= line)
    assert after["version"] == before["version"] + 1


async def test_a_file_that_is_not_open_is_refused(shared: Session) -> None:
    for command in ("cubridge.irTree", "cubridge.pipeline", "cubridge.maskMap"):
        reply = await shared.command(command, kernel=(shared.folder / "other.cu").as_uri())
        assert (reply["state"], reply["message"]) == ("refused", "This kernel is not open in the editor.")
        assert (await shared.command(command, kernel=3))["message"].startswith("CB072")


async def test_the_pipeline_of_a_sound_kernel(shared: Session) -> None:
    shared.open()
    reply = await shared.command("cubridge.pipeline")
    assert (reply["tiles"], reply["faults"], reply["stopped"]) == (4, [], "")
    assert [lane["title"] for lane in reply["lanes"]] == ["Qs", "Ks stage 0", "Ks stage 1", "Vs stage 0", "Vs stage 1"]
    first = [step["phase"] for step in reply["steps"] if step["tile"] == 1 and step["kind"] in ("compute", "product")]
    assert first == ["scores", "mask", "softmax", "output"]
    held = [stretch["holds"] for stretch in reply["lanes"][1]["stretches"] if stretch["state"] == "visible"]
    assert held == ["K 0", "K 2"]
    for lane in reply["lanes"]:
        for stretch in lane["stretches"]:
            assert 0 <= stretch["written"] <= stretch["from"] <= stretch["to"] <= len(reply["steps"])
            assert reply["steps"][stretch["written"]]["kind"] == "copy"


@pytest.mark.parametrize(("kept", "code"), [("    __syncthreads();", "CB502"), ("    cp_async_wait<0>();", "CB509")])
async def test_a_missing_wait_or_barrier_is_drawn_where_it_happens(shared: Session, kept: str, code: str) -> None:
    text = shared.path.read_text()
    assert WAIT in text
    broken = text.replace(WAIT, kept)
    shared.open(broken)
    reply = await shared.command("cubridge.pipeline")
    fault = next(item for item in reply["faults"] if item["code"] == code)
    assert fault["lines"][0] == at_line(broken, "mma_m16n8k16<T>(s[2 * np]")
    assert len(fault["at"]) == 4  # once per tile
    place = fault["at"][0]
    step = reply["steps"][place["step"]]
    assert (step["kind"], step["tile"], place["lane"]) == ("product", 0, "Ks[0]")
    assert place["lane"] in step["touches"]
    assert reply["steps"][place["other"]]["kind"] == "copy"


async def test_a_switch_can_be_turned_on(shared: Session) -> None:
    shared.open()
    assert (await shared.command("cubridge.pipeline"))["flags"] == {"causal": 0}
    assert (await shared.command("cubridge.pipeline", flags={"causal": 1}))["flags"] == {"causal": 1}


async def test_the_mask_of_a_kernel(shared: Session) -> None:
    shared.open()
    reply = await shared.command("cubridge.maskMap", sizes={"Sq": 192, "Sk": 192})
    assert reply["cells"] == ["PEE", "FPE", "FFP"]
    assert reply["ranges"] == [[0, 64], [0, 128], [0, 192]]
    assert reply["counts"] == {"empty": 3, "partial": 3, "full": 3}
    full = await shared.command("cubridge.maskMap", sizes={"Sq": 192, "Sk": 192}, flags={"causal": 0})
    assert full["cells"] == ["FFF"] * 3
    assert full["density"] == 1.0


async def test_tiles_of_a_kernel_are_its_own_and_it_is_said(shared: Session) -> None:
    shared.open()
    reply = await shared.command("cubridge.maskMap", sizes={"Sq": 128, "Sk": 128, "Br": 32})
    assert (reply["sizes"]["Br"], len(reply["cells"])) == (64, 2)
    assert "Br = 64" in reply["notes"][0]


@pytest.mark.parametrize(
    ("sizes", "why"),
    [
        ({"Sq": 0}, "Lengths"),
        ({"Sq": 1 << 20, "Sk": 1 << 20}, "Lengths"),
        ({"h": -1}, "count from 0"),
        ({"D": 3}, "CB072"),
    ],
)
async def test_sizes_that_make_no_sense_are_refused(shared: Session, sizes: dict[str, int], why: str) -> None:
    shared.open()
    reply = await shared.command("cubridge.maskMap", sizes=sizes)
    assert reply["state"] == "refused"
    assert why in reply["message"]


async def test_the_mask_of_a_spec_is_read_in_the_worker(shared: Session) -> None:
    spec = shared.spec("gemma2_softcap_window.py")
    reply = await shared.command("cubridge.maskMap", kernel=None, spec=spec, sizes={"Sq": 256, "Sk": 256})
    assert reply["state"] == "done", reply
    assert reply["cells"] == ["PEEE", "PPEE", "EPPE", "EEPP"]
    refused = await shared.command("cubridge.maskMap", kernel=None, spec=spec, sizes={"h": 99})
    assert refused["state"] == "refused"
    assert "heads 0 to" in refused["message"]


async def test_without_trust_no_spec_is_run(start: Start) -> None:
    async with start("extension", trusted=False) as session:
        reply = await session.command("cubridge.maskMap", kernel=None, spec=session.spec("gemma2_softcap_window.py"))
        assert (reply["state"], reply["message"][:5]) == ("refused", "CB071")


async def test_programs_are_compared_after_an_adaptation_only(shared: Session) -> None:
    shared.open()
    spec = shared.spec("causal_bottom_right.py")
    reply = await shared.command("cubridge.irDiff", spec=spec)
    assert (reply["state"], reply["before"]) == ("refused", "")
    options = {"use_simulator": False, "use_gpu": False}
    adapted = await shared.command("cubridge.adapt", spec=spec, options=options)
    assert adapted["state"] == "done", adapted["message"]
    reply = await shared.command("cubridge.irDiff", spec=spec)
    assert reply["state"] == "done"
    before, after = reply["before"].split("\n"), reply["after"].split("\n")
    assert before[1] == after[1]
    assert before[1].startswith("kernel flash_fwd_sm80;")
    assert "# line" not in reply["before"] + reply["after"]


async def test_in_a_file_of_two_kernels_the_one_around_the_line_is_meant(shared: Session) -> None:
    first = shared.path.read_text()
    start = first.index("template <typename T, int D, int DV = D>\n__global__")
    second = first[start : first.index("// -----", start)].replace("flash_fwd_sm80", "another")
    text = f"{first}\n{second}"
    shared.open(text)
    line = at_line(text, "    another(")
    await until(lambda: _both_read(shared))
    reply = await shared.command("cubridge.irTree", line=line)
    assert (reply["name"], reply["kernels"]) == ("another", 2)
    assert reply["span"][0] <= line <= reply["span"][1]
    assert (await shared.command("cubridge.irTree", line=0))["name"] == "flash_fwd_sm80"
    assert (await shared.command("cubridge.pipeline", line=line))["name"] == "another"


async def _both_read(session: Session) -> bool:
    return (await session.command("cubridge.irTree"))["kernels"] == 2
