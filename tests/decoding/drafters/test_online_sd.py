"""The buffer of places: what is written, where, and from which rows."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from decoding import Method, Spec, base, tree
from decoding.conformance import kit as conformance
from decoding.drafters import online_sd
from decoding.topologies import chain
from models.errors import MethodError
from tests.decoding.drafters import kit

V, W, K = 6, 3, 2
LOGITS = np.log(np.array([0.05, 0.4, 0.1, 0.25, 0.15, 0.05], np.float32))


def empty(places: int = 4) -> online_sd.Buffer:
    none = jnp.zeros((places,), jnp.int32)
    table = jnp.zeros((places, K))
    tokens = table.astype(jnp.int32)
    context = jnp.zeros((places, W), jnp.int32)
    return online_sd.Buffer(context, none, tokens, table, jnp.int32(0))


def ended(texts, drafts, count, tokens, active=None) -> tuple:
    """A round in which chains of two were verified; `texts` are those after it."""
    batch = len(texts)
    root = jnp.zeros((batch,), jnp.int32)
    nodes = tree.chain(root, jnp.array(drafts), jnp.full((batch,), 2))
    logits = np.zeros((batch, 3, V), np.float32)
    for row, n in enumerate(count):
        logits[row, n] = LOGITS
    path = jnp.broadcast_to(jnp.array([1, 2]), (batch, 2))
    path = jnp.where(jnp.arange(2) < jnp.array(count)[:, None], path, 0)
    verdict = base.Verdict(path, jnp.array(count), jnp.array(tokens))
    out = base.ModelOutput(jnp.asarray(logits), {})
    active = [True] * batch if active is None else active
    outcome = base.Outcome(nodes, verdict, out, out.logits, jnp.array(active))
    return kit.context(texts), outcome


def test_worked_example():
    """Row 0 refused its second draft after one was accepted, row 1 nothing, row 2 its
    first; row 3 would have, but is done. Windows of three tokens."""
    texts = [[9, 1, 2, 3, 4], [1, 2, 3, 4], [7, 4], [1, 2, 3]]
    ctx, outcome = ended(
        texts,
        [[3, 5], [2, 3], [5, 1], [5, 1]],
        [1, 2, 0, 0],
        [4, 4, 4, 3],
        [1, 1, 1, 0],
    )
    assert online_sd.refused(outcome).tolist() == [True, False, True, False]
    found = online_sd.record(empty(), ctx, outcome)
    assert found.context[:2].tolist() == [[1, 2, 3], [7, 0, 0]]
    assert found.size.tolist() == [3, 1, 0, 0] and int(found.written) == 2
    assert found.tokens[:2].tolist() == [[1, 3], [1, 3]]
    np.testing.assert_allclose(np.exp(found.logp[0]), [0.4, 0.25], rtol=1e-5)


def test_a_text_that_was_cut_refused_nothing():
    """The last token that holds is itself a draft, where an end cut the path."""
    ctx, outcome = ended([[1, 2, 3]], [[3, 5]], [0], [3])
    assert not online_sd.refused(outcome).any()
    assert int(online_sd.record(empty(), ctx, outcome).written) == 0


def test_the_ring_goes_round():
    buffer = empty(2)
    for token in (1, 2, 3):
        ctx, outcome = ended([[token, 4]], [[5, 1]], [0], [4])
        buffer = online_sd.record(buffer, ctx, outcome)
    assert buffer.context[:, 0].tolist() == [3, 2] and int(buffer.written) == 3
    ctx, outcome = ended([[t, 4] for t in (1, 2, 3)], [[5, 1]] * 3, [0] * 3, [4] * 3)
    crowded = online_sd.record(empty(2), ctx, outcome)
    assert sorted(crowded.context[:, 0].tolist()) == [2, 3]


def rounds(method: Method, new: int = 12):
    """A run's state before and after each round, with what the round did."""
    run = conformance.Run(method, 0.8)
    state = run.start(new=new)
    while not bool(state.done.all()):
        before = conformance.copy(state)
        state, outcome = run.engine.step(run.params, state)
        yield before, conformance.copy(state), outcome


METHOD = Method(
    Spec("drafters/online_sd", places=64, window=4, best=3),
    topology=Spec("topologies/chain", length=3),
)


def holds(late: int = 0) -> bool:
    """Whether every place of the ring is one where this round refused a draft: its
    text ends where the round's last token stands. `late` reads the text further on."""
    for before, after, outcome in rounds(METHOD):
        old, new = (s.drafter.shared.buffer for s in (before, after))
        wrong = np.flatnonzero(np.asarray(online_sd.refused(outcome)))
        if int(new.written) - int(old.written) != len(wrong):
            return False
        for i, row in enumerate(wrong):
            place = (int(old.written) + i) % 64
            end = int(after.length[row]) - 1 + late
            text = np.asarray(after.tokens)[row, max(end - 4, 0) : end]
            size = int(new.size[place])
            if new.context[place, :size].tolist() != text.tolist():
                return False
            drafts = np.asarray(outcome.tree.tokens)[row]
            node = int(tree.last_node(outcome.verdict)[row]) + 1
            if drafts[node] == int(after.tokens[row, end - late]):
                return False
    return True


def test_only_refused_places_are_kept():
    assert holds()
    assert not holds(1)  # planted: the token that was said instead is read too


def begins(keep: str) -> bool:
    """Whether the ring holds what the target thinks after the text that each round of
    each row began with, and nothing else."""
    drafter = Spec("drafters/online_sd", places=64, window=4, best=3, keep=keep)
    accepted = 0
    for before, after, outcome in rounds(Method(drafter, topology=METHOD.topology)):
        old, new = (s.drafter.shared.buffer for s in (before, after))
        rows = np.flatnonzero(~np.asarray(before.done))
        if int(new.written) - int(old.written) != len(rows):
            return False
        accepted += int((np.asarray(outcome.verdict.count)[rows] > 0).sum())
        law = np.asarray(jax.nn.log_softmax(outcome.target.logits[:, 0]))
        for i, row in enumerate(rows):
            place, end = int(old.written) + i, int(before.length[row])
            text = np.asarray(before.tokens)[row, max(end - 4, 0) : end]
            if new.context[place, : int(new.size[place])].tolist() != text.tolist():
                return False
            best = -np.sort(-law[row])[:3]
            np.testing.assert_allclose(new.logp[place], best, atol=1e-5)
    return accepted > 0


@pytest.mark.long
def test_the_first_place_of_every_round_may_be_kept():
    assert begins("first")
    assert not begins("refused")  # planted: where a draft was refused


def test_memory_outlives_a_request():
    one = conformance.generate(METHOD, 0.8)
    two = conformance.generate(METHOD, 0.8, memory=one.memory)
    assert two.tokens == one.tokens
    assert int(two.memory.buffer.written) == 2 * int(one.memory.buffer.written) > 0


def test_bad_arguments():
    with pytest.raises(MethodError, match="places=0"):
        online_sd.drafter(conformance.DRAFT.model, chain.topology(2), places=0)
    with pytest.raises(MethodError, match="keep='all'"):
        online_sd.drafter(conformance.DRAFT.model, chain.topology(2), keep="all")
