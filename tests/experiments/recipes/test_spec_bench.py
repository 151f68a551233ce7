"""Spec-Bench's recipe: its methods exist, with the heads and the corpus they need."""

import importlib

from experiments.studies import common
from models.heads.formats import native


def missing(config) -> set[str]:
    """Methods whose heads are not named, and compared ones that do not run."""
    named = common.methods(config)
    headless = {
        name
        for name, method in named.items()
        if "heads" in method.needs and name not in config.trained
    }
    return headless | {n for pair in config.directions for n in pair} - set(named)


def recipe(*arguments):
    return importlib.import_module("configs.spec_bench").get_config(*arguments)


def test_every_method_has_its_parts():
    """Planted: SAM-Decoding before a head whose weights are not named."""
    config = recipe()
    assert missing(config) == set()
    assert len(config.methods) - 1 == 25  # as the recipe's first line counts
    config.trained = {n: f for n, f in config.trained.items() if n != "sam_fspad"}
    assert missing(config) == {"sam_fspad"}


def test_a_corpus_is_for_those_that_read_one():
    """Planted: without a datastore they are not run."""
    with_one, without = recipe("runs/datastore"), recipe()
    more = set(with_one.methods) - set(without.methods)
    assert more == {"rest", "sam_decoding_corpus"} and missing(with_one) == set()
    stored = {name: with_one.variants[name].drafter.datastore for name in more}
    assert set(stored.values()) == {"runs/datastore"}


def test_a_head_drafts_by_the_same_tree_alone_and_after_copies():
    """Planted: the topology's own numbers."""
    topology = dict(recipe().variants.sam_fspad.topology)
    alone = dict(native.method("tiny-fspad")["topology"])
    assert topology == alone != {"name": "topologies/eagle2"}
