"""What is read out of a program's text: kinds, axes, bytes, how often, phase, line, and what runs beside."""

from collections import Counter
from pathlib import Path

import pytest

from meshtrain.audit.collectives import Found, read_collectives
from meshtrain.audit.hlo import parse_instruction, parse_module
from meshtrain.audit.overlap import module_flops

# As XLA prints it, cut down by hand: a layer loop of 3 with a gather beside a product and a branch; behind it a permute
# and a combined sum of two arrays.
PROGRAM = (Path(__file__).parent / "small.hlo").read_text()
MESH = {"data": 4, "tensor": 2}


@pytest.fixture(scope="module")
def found() -> list[Found]:
    return read_collectives(parse_module(PROGRAM), MESH)


def test_all_are_found(found: list[Found]) -> None:
    assert Counter((one.kind, one.partners.axes, one.bytes, one.times, one.branch) for one in found) == {
        ("all_gather", ("data",), 128, 3, False): 1,
        ("reduce_scatter", ("tensor",), 256, 3, False): 1,
        ("all_to_all", ("tensor",), 32, 3, True): 1,
        ("permute", ("data",), 32, 1, False): 1,
        ("all_reduce", ("data", "tensor"), 128, 1, False): 1,  # a combined sum, taken apart
        ("all_reduce", ("data", "tensor"), 16, 1, False): 1,
    }


def test_wire_bytes(found: list[Found]) -> None:
    by_kind = {one.kind: one.wire_bytes for one in found if one.bytes > 16}
    assert by_kind == {
        "all_gather": 3 * 128 * 3 / 4, "reduce_scatter": 3 * 256 / 2, "all_to_all": 3 * 32 / 2, "permute": 32,
        "all_reduce": 2 * 128 * 7 / 8,
    }  # fmt: skip


def test_phases_and_lines(found: list[Found]) -> None:
    assert {one.kind: (one.phase, one.source) for one in found} == {
        "all_gather": ("forward", "model/block.py:83"),
        "reduce_scatter": ("forward", ""),  # the compiler's own: by the loop that it stands in
        "all_to_all": ("forward", "model/block.py:83"),
        "permute": ("backward", "model/block.py:83"),
        "all_reduce": ("update", "step/train.py:57"),
    }


def test_overlap(found: list[Found]) -> None:
    gather, scatter = (next(one for one in found if one.kind == kind) for kind in ("all_gather", "reduce_scatter"))
    assert gather.beside.flops == 2 * 16 * 16 * 8
    assert gather.beside.asynchronous
    assert scatter.beside.flops == 0
    assert module_flops(parse_module(PROGRAM)) == 3 * 2 * 16 * 16 * 8


def test_a_loop_without_a_count_is_said() -> None:
    unknown = read_collectives(parse_module(PROGRAM.replace("known_trip_count", "unknown")), MESH)
    assert {one.counted for one in unknown if one.kind == "all_gather"} == {False}


@pytest.mark.parametrize("shape", ["f32[36]{0}", "((f32[36]{0}), f32[36]{0})"])
def test_the_start_of_a_sum_prints_its_result_alone_or_beside_what_goes_in(shape: str) -> None:
    """JAX 0.10 and 0.12; a program of either sends the same bytes."""
    before = next(line for line in PROGRAM.splitlines() if "ROOT %all-reduce =" in line)
    start = before.replace("ROOT ", "").replace("f32[36]{0} all-reduce(", f"{shape} all-reduce-start(")
    end = "  ROOT %done = f32[36]{0} all-reduce-done(%all-reduce)"
    sums = read_collectives(parse_module(PROGRAM.replace(before, f"{start}\n{end}")), MESH)
    assert [one.bytes for one in sums if one.kind == "all_reduce"] == [128, 16]
    both = start.replace("(%wrapped_concatenate)", "(%wrapped_concatenate, %wrapped_concatenate)")
    both = both.replace(shape, "((f32[36], f32[36]), (f32[36], f32[36]))" if "((" in shape else "(f32[36], f32[36])")
    sums = read_collectives(parse_module(PROGRAM.replace(before, f"{both}\n{end}")), MESH)
    assert [one.bytes for one in sums if one.kind == "all_reduce"] == [144, 144]


def test_a_permute_over_another_axis_is_told_apart() -> None:
    other = PROGRAM.replace("{{0,2},{1,3},{2,4},{3,5},{4,6},{5,7}}", "{{0,1},{2,3}}")
    permute = next(one for one in read_collectives(parse_module(other), MESH) if one.kind == "permute")
    assert (permute.partners.axes, permute.partners.share) == (("tensor",), 0.25)


def test_lines_that_are_no_instruction() -> None:
    assert parse_instruction("ENTRY %main (a: f32[]) -> f32[] {") is None
    assert parse_instruction("") is None
    with pytest.raises(ValueError, match="no ENTRY"):
        parse_module("nothing")
