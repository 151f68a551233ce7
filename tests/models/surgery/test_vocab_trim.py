"""A draft model with a trimmed head: its logits, and texts that do not change."""

import dataclasses

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import decoding
from decoding import Method, Spec
from models import base, io, transformer
from models.errors import ConfigError
from models.surgery import vocab_trim

CONFIG = transformer.Config(
    vocab_size=12,
    d_model=16,
    n_layers=1,
    n_heads=2,
    n_kv_heads=1,
    head_dim=8,
    d_ff=16,
    max_positions=128,
    ropes=(transformer.rope(8, 100.0),),
)
IDS = np.array([1, 4, 5, 9], np.int32)
TOKENS = jnp.array([[1, 2, 3, 11]], jnp.int32)


def loaded(tied: bool = True, seed: int = 0) -> io.Loaded:
    model = transformer.transformer(dataclasses.replace(CONFIG, tied=tied))
    params = jax.tree.map(lambda x: x * 3, model.init(jax.random.key(seed)))
    return io.Loaded(model, params)


def logits(lm: io.Loaded) -> np.ndarray:
    block = base.causal_block(TOKENS, jnp.zeros(1, jnp.int32), jnp.array([4]), 8, "all")
    return np.asarray(lm.model(lm.params, lm.model.init_cache(1, 8), block)[0].logits)


def test_counts_by_hand():
    counts = vocab_trim.counts([[1, 1, 3], [3, 3, 0]], 5)
    assert counts.tolist() == [1, 2, 0, 3, 0]
    assert vocab_trim.frequent(counts, 2).tolist() == [1, 3]
    assert vocab_trim.frequent(counts, 3, always=(4,)).tolist() == [1, 3, 4]
    assert vocab_trim.frequent(counts, 4).tolist() == [0, 1, 2, 3]
    assert vocab_trim.coverage(counts, np.array([1, 3])) == 5 / 6


@pytest.mark.parametrize("tied", [pytest.param(True, marks=pytest.mark.long), False])
def test_logits_are_those_of_the_kept_rows(tied):
    whole, trimmed = logits(loaded(tied)), logits(vocab_trim.trim(loaded(tied), IDS))
    np.testing.assert_allclose(trimmed[..., IDS], whole[..., IDS], atol=1e-5)
    assert np.isneginf(np.delete(trimmed, IDS, -1)).all()
    head = vocab_trim.trim(loaded(tied), IDS).params
    assert head["trimmed"].shape == (4, 16) and "head" not in head["embedding"]
    every = vocab_trim.trim(loaded(tied), np.arange(12))
    np.testing.assert_allclose(logits(every), whole, atol=1e-5)


def texts(draft: io.Loaded, drafter: str = "drafters/model", **fields):
    topology = Spec("topologies/chain", length=3)
    return decoding.generate(
        loaded(),
        [[1], [2, 3, 4]],
        Method(Spec(drafter), topology=topology, **fields),
        max_new_tokens=24,
        temperature=0.8,
        drafts={"draft": draft},
    )


def test_text_is_plain_and_the_rare_tokens_are_said():
    plain = decoding.generate(
        loaded(), [[1], [2, 3, 4]], Method(), max_new_tokens=24, temperature=0.8
    )
    out = texts(vocab_trim.trim(loaded(), IDS))
    assert out.tokens == plain.tokens
    said = [
        (t, depth) for ts, ds in zip(out.tokens, out.origin) for t, depth in zip(ts, ds)
    ]
    assert {t for t, depth in said if depth > 0} <= set(IDS.tolist())
    assert {t for t, _ in said} - set(IDS.tolist())
    # The same model, untrimmed, is always accepted.
    assert texts(loaded()).stats.tokens_per_call > out.stats.tokens_per_call


def test_fault_rows_of_other_tokens():
    """Planted: the index map is off by one."""
    lm = vocab_trim.trim(loaded(), IDS)
    lm.params["place"] = jnp.roll(lm.params["place"], -1)
    whole, faulty = logits(loaded()), logits(lm)
    with pytest.raises(AssertionError):
        np.testing.assert_allclose(faulty[..., IDS], whole[..., IDS], atol=1e-5)


def test_bad_arguments():
    with pytest.raises(ConfigError, match="size=9"):
        vocab_trim.frequent(np.zeros(5), 9)
    with pytest.raises(ConfigError, match="outside the vocabulary"):
        vocab_trim.trim(loaded(), np.array([3, 12]))
