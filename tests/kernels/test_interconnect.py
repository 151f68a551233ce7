"""Collectives by hand: their devices, the bytes they send, their time on the links."""

import pytest

from kernels import hlo, interconnect
from kernels.chips import TPUS

V5E, V5P = TPUS["v5e"], TPUS["v5p"]
HEADER = "HloModule jit_f, is_scheduled=true, num_partitions=16\n"
TWO_BLOCKS = ((0, 1, 2, 3, 4, 5, 6, 7), (8, 9, 10, 11, 12, 13, 14, 15))
# 16 chips, of which the first eight are a block of 2 x 4.
SQUARE = [(x, y, 0) for x in range(4) for y in range(4)]

FORMS = {
    "replica_groups={{0,1,2,3,4,5,6,7},{8,9,10,11,12,13,14,15}}, x": TWO_BLOCKS,
    "replica_groups=[2,8]<=[16], x": TWO_BLOCKS,
    "replica_groups=mesh['axis_0'=2,'axis_1'=8] {'axis_1'}, x": TWO_BLOCKS,
    "replica_groups=mesh['a'=8,'b'=1,'c'=2], device_ids=([2,8]T(1,0)) {'a'}, x": (
        TWO_BLOCKS
    ),
    "replica_groups=[8,2]<=[2,8]T(1,0), x": tuple((i, i + 8) for i in range(8)),
    "replica_groups=mesh['axis_0'=2,'axis_1'=8] {'axis_0'}, x": (
        tuple((i, i + 8) for i in range(8))
    ),
    "replica_groups={}, x": (tuple(range(16)),),
    "channel_id=1": (tuple(range(16)),),
}


@pytest.mark.parametrize("form", FORMS)
def test_groups_of_every_form(form):
    assert hlo.groups(f"%a = f32[8]{{0}} all-reduce(%b), {form}", 16) == FORMS[form]


@pytest.mark.parametrize(
    "line",
    [
        "%a = f32[8] all-reduce(%b), replica_groups=<a new form>",
        "%a = f32[8] all-reduce(%b), replica_groups=mesh['a'=4] {'a':(1)2}",
        "%a = f32[8] collective-permute(%b), channel_id=1",
    ],
)
def test_an_unknown_form_is_an_error(line):
    """Planted: groups that would silently count as all devices, or as one."""
    with pytest.raises(ValueError, match="not understood"):
        hlo.groups(line, 4)


PAIRS, ROWS = "replica_groups=[8,2]<=[2,8]T(1,0)", "replica_groups=[2,8]<=[16]"
LISTS = "replica_groups={{0,1,2,3,4,5,6,7},{8,9,10,11,12,13,14,15}}"
TURNS = "source_target_pairs={{0,1},{1,0}}"
PROGRAM = (
    HEADER
    + f"""
%start (p: f32[16,1]) -> (f32[32,1], u32[]) {{
  %early = f32[32,1]{{1,0}} all-gather(%p), channel_id=9, {PAIRS}
  ROOT %c = (f32[32,1]{{1,0}}, u32[]) custom-call(%early), "AsyncCollectiveStart"
}}

%async_collective_fusion.1 (p: f32[16,1]) -> f32[32,1] {{
  %early.1 = f32[32,1]{{1,0}} all-gather(%p), channel_id=9, {PAIRS}
}}

%end (p: f32[16,1]) -> f32[32,1] {{
  %early.2 = f32[32,1]{{1,0}} all-gather(%p), channel_id=9, {PAIRS}
  ROOT %d = f32[32,1]{{1,0}} custom-call(%early.2), "AsyncCollectiveDone"
}}

ENTRY %main (a: bf16[8,4096]) -> bf16[8,4096] {{
  %sum = bf16[8,4096]{{1,0}} all-reduce(%a), {ROWS}, to_apply=%add
  %all = bf16[8,4096]{{1,0}} all-gather(%b), {LISTS}, dimensions={{1}}
  %part = bf16[8,512]{{1,0}} reduce-scatter(%c), {ROWS}, dimensions={{1}}
  %turn = bf16[8,512]{{1,0}} all-to-all(%d), {ROWS}, dimensions={{1}}
  %pass = (bf16[4]{{0}}, bf16[4]{{0}}) collective-permute-start(%e), {TURNS}
}}
"""
)
SUM = 8 * 4096 * 2  # bytes
SENT = {
    "all-reduce": 2 * 7 / 8 * SUM,
    "all-gather": 7 / 8 * SUM,
    "reduce-scatter": 7 * 8 * 512 * 2,
    "all-to-all": 7 / 8 * 8 * 512 * 2,
    "collective-permute": 8,
}


