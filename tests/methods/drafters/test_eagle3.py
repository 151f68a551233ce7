"""EAGLE-3's draft layer in the loop, and its vocabulary."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import decoding
from decoding import Method, Spec, reading
from models.errors import ConfigError
from models.heads import eagle3 as heads
from models.heads import layers
from tests.methods.drafters import agreement
from training.objectives import eagle3

KEY = jax.random.key(0)
KEPT = np.arange(0, agreement.VOCAB, 2)


def params(kept=None):
    lm = agreement.target()
    rows = layers.output_rows(lm.params)
    return agreement.stirred(heads.init(KEY, lm.config, rows, kept))


def test_drafts_in_the_loop_are_those_of_the_training_time_test():
    """With a draft vocabulary, which `spread` makes the target's."""
    assert agreement.agree("drafters/eagle3", eagle3, params(KEPT), 4)


def test_fault_another_layer(monkeypatch):
    """Planted: the loop reads the states one layer late."""
    sound = reading.states
    monkeypatch.setattr(reading, "states", lambda outcome, tap: sound(outcome, 2))
    assert not agreement.agree("drafters/eagle3", eagle3, params(KEPT), 4)


def test_tokens_outside_the_draft_vocabulary_are_still_said():
    """The text is plain decoding's, of which only a part can be drafted."""
    lm = agreement.target()
    method = Method(
        Spec("drafters/eagle3"), topology=Spec("topologies/chain", length=3)
    )
    prompts = [list(p) for p in agreement.PROMPTS]
    fields = {"prompts": prompts, "max_new_tokens": 24, "temperature": 1.0}
    plain = decoding.generate(lm, **fields).tokens
    own = params(KEPT)
    out = decoding.generate(lm, method=method, drafts={"heads": own}, **fields)
    assert out.tokens == plain
    assert any(token % 2 for text in plain for token in text)
    drafted = [
        t for text, o in zip(out.tokens, out.origin) for t, d in zip(text, o) if d
    ]
    assert all(token % 2 == 0 for token in drafted)


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
