"""Hyperfitting: its samples, its loss, and a model that learns them by heart."""

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

from models import transformer
from models.errors import DataError
from training.data import text_corpus
from training.loop import train_step
from training.objectives.language_models import hyperfitting

SHAPE = transformer.Config(
    vocab_size=64,
    d_model=16,
    n_layers=1,
    n_heads=2,
    n_kv_heads=1,
    head_dim=8,
    d_ff=32,
    max_positions=64,
    ropes=(transformer.rope(8, 100.0),),
)
RNG = np.random.default_rng(0)
DOCUMENTS = [RNG.integers(1, 64, n).astype(np.int32) for n in (40, 7, 33)]
SIZE = 8


@pytest.fixture(scope="module")
def params():
    return jax.jit(transformer.transformer(SHAPE).init)(jax.random.key(0))


def test_samples_do_not_overlap():
    """Planted: documents that are joined have samples that lie in two of them."""
    found = hyperfitting.samples(DOCUMENTS, 9, SIZE, seed=0)
    places = {
        tuple(document[start : start + SIZE].tolist())
        for document in DOCUMENTS
        for start in range(0, len(document) - SIZE + 1, SIZE)
    }
    assert {tuple(x.tolist()) for x in found} == places and len(places) == 9
    some = hyperfitting.samples(DOCUMENTS, 4, SIZE, seed=1)
    assert len({tuple(x.tolist()) for x in some} & places) == 4
    joined = hyperfitting.samples([np.concatenate(DOCUMENTS)], 9, SIZE, seed=0)
    assert not {tuple(x.tolist()) for x in joined} <= places
    for count in (0, 10):
        with pytest.raises(DataError, match="the text has 9"):
            hyperfitting.samples(DOCUMENTS, count, SIZE, seed=0)


def test_an_epoch_shows_every_sample_once():
    """Planted: a stream that cuts the joined samples anew shows other rows."""
    rows = hyperfitting.samples(DOCUMENTS, 9, SIZE, seed=0)
    stream = hyperfitting.stream(rows, 4, 3, 0, seed=2)
    assert stream.steps == 12
    epochs = []
    for epoch in range(4):
        batches = [stream.batch(3 * epoch + i) for i in range(3)]
        tokens = np.concatenate([batch["tokens"] for batch in batches])
        masks = np.concatenate([batch["loss_mask"] for batch in batches])
        assert (tokens[:, -1] == 0).all()
        assert masks[:, 1:-1].all() and not masks[:, [0, -1]].any()
        epochs.append([tuple(x) for x in tokens[:, :-1].tolist()])
    wanted = sorted(tuple(x.tolist()) for x in rows)
    assert all(sorted(epoch) == wanted for epoch in epochs)
    assert len({tuple(epoch) for epoch in epochs}) > 1  # orders
    corpus = text_corpus.Corpus(rows, 0)
    cut = text_corpus.Stream(corpus, (text_corpus.Stage(12, 3, SIZE),), 2)
    shown = {tuple(x[:-1].tolist()) for i in range(12) for x in cut.batch(i)["tokens"]}
    assert not shown <= {*wanted}


def test_the_loss_is_the_mean_of_the_samples(params):
    """Planted: a loss that counts the separator behind each sample."""
    rows = hyperfitting.samples(DOCUMENTS, 3, SIZE, seed=0)
    batch = hyperfitting.stream(rows, 1, 3, 0, seed=0).batch(0)
    objective = hyperfitting.objective(SHAPE)
    loss = jax.jit(lambda batch: objective.loss(params, batch, None))
    value, metrics = loss(batch)
    nats, entropy, hits = jax.jit(
        lambda tokens: hyperfitting.each(SHAPE, params, tokens)
    )(batch["tokens"][:, :-1])
    np.testing.assert_allclose(value, nats.mean(), rtol=1e-5)
    np.testing.assert_allclose(metrics["entropy"], entropy.mean(), rtol=1e-5)
    np.testing.assert_allclose(metrics["hits"], hits.mean(), rtol=1e-5)
    assert objective.weight(batch) == 3 * (SIZE - 1)

    logits = transformer.forward(SHAPE, params, batch["tokens"][:1, :-2]).logits
    logp = np.asarray(jax.nn.log_softmax(logits[0].astype(jnp.float32)))
    by_hand = -logp[np.arange(SIZE - 1), batch["tokens"][0, 1:-1]].mean()
    np.testing.assert_allclose(nats[0], by_hand, rtol=1e-5)
    by_hand = -(np.exp(logp) * logp).sum(-1).mean()
    np.testing.assert_allclose(entropy[0], by_hand, rtol=1e-5)

    learned = np.ones_like(batch["loss_mask"])
    assert abs(loss({**batch, "loss_mask": learned})[0] - value) > 1e-3


def test_samples_are_learned_by_heart(params):
    """The entropy falls and held-out nats rise; planted: a rate of 0."""
    rows = hyperfitting.samples(DOCUMENTS, 4, SIZE, seed=0)
    held = RNG.integers(1, 64, (4, SIZE)).astype(np.int32)
    batch = hyperfitting.stream(rows, 1, 4, 0, seed=0).batch(0)
    grade = jax.jit(lambda params, x: hyperfitting.each(SHAPE, params, x))

    def trained(rate):
        optimizer = optax.adam(rate)
        objective = hyperfitting.objective(SHAPE)
        step = jax.jit(train_step.make_step(objective, optimizer))
        state = train_step.first_state(params, optimizer, False)
        for _ in range(200):
            state, metrics = step(state, batch, None)
        return state.params, metrics

    after, metrics = trained(0.02)
    assert metrics["loss"] < 0.1 and metrics["hits"] == 1
    before, then = (np.mean(grade(x, held), 1) for x in (params, after))
    assert then[0] > before[0] + 1 and then[1] < before[1] - 1
    same, metrics = trained(0.0)
    assert metrics["loss"] > 3
    np.testing.assert_array_equal(np.mean(grade(same, held), 1), before)
