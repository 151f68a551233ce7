"""The study of ASAp and AWRS, in parts, on small numbers."""

import ml_collections
import numpy as np
import pytest

from configs.studies import grammar_sampling as recipe
from decoding.automata.mass_trie import MassTrie
from decoding.automata.oracle import GrammarOracle
from decoding.conformance import kit
from experiments.studies import grammar_sampling as study


def config(**fields) -> ml_collections.ConfigDict:
    c = recipe.get_config()
    c.update({"runs": 1, "marks": (0, 5, 20), "draws": 2000, **fields})
    return c


def test_distances_are_of_the_marks():
    """Planted: the distance of the mask is not that after twenty texts."""
    rows = study.languages(config(forms=(("d?nv?", 1.5, 2.5),)))
    (row,) = rows[0]["distances"]
    assert len(row) == 3 and row[0] != pytest.approx(row[2], abs=0.01)
    table = study._toys(config(), rows)
    assert table["lines"][0][2:] == [f"{x:.4f}" for x in row]


def test_path_figures_by_hand():
    trie = MassTrie()
    trie.add(0, [3, 4], np.log([0.2, 0.5]), np.log([0.4, 1.0]))
    logprob, mask = study.path_figures(trie, [3, 4])
    assert logprob == pytest.approx(np.log(0.1)) and mask == pytest.approx(np.log(0.25))
    assert logprob != pytest.approx(mask)  # planted: p for the mask's law


def test_weights_are_compared_with_the_exact_mass():
    """Means near 1, and no token is asked about twice. Planted: a question too few."""
    oracle = GrammarOracle(
        {"regex": "[a-c]+"}, kit.TARGET.tokenizer, (kit.EOS,), kit.VOCAB
    )
    law = np.log(np.full(kit.VOCAB, 1 / kit.VOCAB))
    row = study.drawn(config(), oracle, (), law, "recursive", 2)
    assert row["mass"] == pytest.approx(3 / 8)
    assert row["weight"] == pytest.approx(1, abs=0.1) and row["deviation"] > 0
    assert 2 <= min(row["asked"]) <= max(row["asked"]) <= kit.VOCAB
    cells = study._asked(
        config(laws=1), [{"scheme": "recursive", "vocabulary": 8, "prefixes": [row]}]
    )
    assert cells["lines"][0][1] == f"{np.mean(row['asked']):.1f}"
    assert cells["lines"][0][1] != f"{np.mean(row['asked']) - 1:.1f}"
