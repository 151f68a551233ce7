"""Bundles of masks: counts and the table, by hand and from the TPU compiler."""

import pytest

from configs.studies import kernels as recipe
from experiments.studies.kernels import mask_bundles
from kernels.bundle_walk import Count
from kernels.program_bundles import Operation, Part, Program

pytestmark = pytest.mark.kernels


def test_counts_by_hand():
    """Planted: the gathers of a turn among those beside it, and a time of all nodes."""
    once = Part(
        Count(3000, 2, 2**20, 1),
        (
            Operation("scatter_fusion", 1, Count(1500), 0),
            Operation("gather_fusion.2", 4, Count(800), 0),
            Operation("fusion.1", 1, Count(20), 1800),
        ),
    )
    turn = Part(Count(1500), (Operation("gather_fusion.3", 1, Count(700), 0),))
    sums = Program(Part(Count(300), ()), Part(Count(), ()))
    row = mask_bundles.counted("v5e", Program(once, turn), sums)
    assert (row["scatters"], row["gathers"]) == (1500, 800)
    assert (row["operations"], row["turn_operations"]) == (6, 1)
    assert row["largest"][0] == ("scatter_fusion", 1, 1500)
    assert row["seconds"] == pytest.approx(3e-6)
    about = {"chip": "v5e", "vocab": 4096, "ends": 74, "read": 256, "pairs": 64}
    lines = mask_bundles.markdown({"masks": [about | {"nodes": 2} | row]})
    cells = "| v5e | 4,096 | 74 | 256 | 64 | 2 | 6 | 3,000 | 1,500 | 800 | 1 | 1,500 | "
    assert cells + "1.00 | 1,800 | 1.50 | 0.10 |" in "\n".join(lines)
    unknown = about | {"nodes": 2} | row | {"seconds": 0.0, "logsumexp_seconds": 0.0}
    assert "1,800 | – | – |" in "\n".join(mask_bundles.markdown({"masks": [unknown]}))


@pytest.mark.tpu_aot
@pytest.mark.long
def test_a_mask_of_one_node():
    """V = 2,048 on v5e: its scatter is a third, and it costs more than the sums.

    Planted: branches by data, but for the one where the program begins.
    """
    pytest.importorskip("libtpu")
    config = recipe.get_config().masks
    config.vocabularies, config.nodes = ((2048, 40),), (1,)
    (row,) = mask_bundles.count_masks("v5e", config)
    assert row["guesses"] <= 1
    assert row["scatters"] + row["gathers"] > 0.5 * row["bundles"]
    assert row["seconds"] > 10 * row["logsumexp_seconds"] > 0
    assert row["turn_bundles"] > 0 and row["vocab"] == 2048
