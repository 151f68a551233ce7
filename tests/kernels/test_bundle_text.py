"""Final bundles, read by hand."""

import pytest

from kernels import bundle_text

pytestmark = pytest.mark.kernels

TEXT = """
LB: loop body
     0   :  { %s1_s1 = smov 0 /* a b */  ;;  %3 = dma.x /*size=*/4 } /* End region 1 */
  0x1 LB: > { %s2_s2 = sadd.s32 1, %s1_s1
base_bounds: (8)
 } /* Start region 2 :: Start/End empty region 3 :: End region 4 */
  0x2   :  {}
  0x3   : > { %4 = sbr.rel (!%p1_p1) target = $region2  ;;  %s5_s5 = smov 1 }
  0x4   :  { %5 = sbr.rel target = $region7 }
"""


def test_bundles_by_hand():
    """Planted: the depth of the empty bundle is not that of its line."""
    bundles = bundle_text.parse(TEXT)
    assert [(b.label, b.depth) for b in bundles] == [
        *[("", 0), ("LB", 1), ("", 1), ("", 1), ("", 0)]
    ]
    assert [len(list(b.operations())) for b in bundles] == [2, 1, 1, 2, 1]
    assert list(bundles[0].operations())[1] == "%3 = dma.x /*size=*/4"
    assert bundle_text.without_comments("%3 = dma.x /*size=*/4") == "%3 = dma.x 4"
    assert "base_bounds" in bundles[1].text
    assert bundles[1].regions == ["2", "3"]  # planted: a region that ends is no place
    assert bundles[0].regions == []


def test_branches_by_hand():
    """Planted: a branch by a predicate's opposite, and one that is always taken."""
    goes = [bundle_text.branch(b) for b in bundle_text.parse(TEXT)]
    assert goes == [
        *[None] * 3,
        bundle_text.Branch("%p1_p1", True, "2"),
        bundle_text.Branch("", False, "7"),
    ]
    other = bundle_text.parse(TEXT.replace("(!%p1", "(%p1"))
    assert bundle_text.branch(other[3]) == bundle_text.Branch("%p1_p1", False, "2")
