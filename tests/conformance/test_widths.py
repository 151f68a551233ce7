"""Every drafter with drafts that are cut and left out at random."""

from dataclasses import replace

import jax.numpy as jnp
import pytest

from decoding import base, tree
from decoding.conformance import kit, widths
from decoding.loops import pause
from decoding.tree_building import draft_model
from tests.conformance.test_drafters import CASES, PERFECT

USUAL = ("prompt_lookup", "model-chain", "lookahead", "token_recycling")
LAWFUL = {
    name: method
    for name, method in CASES.items()
    if all(part.card.guarantee == base.LAW for part in method.parts)
}


def marked(cases: dict) -> list:
    """Run the usual cases always, the others with the long tests."""
    return [
        pytest.param(m, id=name, marks=() if name in USUAL else pytest.mark.long)
        for name, m in cases.items()
    ]


# ADED learns the last tokens once a round; pages of a suffix index hold whole rounds.
BY_ROUNDS = ("aded", "suffix_decoding", "suffix_model-chain")


@pytest.mark.parametrize("method", marked(LAWFUL))
def test_cut_drafts_keep_the_text_and_a_pause_is_its_rounds(method):
    """One program for both."""
    run = widths.cut(kit.Run(method, 0.8))
    widths.text_of_cut_drafts_is_plain(method, run=run)
    if method not in [LAWFUL[name] for name in BY_ROUNDS]:
        widths.a_pause_is_its_rounds(method, run=run)


def test_fault_a_pause_without_its_last_token(monkeypatch):
    """A head that was told of one token less drafts from the state before it."""
    told = pause._told

    def short(length, after, seen, rounds, calls):
        return told(length, after, seen, jnp.maximum(rounds - 1, 0), calls)

    monkeypatch.setattr(pause, "_told", short)
    with pytest.raises(AssertionError, match="after it"):
        widths.a_pause_is_its_rounds(CASES["eagle-eagle2"])


def test_the_text_follows_perfect_watched_drafts(monkeypatch):
    """The target's own drafts: all that the text tested. Planted: read one too late."""
    run = lambda: kit.Run(CASES["model-chain"], 0.8, draft=kit.TARGET)
    tested, taken = widths.taken_of_watched(run())
    assert tested == taken > 0
    sound = pause._followed

    def late(draft, length, tokens, rounds):
        return sound(draft, length + 1, tokens, rounds)

    monkeypatch.setattr(pause, "_followed", late)
    tested, taken = widths.taken_of_watched(run())
    assert tested > taken


@pytest.mark.long
@pytest.mark.parametrize("method", PERFECT)
def test_what_is_left_of_perfect_drafts_is_accepted(method):
    run = widths.cut(kit.Run(method, 0.8, draft=kit.TARGET))
    assert widths.perfect_drafts_end_at_a_leaf(run)


@pytest.mark.long
def test_fault_a_narrow_tree_taken_for_a_chain(monkeypatch):
    """Its accepted nodes lie apart in the block, and their keys would stay there."""
    method, sound = CASES["oracle-static"], tree.part

    def part(whole, live, width):
        narrow, kept = sound(whole, live, width)
        return replace(narrow, linear=True), kept

    assert widths.cut(kit.Run(method, 0.8)).texts() == kit.plain(method, 0.8)
    monkeypatch.setattr(tree, "part", part)
    assert widths.cut(kit.Run(method, 0.8)).texts() != kit.plain(method, 0.8)


def test_fault_a_draft_model_that_missed_the_pause(monkeypatch):
    """Its cache lacks the pause's tokens: its drafts are not the target's any more."""
    method = CASES["model-chain"]
    sound = widths.cut(kit.Run(method, 0.8, draft=kit.TARGET))
    assert widths.perfect_drafts_end_at_a_leaf(sound)
    monkeypatch.setattr(draft_model, "catch_up", lambda m, p, cache, *_: (cache, 0))
    faulty = widths.cut(kit.Run(method, 0.8, draft=kit.TARGET))
    assert not widths.perfect_drafts_end_at_a_leaf(faulty)
