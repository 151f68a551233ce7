"""CopySpec with a draft model: who drafts, and that the model keeps up with copies."""

import jax.numpy as jnp
import numpy as np
import pytest

from decoding import Method, base, tree
from decoding.conformance import kit as conformance
from decoding.tree_building import draft_model, lookup_or_model
from tests.decoding.drafters import kit

METHOD = conformance.cases()["copyspec_model-chain"]
CHAIN = Method(METHOD.drafter, topology=METHOD.topology)  # drafts of 3, copies of 4
PROMPTS = [*conformance.PROMPTS[:3], [1, 2, 3, 4, 5, 6, 1, 2, 3, 4, 5, 6]]


def accepted(run) -> tuple[list[int], int]:
    """Accepted drafts of the rounds that the model drafted, and the others' number."""
    own, copies = [], 0
    for state, count, room in kit.rounds(run, PROMPTS):
        copied = np.asarray(state.drafter.row.copied)
        own += count[room & ~copied].tolist()
        copies += int((count[room & copied] > 0).sum())
    return own, copies


def test_the_model_keeps_up():
    """The target as draft: its own drafts are all accepted, also after copies."""
    run = conformance.Run(CHAIN, 0.8, draft=conformance.TARGET)
    own, copies = accepted(run)
    assert len(own) > 8 and set(own) == {3}
    assert copies > 2


def test_fault_the_model_does_not_read_copies(monkeypatch):
    """Planted: the cache is taken to hold what was copied; acceptance drops."""

    def forget(model, params, cache, ctx, size):
        return cache.replace(length=ctx.length - 1), jnp.int32(0)

    monkeypatch.setattr(draft_model, "catch_up", forget)
    run = conformance.Run(CHAIN, 0.8, draft=conformance.TARGET).alter()
    own, _ = accepted(run)
    assert min(own) < 3


@pytest.mark.long
def test_copies_cost_no_draft_calls():
    """A batch in which every row copies does not run the model in that round."""
    out = conformance.generate(CHAIN, prompts=[[1, 2, 3] * 4], max_new_tokens=1)
    assert out.stats.draft_calls == 0
    out = conformance.generate(CHAIN, prompts=[[1, 2, 3, 4]], max_new_tokens=1)
    assert out.stats.draft_calls > 0


def test_a_copy_is_certain():
    """Rejection schemes see one-hot laws in rows that copied, the draft's elsewhere."""
    copies = tree.chain(
        jnp.array([1, 1]), jnp.array([[2, 3], [0, 0]]), jnp.array([2, 0])
    )
    laws = jnp.zeros((2, 2, 5))
    grown = tree.chain(
        jnp.array([1, 1]),
        jnp.array([[4], [4]]),
        jnp.array([1, 1]),
        draw=base.IID,
        logits=laws,
    )
    wider = lookup_or_model.wider
    fused = lookup_or_model.either(
        jnp.array([True, False]), wider(copies, 3), wider(grown, 3), 2
    )
    assert fused.tokens.tolist() == [[1, 2, 3], [1, 4, 0]]
    assert fused.kind.tolist() == [[1, 1, 1], [1, 1, 0]]
    assert fused.linear and fused.draw == base.IID and fused.depth == 2
    assert jnp.argmax(fused.logits[0], -1).tolist()[:2] == [2, 3]
    assert (jnp.exp(fused.logits[0]).sum(-1) == 1).all()
    assert (fused.logits[1] == 0).all()


@pytest.mark.long
def test_rejection_takes_both():
    """Under rejection the target's own drafts are all accepted; copies sometimes."""
    method = Method(
        CHAIN.drafter,
        topology=CHAIN.topology,
        verifier=conformance.Spec("verifiers/rejection"),
    )
    own, copies = accepted(conformance.Run(method, 0.8, draft=conformance.TARGET))
    assert set(own) == {3} and copies > 0
