"""The plain LM objective, chunked causal attention, and the held-out figures."""

import functools
import math

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import models
from models import transformer
from models.errors import DataError
from models.transformer import modules, sequence_attention
from training.evaluation import language_model
from training.objectives.language_models import next_token

SHAPE = transformer.Config(
    vocab_size=64,
    d_model=16,
    n_layers=1,
    n_heads=4,
    n_kv_heads=2,
    head_dim=8,
    d_ff=16,
    max_positions=256,
    ropes=(transformer.Rope(transformer.rope_frequencies(8, 100.0)),),
)


@pytest.fixture(scope="module")
def params() -> dict:
    init = transformer.transformer(SHAPE).init(jax.random.key(0))
    return jax.tree.map(lambda x: 2 * x, init)  # far from uniform


def test_cross_entropy_by_hand() -> None:
    logits = jnp.log(jnp.asarray([[0.5, 0.25, 0.25], [0.1, 0.1, 0.8]])) + 7.0
    nats = next_token.cross_entropy(logits, jnp.asarray([1, 2]))
    np.testing.assert_allclose(nats, [math.log(4), -math.log(0.8)], rtol=1e-5)


@pytest.mark.long
def test_documents_of_a_window_are_apart(params: dict) -> None:
    """A packed batch's loss is the mean over its documents, each alone."""
    rng = np.random.default_rng(0)
    a, b = rng.integers(1, 64, 9), rng.integers(1, 64, 7)
    packed = {
        "tokens": jnp.asarray([[*a, *b]]),
        "segments": jnp.asarray([[0] * 9 + [1] * 7]),
    }
    objective = next_token.objective(SHAPE)
    mean = jax.jit(lambda batch: objective.loss(params, batch, None)[0])
    loss = mean(packed)
    alone = [mean({"tokens": x[None]}) for x in (a, b)]
    np.testing.assert_allclose(loss, (8 * alone[0] + 6 * alone[1]) / 14, rtol=1e-5)
    assert objective.weight(packed) == 14
    mixed = mean({"tokens": packed["tokens"]})
    assert abs(mixed - loss) > 1e-3  # planted fault: documents seen together


@pytest.mark.parametrize("length", [5, sequence_attention.CHUNK + 9])
def test_chunked_attention_is_attention(length: int) -> None:
    """To 1e-5: the same sums of at most 137 float32 terms in another order."""
    keys = jax.random.split(jax.random.key(1), 4)
    q = jax.random.normal(keys[0], (2, length, 2, 2, 8))
    k, v = (jax.random.normal(key, (2, length, 2, 8)) for key in keys[1:3])
    mask = jnp.tril(jnp.ones((2, length, length), bool))
    mask = mask.at[1, -1, : length // 2].set(False)
    bias = jax.random.normal(keys[3], (2, 2, 2, length, length))
    whole = jax.jit(functools.partial(modules.attend, SHAPE))
    chunked = jax.jit(functools.partial(sequence_attention.attend, SHAPE))
    wanted = whole(q, k.swapaxes(1, 2), v.swapaxes(1, 2), mask, bias)
    got = chunked(q, k, v, mask, bias)
    np.testing.assert_allclose(got, wanted, atol=1e-5)
    blind = chunked(q, k, v, mask, jnp.zeros_like(bias))  # planted fault
    assert jnp.abs(blind - wanted).max() > 1e-2


def test_spans_predict_every_token_once() -> None:
    for length in (1, 2, 9, 10, 33, 100):
        for window, context in ((8, 0), (8, 3), (8, 7), (200, 50)):
            counted = np.zeros(length, int)
            for start, first, end in language_model.spans(length, window, context):
                assert end - start <= window + 1 and start < first < end
                assert start == 0 or first - 1 - start == context
                counted[first:end] += 1
            assert counted[0] == 0 and (counted[1:] == 1).all()


def test_bits_per_byte_is_the_sum_over_documents(params: dict) -> None:
    rng = np.random.default_rng(1)
    documents = [rng.integers(1, 64, size) for size in (3, 40, 150)]
    bits = language_model.bits_per_byte(
        SHAPE, params, documents, 1000, window=256, context=9
    )
    total = 0.0
    forward = jax.jit(lambda ids: transformer.forward(SHAPE, params, ids).logits)
    for document in documents:
        ids = jnp.asarray([[0, *document]])
        logits = forward(ids[:, :-1])
        total += float(next_token.cross_entropy(logits, ids[:, 1:]).sum())
    assert bits.tokens == 193
    assert bits.bits_per_byte == pytest.approx(total / math.log(2) / 1000, rel=1e-5)
    short = language_model.bits_per_byte(
        SHAPE, params, documents, 1000, window=16, context=9
    )
    assert short.tokens == 193
    assert abs(short.bits_per_byte - bits.bits_per_byte) > 1e-4  # less context shows
    with pytest.raises(DataError, match="context=16"):
        language_model.bits_per_byte(SHAPE, params, documents, 1, window=16, context=16)


def test_copying_counts_tokens_in_place(monkeypatch: pytest.MonkeyPatch) -> None:
    """A perfect copier scores 60 of 60; one that slips at token 10 scores 10 there."""
    rng = np.random.default_rng(2)
    documents = [rng.integers(1, 64, size) for size in (79, 80, 300)]
    asked = []

    def decode(slip: int):
        def generate(lm, prompts, method, max_new_tokens):
            asked.extend(prompts)
            passages = [p[:80] for p in prompts]
            texts = [p[16:76] for p in passages]
            texts = [[*t[:slip], *([63 - x for x in t[slip:]])] for t in texts]
            return type("Output", (), {"tokens": texts})

        return generate

    monkeypatch.setattr(language_model.decoding, "generate", decode(60))
    assert language_model.copying(None, documents, [7, 8]) == (60.0, 60.0, 64, 60)
    assert len(asked) == 64 and all(len(p) == 80 + 2 + 16 for p in asked)
    assert all(p[80:82] == [7, 8] and p[82:] == p[:16] for p in asked)
    monkeypatch.setattr(language_model.decoding, "generate", decode(10))
    assert language_model.copying(None, documents, [7, 8]).matched == 10.0
    with pytest.raises(DataError, match="80 tokens"):
        language_model.copying(None, documents[:1], [7])


def test_untrained_models_do_not_copy(params: dict) -> None:
    lm = models.Loaded(transformer.transformer(SHAPE), params)
    documents = [np.random.default_rng(3).integers(1, 64, 200)]
    copied = language_model.copying(lm, documents, [7], cases=4, new=20)
    assert copied.matched < 10
