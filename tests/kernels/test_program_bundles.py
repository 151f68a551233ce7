"""Bundles of a whole program, by hand and from the TPU compiler."""

import subprocess

import pytest

from kernels import compiler_dumps, program_bundles
from kernels.bundle_text import BundlesError
from kernels.bundle_walk import Count
from kernels.program_bundles import Operation, Part, Program
from tests.kernels import programs

pytestmark = pytest.mark.kernels

# A loop of eight turns around one of unknown length, whose condition runs `%while.4`.
CALLER = """
  0x0   :  { %1 = inlined_call %s1_s1 /* %copy.1 = copy(%x) */ }
  0x1 LB: > { %s2_s2 = smov 0 } /* Start region 5 */
  0x2   : > { %2 = inlined_call %s3_s3, %s4_s4 /* %fusion.2 = fusion(%y, %z) */ }
  0x3 LB: >> { %s2_s2 = smov 0 } /* Start region 6 */
  0x4   : >> { %3 = inlined_call %s3_s3 /* %fusion.3 = fusion(%y) */ }
  0x5   : >> { %5 = inlined_call %s3_s3 /* %while.4 = reduce(%y) */ }
  0x6   : > { %4 = sbr.rel (!%p1_p1) target = $region6 }
  0x7   :  {}
  0x8   :  {}
  0x9   :  {}
  0xa   :  {}
  0xb   :  { %4 = sbr.rel (!%p2_p2) target = $region5 }
  0xc   :  {}
  0xd   :  {}
  0xe   :  {}
  0xf   :  {}
 0x10   :  { %9 = dma.vmem_to_hbm /*vmem=*/%s1_s1, /*size_in_granules=*/2 }
 0x11   :  { %6 = inlined_call /* <late-finalization> */ }
"""
XLA = """HloModule jit_program

%condition.1 (p: (s32[], s32[])) -> pred[] {
  %c = s32[]{:T(128)} constant(8)
  ROOT %compare.9 = pred[]{:T(512)} compare(%g, %c), direction=LT
}

%inner_condition (p: (s32[], s32[])) -> pred[] {
  %c = s32[]{:T(128)} constant(0)
  ROOT %while.4 = pred[]{:T(512)} reduce(%g, %c), dimensions={0}, to_apply=%or
}

%inner (p: (s32[], s32[])) -> (s32[], s32[]) {
  %fusion.3 = s32[8]{0} fusion(%y), backend_config={"estimated_cycles":"50"}
}

%outer (p: (s32[], s32[])) -> (s32[], s32[]) {
  %fusion.2 = s32[8]{0} fusion(%y, %z), kind=kLoop
  %while.7 = (s32[], s32[]) while(%t), condition=%inner_condition, body=%inner
}

ENTRY %main (x: s32[8]) -> s32[8] {
  %copy.1 = s32[8]{0} copy(%x), backend_config={"estimated_cycles":"7"}
  %while.8 = (s32[], s32[]) while(%t), condition=%condition.1, body=%outer
}
"""
LINES = {"copy.1": 3, "fusion.2": 5, "fusion.3": 11, "while.4": 2}


def texts() -> dict[str, str]:
    """Operations of so many empty bundles."""
    sizes = {**LINES, "<late-finalization>": 1}
    bundle = "  0x0   :  {}\n"
    return {name: bundle * n for name, n in sizes.items()} | {"TLP": CALLER}


def test_a_program_by_hand():
    """Once: 1 + 7 * 8 + 2 bundles and 3 + 8 * 5 + 1; a turn: 8 * 8 and 8 * 13.

    Planted: a loop of another length, and one whose counter has no limit.
    """
    program = program_bundles.assembled(texts(), XLA)
    once = Count(59 + 44, copies=1, copied=64)
    assert program.once.count == once and program.once.runs == 1 + 8 + 1
    assert program.turn.count == Count(64 + 104) and program.turn.runs == 16
    assert program.once.operations[0] == Operation("fusion.2", 8, Count(40), 0)
    assert program.once.estimate == 7 and program.turn.estimate == 8 * 50
    nine = XLA.replace("constant(8)", "constant(9)")
    longer = program_bundles.assembled(texts(), nine)
    assert longer.once.count == once + Count(7 + 5)
    unknown = program_bundles.assembled(texts(), XLA.replace("=LT", "=NE"))
    assert unknown.once.count == Count(3 + 4, 1, 64)


