"""The estimate's arithmetic by hand, and the sentence on the free width."""

import dataclasses
import json

import pytest

from experiments.preflight import command, estimate, programs, report
from kernels import aot, bundles
from kernels.chips import TPUS

V5E = TPUS["v5e"]
AT = [(0, 0, 0), (0, 1, 0)]
SHAPE = dataclasses.replace(aot.tree_attention_shape("8B", 8, 8192, 30), groups=1)
WAITS = "  %s = f32[25000000]{0} all-reduce(%a), replica_groups={{0,1}}"
RUNS = "  %s = (f32[5000]{0}) all-reduce-start(%a), replica_groups={{0,1}}"
# As the compiler writes the kernel's shape: on lines of their own.
METADATA = "frontend_attributes={kernel_metadata="
METADATA += json.dumps(SHAPE.written(), indent=0) + "}"
CALL = (
    f'  %k = bf16[8] custom-call(%q), custom_call_target="tpu_custom_call", {METADATA}'
)
# To the neighbours of a call the compiler copies its attributes.
NEIGHBOUR = f"  %c = f32[] constant(0), {METADATA}"


def program(*lines: str) -> str:
    return "\n".join(["HloModule f, num_partitions=2", "", *lines])


def times(*lines: str, flops: float = 0.0, moved: float = 0.0, cycles=None, chip=V5E):
    given = cycles or (lambda name, shape: 1.5e6)
    return estimate.times(program(*lines), flops, moved, chip, AT, given)


def test_what_hides_and_what_does_not():
    """100 MB summed by two chips over one link of 50 GB/s: 2 ms on top of the HBM's 3.

    Planted: a maximum of all; a started collective that is added too.
    """
    found = times(WAITS, RUNS, flops=197e9, moved=3 * 819e6)
    assert found.operations == pytest.approx(1e-3) and found.attention == 0
    assert found.waiting == pytest.approx(2e-3)
    assert found.running == pytest.approx(4e-7)
    assert found.step == pytest.approx(5e-3, rel=1e-6)
    assert found.step != pytest.approx(max(found[:1] + found[2:]))
    assert found.step != pytest.approx(5e-3 + found.running, rel=1e-6)
    long = times(RUNS.replace("5000]", "50000000]"), moved=3 * 819e6)
    assert long.step == pytest.approx(4e-3, rel=1e-6)


def test_kernels_take_their_bundles():
    """Two calls of 1.5 million cycles at 1.5 GHz in place of what they declare.

    Planted: the declared operations, which stay in the sum; a third instruction with
    the call's attributes.
    """
    declared = 2 * aot.plan("v5e", SHAPE).cost.flops
    found = times(CALL, NEIGHBOUR, CALL, flops=197e9 + declared)
    assert found.attention == pytest.approx(2e-3)
    assert found.operations == pytest.approx(1e-3)
    assert found.step == pytest.approx(3e-3) != found.step + declared / 197e12
    assert bundles.calls(program(CALL, CALL)) == {SHAPE: 2}
    other = CALL.replace('"nodes": "30"', '"nodes": "31"')
    assert len(bundles.calls(program(CALL, other))) == 2


def test_declared_costs_where_nothing_can_be_counted():
    """Without the clock, and without the compiler's dump."""

    def fails(name, shape):
        raise bundles.BundlesError("no dump")

    unclocked = times(CALL, flops=918e9, chip=TPUS["v6e"])
    for found in (unclocked, times(CALL, flops=197e9, cycles=fails)):
        assert found.attention is None
        assert found.step == pytest.approx(1e-3)


def test_cycles_of_a_call():
    """8 rows of 8 blocks, the last of each with masks, by copy or by bundles."""
    cut = aot.plan("v5e", SHAPE)
    copy = bundles.copy_cycles("v5e", cut.step_bytes)
    assert (cut.blocks, cut.groups, cut.passes) == (8, 1, 1) and 900 < copy < 1000
    slow = bundles.cycles_of("v5e", cut, bundles.Step(2000, 3000))
    assert slow == 8 * (7 * 2000 + 3000)
    fast = bundles.cycles_of("v5e", cut, bundles.Step(10, 3000))
    assert fast == pytest.approx(8 * (7 * copy + 3000))  # planted: bundles alone


def test_ceilings_by_hand():
    """A decoding that reads 819 MB and a cache of 81.9 MB, and is said to move 8.19 GB.

    Planted: the bytes that the compiler counts, as the least.
    """
    found = estimate.Times(1e-4, 2e-4, 1e-2, 4e-4, 0.0)
    program = programs.Program(
        "decode", lambda: None, {}, rows=16, tokens=30, read=819_000_000, beside=8
    )
    row = {"parts": {"cache": 81_900_000}, "seconds": 0.0, "roofline": found.step}
    ceilings = command.ceilings(program, V5E, row, found)
    assert found.step == pytest.approx(10.4e-3)
    assert ceilings["least"] == pytest.approx(1.1e-3 + 0.4e-3) != found.step
    assert ceilings["mbu"] == pytest.approx(1.1 / 10.4)
    assert (ceilings["beside"], ceilings["free"]) == (8, 241)


ROW = {
    "program": "decode, x",
    "plain": 436.4,
    "free": 241,
    "at_free": 105174,
    "beside": 8,
    "tokens": 60,
}


def test_the_sentence_on_free_width():
    wide = report.width(ROW)
    assert wide.startswith("decode, x: verifies 8 x 60 = 480 tokens a copy, 241 are")
    assert "2.0 times" in wide and "30 nodes would be free" in wide
    assert report.width({**ROW, "tokens": 30}) == (
        "decode, x: verifies 8 x 30 = 240 tokens a copy, 241 are free."
    )
    assert "would be" in report.width({**ROW, "tokens": 31})  # planted: 248 of 241
    many = report.width({**ROW, "beside": 256, "tokens": 2})
    assert "120 rows would be free" in many


def test_every_decoding_has_its_sentence():
    """Planted: rows of prefill, and old rows that do not know their copies."""
    other = {**ROW, "program": "decode, y"}
    prefill = {**ROW, "program": "prefill, x"}
    old = {k: v for k, v in ROW.items() if k != "beside"}
    lines = report.bounds([prefill, ROW, other])
    assert [line.split(":")[0] for line in lines[1:]] == ["decode, x", "decode, y"]
    assert lines[0].startswith("A text alone") and len(report.bounds([old])) == 1
    assert report.bounds([{"program": "train"}]) == []


def test_columns_of_time():
    """Planted: a row from before the links were counted."""
    row = {
        "program": "decode",
        "rows": 8,
        "parts": {"params": 2**30},
        "temporaries": 0,
        "need": 2**30,
        "hbm": 2**34,
        "flops": 1e12,
        "bytes": 1e9,
        "seconds": 0.0,
        "collectives": {},
    }
    found = estimate.Times(1e-3, 2e-3, 1e-3, 4e-3, 5e-4)
    new = {**row, "times": found._asdict(), "roofline": found.step}
    cells = [line.split(" | ")[11:14] for line in report.lines([new, row])[2:]]
    assert cells == [["2.00", "4.50", "7.00"], ["—"] * 3]
    decoding = report.lines([{**new, "least": 5.5e-3}])[2]
    assert decoding.split(" | ")[13] == "5.50 to 7.00"
    declared = found._replace(attention=None)
    new = {**row, "times": declared._asdict(), "roofline": declared.step}
    assert report.lines([new])[2].split(" | ")[11] == "declared"