def sent(text: str) -> dict[str, float]:
    return {c.kind: c.sent for c in hlo.collectives(text) if c.shape != (32, 1)}


def test_bytes_sent_by_hand():
    """Planted: groups of another size; halves of a reduction counted as one."""
    assert sent(PROGRAM) == SENT
    assert SENT["all-reduce"] == SENT["all-gather"] + SENT["reduce-scatter"]
    wrong = sent(PROGRAM.replace("[2,8]<=[16]", "[8,2]<=[16]"))
    changed = {kind for kind in SENT if wrong[kind] != SENT[kind]}
    assert changed == {"all-reduce", "reduce-scatter", "all-to-all"}
    assert wrong["all-reduce"] == SUM


def test_pieces_of_one_collective_count_once():
    """Planted: without the marks of the pieces there are three, and all wait."""
    early = [c for c in hlo.collectives(PROGRAM) if c.shape == (32, 1)]
    assert [(c.sent, c.waits) for c in early] == [(64.0, False)]
    unmarked = PROGRAM.replace("AsyncCollective", "").replace("async_", "")
    early = [c for c in hlo.collectives(unmarked) if c.shape == (32, 1)]
    assert [c.waits for c in early] == [True] * 3
    waits = [c.waits for c in hlo.collectives(PROGRAM)]
    assert waits == [False, True, True, True, True, False]


def test_links_of_a_group():
    """Corners bound a block; a ring needs the whole axis; strangers share one link."""
    block, column = range(8), range(4)
    assert interconnect.links(block, V5E, SQUARE) == 2
    assert interconnect.links(range(16), V5E, SQUARE) == 2
    assert interconnect.links(column, V5E, SQUARE) == 1  # its ends
    assert interconnect.links((0, 8), V5E, SQUARE) == 1
    pod = [(x, y, 0) for x in range(16) for y in range(16)]
    assert interconnect.links(range(256), V5E, pod) == 4  # planted: no torus
    assert interconnect.links(range(16), V5E, pod) == 2
    cube = [(x, y, z) for x in range(4) for y in range(4) for z in range(4)]
    assert interconnect.links(range(64), V5P, cube) == 6
    flat = [(x, y, z) for x in range(2) for y in range(4) for z in range(4)]
    assert interconnect.links(range(32), V5P, flat) == 3


def test_seconds_by_hand():
    """A v5e sends 50 GB/s over each of its links, and the block's corners have two."""
    waiting, running = interconnect.seconds(hlo.collectives(PROGRAM), V5E, SQUARE)
    once = [SENT[kind] for kind in SENT if kind != "collective-permute"]
    assert waiting == pytest.approx(sum(once) / 100e9)
    assert running == pytest.approx((8 + 64) / 50e9)
    doubled = PROGRAM.replace("[2,8]<=[16]", "[1,16]<=[16]")  # planted: one group
    assert interconnect.seconds(hlo.collectives(doubled), V5E, SQUARE)[0] > waiting
    unknown = TPUS["v5e"].__class__("x", 1, 1.0, 1.0)
    assert interconnect.seconds(hlo.collectives(PROGRAM), unknown, []) == (0, 0)


def test_chips_send_what_is_published():
    """The all-reduce bandwidth of a Pod is that of all its chips: TB/s, chips."""
    pods = {"v4": (1100, 4096), "v5e": (51.2, 256), "v6e": (102.4, 256)}
    for name, (bandwidth, chips) in pods.items():
        assert TPUS[name].interconnect == pytest.approx(bandwidth * 1e12 / chips, 0.01)
