"""The stage `diffusion_constraints`: what it refuses, its tables, a small run."""

import numpy as np
import pytest

from configs.studies import diffusion_constraints as recipe
from decoding.automata import compiled
from experiments.run_folder import RunFolder
from experiments.studies import diffusion_constraints as study
from models.errors import ConfigError


def small():
    """One timed pass, and one arm of one toy."""
    config = recipe.get_config()
    config.passes, config.automata, config.repeats = ((4, 3),), ((4, 3),), 1
    config.vocabulary, config.nonterminals = 40, 3
    config.seeds, config.prompts, config.samples = (0,), ((1, 2),), 2
    config.tokens, config.arms = 4, config.arms[:1]
    config.constraints = config.constraints[:1]
    return config


def test_refused_recipes():
    for field, value, match in (
        ("constraints", ({"name": "x", "regex": "a", "gbnf": "b"},), "one of"),
        ("repeats", 0, "repeats=0"),
        ("seeds", (), "seeds="),
    ):
        config = small()
        config[field] = value
        with pytest.raises(ConfigError, match=match):
            study.check(config)


def test_drawn_grammars_have_their_rules():
    rng = np.random.default_rng(0)
    tables = study.drawn_grammar(30, 5, 60, rng)
    last = tables.tokens.shape[0] - 1
    assert int((np.asarray(tables.head) != last).sum()) == 30


def test_verdicts_of_texts():
    """Planted: an end of sequence within a text."""
    machine = compiled.machine(compiled.parse({"regex": "(ab)*"}))
    assert study.is_inside(machine, [0, 1, study.EOS])
    assert study.is_inside(machine, [0, 1])
    assert not study.is_inside(machine, [0])
    assert not study.is_inside(machine, [0, study.EOS, 1])


def test_shares_are_of_all_texts():
    cell = {"texts": 4, "inside": 1, "calls": 8, "tokens": 12, "ms": 1.5}
    held = cell | {"inside": 4}
    row = {"constraint": "c", "arm": "a", "free": cell, "held": held}
    (line,) = study.texts_table([row])["lines"]
    assert line == ["c", "a", "4", "0.250", "1.000", *["2.00"] * 2, *["1.50"] * 4]


@pytest.mark.long
def test_a_small_run(tmp_path):
    """Every constrained text is in its language; a rerun measures nothing."""
    found = study.run(small(), RunFolder(tmp_path))
    (row,) = found["texts"]
    assert row["held"]["inside"] == row["held"]["texts"] == 2
    assert study.run(small(), RunFolder(tmp_path))["texts"] == found["texts"]
