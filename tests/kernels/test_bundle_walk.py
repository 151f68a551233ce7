"""Walks through final bundles, by hand."""

import pytest

from kernels import bundle_text, bundle_walk
from kernels.bundle_walk import Count

pytestmark = pytest.mark.kernels

# Four turns; all but the first copy 4 * 32 bytes. A taken branch has four slots.
PIPELINE = """
  0x0   :  { %s0_s0 = inlined_call_operand.hbm [shape: s32[8]]  ;;  %s1_s1 = smov 0 }
  0x1 LB: > { %p1_p1 = scmp.lt.s32.totalorder %s2_s1, 1  ;;  \
%s2_s1 = sphi %s1_s1, %s3_s1 /* phi copy */ } /* Start region 5 */
  0x2   : > { %1 = sbr.rel (%p1_p1) target = $region6 }
  0x3   :  {}
  0x4   :  {}
  0x5   :  {}
  0x6   :  {}
  0x7   : > { %2 = dma.hbm_to_vmem [thread:$0]  /*size_in_granules=*/4, /*x=*/%s9_s9 }
  0x8 PF: > { %s3_s1 = sadd.s32 1, %s2_s1 } /* Start/End empty region 6 */
  0x9   : > { %p2_p2 = scmp.ge.s32.totalorder %s3_s1, 4 /* loop exit test */ }
  0xa   :  { %3 = sbr.rel (!%p2_p2) target = $region5 }
  0xb   :  {}
  0xc   :  {}
  0xd   :  {}
  0xe   :  {}
  0xf   :  {}
"""


def test_a_pipeline_by_hand():
    """1 + 4 * 13 + 3 + 1 bundles.

    Planted: five turns; a copy in the first turn alone; a copy that stays in fast
    memory. The order of the names that meet in a phi changes nothing.
    """
    expected = Count(bundles=57, copies=3, copied=3 * 4 * 32)
    assert bundle_walk.count(PIPELINE) == expected
    faults = {
        ("%s3_s1, 4 /*", "%s3_s1, 5 /*"): Count(71, 4, 512),
        ("scmp.lt", "scmp.ge"): Count(55, 1, 128),
        ("dma.hbm_to_vmem", "dma.vmem_to_smem"): Count(57),
        ("%s1_s1, %s3_s1", "%s3_s1, %s1_s1"): expected,  # by time, not by place
    }
    for fault, result in faults.items():
        assert bundle_walk.count(PIPELINE.replace(*fault)) == result, fault


# As many turns as a register has, but 2 at most, through a cell of memory.
LOOP = """
  0x0   :  { %s1_s1 = smov 7 }
  0x1   :  { %p1_p1 = scmp.lt.s32.totalorder %s1_s1, 2 }
  0x2   :  { %s2_s1 = smov (!%p1_p1, %s1_s1), 2 }
  0x3   :  { %9 = sst [smem:[#allocation1_spill]] %s2_s1  ;;  %s5_s5 = smov 0 }
  0x4 LB: > { %s6_s5 = sphi %s5_s5, %s7_s5 } /* Start region 3 */
  0x5   : > { %s8_s8 = sld [smem:[#allocation1_spill]]  ;;  \
%s7_s5 = sadd.s32 1, %s6_s5 }
  0x6   : > { %p3_p3 = scmp.ge.s32.totalorder %s7_s5, %s8_s8 }
  0x7   :  { %4 = sbr.rel (!%p3_p3) target = $region3 }
  0x8   :  {}
  0x9   :  {}
  0xa   :  {}
  0xb   :  {}
"""


def test_registers_and_memory_by_hand():
    """4 + 8 bundles a turn. Planted: the register that a predicate keeps, exchanged."""
    assert bundle_walk.count(LOOP) == Count(4 + 8 * 2)
    assert bundle_walk.count(LOOP.replace("smov 7", "smov 1")) == Count(4 + 8)
    assert bundle_walk.count(LOOP.replace("(!%p1_p1,", "(%p1_p1,")) == Count(4 + 8 * 7)


def test_data_are_not_known():
    """A loop by data turns once, and is noted. Planted: it was a constant."""
    unknown = LOOP.replace("smov 7", "sld [smem:[#allocation4 + %s3_s3]]")
    assert bundle_walk.count(unknown) == Count(bundles=12, guesses=1)
    assert bundle_walk.count(LOOP).guesses == 0


def test_addresses_of_a_buffer():
    """A loop from an address to 64 behind it, by 8: 9 turns.

    Planted: addresses of two buffers have no order.
    """
    text = LOOP
    for change in (
        ("smov (!%p1_p1, %s1_s1), 2", "scalar_lea.vmem %s1_s1, 64"),
        ("smov 7", "inlined_call_operand.vmem [shape: s32[8], index: 0]"),
        ("smov 0", "smov %s1_s1"),
        ("sadd.s32 1, %s6_s5", "scalar_lea.vmem %s6_s5, 8 [#allocation0]"),
        ("scmp.ge", "scmp.gt"),
    ):
        text = text.replace(*change)
    assert bundle_walk.count(text) == Count(4 + 8 * 9)
    other = text.replace("smov %s1_s1", "smov [#allocation0]")
    assert bundle_walk.count(other) == Count(12, guesses=1)


def test_numbers_have_32_bits():
    """By hand; planted: unsigned comparisons of signed numbers."""
    assert [bundle_walk.signed(x) for x in (4294967295, 2**31, 5)] == [-1, -(2**31), 5]
    assert bundle_walk.signed(3 * 2**40 - 8) == 3 * 2**40 - 8  # an address
    less = LOOP.replace("smov 7", "smov 4294967295")
    assert bundle_walk.count(less) == Count(4 + 8)  # -1 < 2
    assert bundle_walk.count(less.replace("lt.s32", "lt.u32")) == Count(4 + 8 * 2)


def test_a_walk_without_end_or_bundles(monkeypatch):
    monkeypatch.setattr(bundle_walk, "MOST", 1000)
    endless = PIPELINE.replace("sadd.s32 1", "sadd.s32 0")
    with pytest.raises(bundle_text.BundlesError, match="goes on after 1,000"):
        bundle_walk.count(endless)
    with pytest.raises(bundle_text.BundlesError, match="no bundles"):
        bundle_walk.count("")


def test_copies_of_a_bundle():
    """Planted: a size in a register counts as unknown, not as nothing."""
    (bundle,) = [b for b in bundle_text.parse(PIPELINE) if "dma." in b.text]
    assert bundle_walk.copies(bundle) == Count(0, 1, 128)
    (other,) = bundle_text.parse(f"0x0 : {{ {bundle.text}".replace("*/4,", "*/%s4_s4,"))
    assert bundle_walk.copies(other) == Count(0, 1, 0, 1)
