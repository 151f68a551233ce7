"""EAGLE-3's draft layer in the loop, and its vocabulary."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from decoding.tree_building import draft_head
from models.errors import ConfigError
from models.heads import eagle3 as heads
from models.heads.modules import decoder_layer, head_config
from tests.decoding.drafters import agreement
from training.objectives.heads import eagle3

KEY = jax.random.key(0)
KEPT = np.arange(0, agreement.VOCAB, 2)


def params(kept=None):
    lm = agreement.target()
    rows = decoder_layer.output_rows(lm.params)
    return agreement.stirred(heads.init(KEY, lm.config, rows, kept))


@functools.cache
def loop():
    return agreement.Loop("drafters/eagle3", eagle3, params(KEPT), 4)


def test_drafts_in_the_loop_are_those_of_the_training_time_test():
    """With a draft vocabulary, which `spread` makes the target's."""
    assert loop().agrees()


@pytest.mark.long
def test_so_are_those_of_heads_that_norm_elsewhere():
    """The norms of vLLM's speculators; planted: a draft hands on its raw output."""
    own = params(KEPT)
    width = own["fuse"].shape[-1]
    own["residual_norm"] = own.pop("feature_norm")
    own["output_norm"] = agreement.stirred(np.ones(width, np.float32), 0.5)
    own["fuse_norm"] = agreement.stirred(np.ones((3, width), np.float32))
    del own["norm"]
    own[head_config.CONFIG] = heads.by_keys(own)
    run = agreement.Loop("drafters/eagle3", eagle3, own, 4)
    assert run.agrees()
    run.heads = {**own, "norm": own["output_norm"]}
    del run.heads["output_norm"]
    run.heads[head_config.CONFIG] = heads.by_keys(run.heads)
    assert not run.agrees()


def test_fault_another_layer(monkeypatch):
    """Planted: the loop reads the states one layer late."""
    run = loop()
    sound = draft_head.states
    monkeypatch.setattr(draft_head, "states", lambda outcome, tap: sound(outcome, 2))
    assert not run.agrees()


def test_tokens_outside_the_draft_vocabulary_are_still_said():
    """Drafts are of the draft's vocabulary, the target's own tokens of all of it.

    (That the text is plain decoding's, `tests/conformance` shows with such a head.)
    """
    drafts, own = set(), set()
    for _, outcome, _ in loop().rounds(4):
        drafts |= set(np.asarray(outcome.tree.tokens)[:, 1:].flat)
        own |= set(np.asarray(outcome.verdict.token).tolist())
    assert len(drafts) > 3 and drafts <= set(KEPT)
    assert not own <= set(KEPT)  # planted: tokens of the vocabulary that is left out


def test_the_draft_vocabulary():
    tokens = np.asarray([3, 3, 3, 1, 1, 7, 7, 7, 7, 0])
    np.testing.assert_array_equal(heads.most_frequent(tokens, 9, 3), [1, 3, 7])
    with pytest.raises(ConfigError, match="draft_vocab=10"):
        heads.most_frequent(tokens, 9, 10)
    small = {"kept": jnp.asarray([1, 3])}
    spread = heads.spread(small, jnp.asarray([[0.5, 2.0]]), 5)
    np.testing.assert_array_equal(spread, [[-np.inf, 0.5, -np.inf, 2.0, -np.inf]])
    # Planted: offsets, as public checkpoints store them, are not ids.
    wrong = heads.spread({"kept": jnp.asarray([1, 2])}, jnp.asarray([[0.5, 2.0]]), 5)
    assert not np.array_equal(wrong, spread)


class OtherStates:
    """The objective that reads the embeddings and both layers of the small target."""

    objective = staticmethod(functools.partial(eagle3.objective, taps=(0, 1, 2)))
    guesses = staticmethod(functools.partial(eagle3.guesses, taps=(0, 1, 2)))


@pytest.mark.long
def test_other_states_are_read_where_they_were_trained_on():
    """Planted: a loop that reads the paper's states with a head of others."""
    arguments = (OtherStates, params(), 4)
    assert agreement.Loop("drafters/eagle3", *arguments, taps=(0, 1, 2)).agrees()
    assert not agreement.Loop("drafters/eagle3", *arguments).agrees()


@pytest.mark.parametrize("own", [(1, 2), (1, 1, 2), (0, 1, 3), (-1, 1, 2), (2, 1, 0)])
def test_states_that_do_not_exist_are_named(own):
    with pytest.raises(ConfigError, match="name three states, rising, of 0 to 2"):
        heads.taps(agreement.target().config, own)