def test_least_time_by_hand():
    """Bundles at 1.5 GHz, copies at 819 GB/s; planted: the turns are left out."""
    program = Program(Part(Count(1500), ()), Part(Count(150, copied=819), ()))
    assert program.seconds("v5e") == pytest.approx(1.1e-6)
    assert program.seconds("v5e", 0) == pytest.approx(1e-6)
    assert program.seconds("v5e", 5000) == pytest.approx(501e-6)
    copies = Program(Part(Count(1, copied=819_000), ()), Part(Count(), ()))
    assert copies.seconds("v5e") == pytest.approx(1e-6)
    assert program.seconds("v6e") == 0  # its clock is unknown


def test_programs_of_another_form_are_refused():
    """Planted: an operation without bundles; a loop without a branch."""
    missing = {name: text for name, text in texts().items() if name != "fusion.3"}
    with pytest.raises(BundlesError, match=r"no final bundles of fusion\.3"):
        program_bundles.assembled(missing, XLA)
    endless = texts() | {"TLP": CALLER.replace("region5 }", "region9 }")}
    with pytest.raises(BundlesError, match="without a branch"):
        program_bundles.assembled(endless, XLA)


def test_names_of_dumps(tmp_path):
    """Planted: a file about a schedule is no program."""
    for kind in ("01-final_bundles", "00-schedule-analysis_final_bundles"):
        (tmp_path / f"1-copy.1-{kind}.txt").write_text(kind)
    (tmp_path / "2-TLP-hlo.txt").write_text("")
    found = program_bundles.final_programs(tmp_path)
    assert found == {"copy.1": "01-final_bundles"}


def test_a_compiler_that_fails_is_named(monkeypatch):
    """Planted: a process that ends with an error, and one that writes no dumps."""
    monkeypatch.setattr(program_bundles, "_exported", lambda *a: b"")
    for code in (1, 0):
        done = subprocess.CompletedProcess((), code, stderr="no such flag")
        monkeypatch.setattr(compiler_dumps, "compile_in", lambda *a, d=done, **k: d)
        with pytest.raises(BundlesError, match=rf"0 dumps.*code {code}.*no such flag"):
            program_bundles.compiled("v5e", programs.products)


@pytest.mark.tpu_aot
def test_a_scatter_adds_one_element_after_the_other():
    """On v5e: over eight bundles of each element.

    Planted: without the turns of its loop it has few of them.
    """
    pytest.importorskip("libtpu")
    shapes = programs.arrays((1024,), (4096,), (4096,))
    program = program_bundles.compiled("v5e", programs.scatter, *shapes)
    (found,) = [x for x in program.once.operations if "scatter" in x.name]
    assert program.turn.count == Count()
    assert 8 < found.count.bundles / 4096 < 9
    assert program.once.count.copied >= 2 * 4 * 4096  # places and values


@pytest.mark.tpu_aot
def test_counts_are_near_the_compilers_own_where_nothing_waits():
    """Products on v5e, within a tenth of the estimate; seven, and one a turn.

    Planted: another number of runs.
    """
    pytest.importorskip("libtpu")
    shapes = (*programs.arrays((256, 256), dtype="float32"), *programs.arrays(()))
    program = program_bundles.compiled("v5e", programs.products, *shapes)
    for part, runs in ((program.once, 7), (program.turn, 1)):
        product = part.operations[0]
        assert product.runs == runs and product.estimate > 0
        assert product.count.bundles == pytest.approx(product.estimate, rel=0.1)
    assert program.once.count.bundles > 6 * program.turn.count.bundles
