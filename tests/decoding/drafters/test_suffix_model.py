"""SuffixDecoding with a draft model: who drafts, and that both keep up."""

import dataclasses

import jax.numpy as jnp
import numpy as np
import pytest

from decoding import Method, base
from decoding.conformance import kit as conformance
from decoding.drafters import suffix_decoding, suffix_model
from decoding.topologies import chain
from decoding.tree_building import draft_model
from models.errors import MethodError
from tests.decoding.drafters import kit

METHOD = conformance.cases()["suffix_model-chain"]
CHAIN = Method(METHOD.drafter, topology=METHOD.topology)  # drafts of 3, paths of 4
PROMPTS = [*conformance.PROMPTS[:3], [1, 2, 3, 4, 5, 6, 1, 2, 3, 4, 5, 6]]


def rounds(run) -> tuple[list[int], int, list]:
    """Accepted drafts of the model's rounds, the others' number, and the last state."""
    own, copies = [], 0
    for state, count, room in kit.rounds(run, PROMPTS):
        copied = np.asarray(state.drafter.row.copied)
        own += count[room & ~copied].tolist()
        copies += int((count[room & copied] > 0).sum())
    return own, copies, state


def test_the_model_and_the_pages_keep_up():
    """The target as draft: its own drafts are all accepted, also after suffix drafts.

    The pages hold the outputs, whoever drafted them.
    """
    run = conformance.Run(CHAIN, 0.8, draft=conformance.TARGET)
    own, copies, state = rounds(run)
    assert len(own) > 8 and set(own) == {3}
    assert copies > 2
    shared = state.drafter.shared.lookup
    pages, filled = np.asarray(shared.pages), np.asarray(shared.filled)
    texts = [",".join(map(str, t)) for t in conformance.texts(state, PROMPTS)]
    stored = [",".join(map(str, p[:n])) for p, n in zip(pages, filled) if n]
    assert stored and all(any(p in text for text in texts) for p in stored)


def test_fault_the_model_does_not_read_suffix_drafts(monkeypatch):
    """Planted: the cache is taken to hold what was copied; acceptance drops."""

    def forget(model, params, cache, ctx, size):
        return cache.replace(length=ctx.length - 1), jnp.int32(0)

    monkeypatch.setattr(draft_model, "catch_up", forget)
    run = conformance.Run(CHAIN, 0.8, draft=conformance.TARGET).alter()
    assert min(rounds(run)[0]) < 3


def chosen(threshold: float | None) -> tuple[list[bool], list[float]]:
    """Which rows take the suffix draft, and its scores, after texts of many repeats."""
    texts = [[1, 2, 3, 4] * 4, [1, 2, 3, 4, 5, 1, 2], [1, 2, 3]]
    draft, params = conformance.TARGET.model, {"draft": conformance.TARGET.params}
    drafter = suffix_model.drafter(draft, chain.topology(3), threshold)
    ctx = dataclasses.replace(kit.context(texts), params=params)
    lookup = suffix_decoding.drafter()
    scores, _ = suffix_decoding.propose(ctx, lookup.init(ctx), 16, 64, 64)
    state = drafter.draft(kit.keys(3), ctx, drafter.init(ctx))[1]
    return state.row.copied.tolist(), scores.tolist()


@pytest.mark.long
def test_the_score_decides():
    """At first a suffix draft needs the score of a draft model's whole chain, 3."""
    for threshold in (None, 2.0, 100.0):
        copied, scores = chosen(threshold)
        assert scores[0] > 3 > scores[1] >= 2 > scores[2] == 0
        least = 3 if threshold is None else threshold
        assert copied == [score >= least for score in scores]


def test_fault_any_match_is_taken():
    """Planted: the threshold of SuffixDecoding alone, which drafts every match."""
    copied, scores = chosen(1e-9)
    assert copied == [True, True, False] != [score >= 3 for score in scores]


def test_bad_arguments():
    grown = chain.topology(3)
    with pytest.raises(MethodError, match="threshold=0"):
        suffix_model.drafter(None, grown, threshold=0)
    with pytest.raises(MethodError, match="span=3"):
        suffix_model.drafter(None, grown, most=2, span=3)
    assert base.LAW == suffix_model.CARD.guarantee
