"""Bundles of a grid step, by hand and in the TPU compiler's final program."""

import pytest

from kernels import aot, bundles, chips

# A grid loop that skips one of two blocks: the first with an inner loop of 8 turns by
# 2, and, in a stretch of its own, a copy that every step starts.
PROGRAM = """
// text before the bundles
LB: loop body
  0x0   :  { %s1_s1 = smov 0 }
  0x1 LB: > { %s2_s2 = sphi 0 }
  0x2   : > { %1 = sbr.rel (%p1_p1) target = $region5 }
  0x3   :  {}
  0x4   :  {}
  0x5   :  {}
  0x6   :  {}
  0x7   : > { %2 = dma.hbm_to_vmem [thread:$0]  (%p2_p2), /*hbm=*/%s603_s6 }
  0x8 PF: > { %s4_s4 = smov 0 } /* Start/End empty region 5 :: Start region 6 */
  0x9   : > { %3 = sbr.rel (!%p1_p1) target = $region7 }
  0xa   : > {}
  0xb   : > {}
  0xc   : > {}
  0xd   : > {}
  0xe LB: >> { %4 = vmatmul.bf16 %v1_v1 }
  0xf   : >> { %s9_s5 = sadd.s32 2, %s9_s5
   /* a second line */ }
 0x10   : >> { %p3_p3 = scmp.ge.s32.totalorder %s9_s5, 8 /* loop exit test */ }
 0x11 PF: > { %s5_s5 = smov 0 } /* Start/End empty region 7 */
 0x12   : > { %5 = sbr.rel (%p1_p1) target = $region9 }
 0x13   : > {}
 0x14   : > {}
 0x15   : > {}
 0x16   : > {}
 0x17   : > { %6 = vmatmul.bf16 %v1_v1 }
 0x18 PF: > { %s6_s6 = smov 0 } /* Start/End empty region 9 */
 0x19   : > { %7 = sbr.rel (!%p4_p4) target = $region2 }
 0x1a   :  {}
"""


def test_by_hand():
    """Every step: 7 + 6 + 6 + 3 bundles; 3 x 4 or 1 more.

    Planted: one empty bundle more; a branch over no copy; 8 turns by 1.
    """
    step = bundles.Step(whole=34, masked=23)
    assert bundles.count(PROGRAM) == step
    faults = [(" 0x1a ", " 0x1a   : {}\n 0x1b "), ("dma.", "dmb."), ("32 2,", "32 1,")]
    for fault in faults:
        assert bundles.count(PROGRAM.replace(*fault)) != step, fault


def test_a_program_of_another_form_is_refused():
    dynamic = PROGRAM.replace("%s9_s5, 8 /*", "%s9_s5, %s7_s7 /*")
    with pytest.raises(bundles.BundlesError, match="constant number"):
        bundles.count(dynamic)
    with pytest.raises(bundles.BundlesError, match="1 branches with products"):
        bundles.count(PROGRAM.replace("6 = vmatmul", "6 = vadd"))
    with pytest.raises(bundles.BundlesError, match="one loop"):
        bundles.count("")


def test_cycles_of_a_copy():
    assert bundles.copy_cycles("v5e", 819) == pytest.approx(1.5)
    assert bundles.copy_cycles("v5p", 2765) == pytest.approx(2 * 1.75)  # of two cores
    assert bundles.copy_cycles("v6e", 1640) == 0
    cut = aot.plan("v5e", aot.tree_attention_shape("8B", 8, 8192, 64))
    rows = 8 * 4 * 64  # in 4 units: a row a cycle for each 128 x 128 of k, and of v
    turns = rows * 2 * (cut.block // 128) / 4
    assert bundles.product_cycles("v5e", cut) == pytest.approx(turns, rel=0.01)
    for name in ("v4", "v5e", "v5p"):  # the clock times operations a cycle
        chip = chips.TPUS[name]
        units = {"v4": 8, "v5e": 4, "v5p": 8}[name]
        assert chip.flops == pytest.approx(chip.clock * units * 2 * 128**2, rel=0.01)


@pytest.mark.tpu_aot
def test_a_step_of_one_token_waits_for_its_copy():
    """8B's shape on v5e: each count is below the copy's cycles."""
    pytest.importorskip("libtpu")
    shape = aot.tree_attention_shape("8B", 8, 8192, 1)
    cut = aot.plan("v5e", shape)
    (step,) = bundles.of_tree_attention("v5e", [shape])
    assert 0 < step.whole < step.masked < bundles.copy_cycles("v5e", cut.step_bytes)


@pytest.mark.tpu_aot
def test_a_step_of_small_pages_waits_for_their_copy():
    """Of 8B on v5e: the bundles that start 2 * 16 copies are among the count."""
    pytest.importorskip("libtpu")
    shape = aot.tree_attention_shape("8B", 8, 8192, 1, page=16, pages=4096)
    cut = aot.plan("v5e", shape)
    (text,) = bundles.final_programs("v5e", [shape])
    step = bundles.count(text)
    assert 0 < step.whole < step.masked < bundles.copy_cycles("v5e", cut.step_bytes)
    without = bundles.count(text.replace("dma.hbm_to_vmem", "none"))
    assert without.whole < step.whole - 2 * cut.pieces  # planted: copies that are free


@pytest.mark.tpu_aot
def test_a_missing_dump_is_named(monkeypatch):
    """Planted: a flag that libtpu does not know."""
    pytest.importorskip("libtpu")
    monkeypatch.setenv("LIBTPU_INIT_ARGS", "--no_such_flag=1")
    shape = aot.tree_attention_shape("8B", 1, 256, 1)
    with pytest.raises(bundles.BundlesError, match=r"0 dumps.*where 1 were"):
        bundles.final_programs("v5e", [shape])
