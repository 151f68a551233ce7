"""Masked diffusion's loss: times, weights, alignment, blocks, rows."""

import dataclasses
import functools
import itertools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from models import transformer
from models.errors import ConfigError
from training.objectives.language_models import masked_diffusion

SHAPE = transformer.Config(
    vocab_size=11,
    d_model=16,
    n_layers=1,
    n_heads=2,
    n_kv_heads=1,
    head_dim=8,
    d_ff=16,
    max_positions=64,
    ropes=(transformer.rope(8, 100.0),),
    mask_token=10,
    visibility=("bidirectional", "block_causal"),
    block_size=4,
)
SHIFTED = dataclasses.replace(SHAPE, alignment="shifted")
LENGTH = 12


@pytest.fixture(scope="module")
def params():
    drawn = transformer.transformer(SHAPE).init(jax.random.key(0))
    return jax.tree.map(lambda x: 3 * x, drawn)


def batch(rows=4, first=0):
    rng = np.random.default_rng(0)
    tokens = rng.integers(0, 10, (rows, LENGTH + 1)).astype(np.int32)
    return {"tokens": jnp.asarray(tokens), "row": first + jnp.arange(rows)}


def test_times_are_stratified():
    """16 rows in sequence, wherever they begin, have a time in each eighth.

    Planted: independent times leave eighths empty.
    """
    for first in (0, 5, 100_000):
        for seed in range(3):
            times = masked_diffusion.times(first + jnp.arange(16), seed)
            assert (times >= 0).all() and (times < 1).all()
            assert set((8 * times).astype(int).tolist()) == set(range(8))
    drawn = jax.random.uniform(jax.random.key(0), (16,))
    assert len(set((8 * drawn).astype(int).tolist())) < 8


def test_the_weight_makes_every_token_count_alike():
    """Over all masks of three tokens, weighted CE sums to CE a token at each p.

    Planted: without 1 / p the mean is p times that.
    """
    nats = np.array([0.3, 1.0, 2.5])
    for p in (0.2, 0.9):
        total, plain = 0.0, 0.0
        for mask in itertools.product((0, 1), repeat=3):
            chance = np.prod([p if m else 1 - p for m in mask])
            total += chance * (nats * mask).sum() / p
            plain += chance * (nats * mask).sum()
        assert total == pytest.approx(nats.sum())
        assert plain == pytest.approx(p * nats.sum())


@pytest.mark.parametrize("config", [SHAPE, SHIFTED])
def test_the_loss_by_hand(config, params):
    """The sum over masked tokens of CE / p, over all that may be masked."""
    data = batch()
    objective = masked_diffusion.objective(config, seed=3)
    loss, metrics = jax.jit(objective.loss)(params, data, None)
    clean, row = np.asarray(data["tokens"][:, :-1]), data["row"]
    p = 0.999 * masked_diffusion.times(row, 3) + 0.001
    may = np.asarray(masked_diffusion.maskable(config, data))
    some = masked_diffusion.noised(jnp.asarray(clean), may, p, row, 10, 3)
    logits = transformer.forward(
        SHAPE, params, some.tokens, mask=transformer.bidirectional(LENGTH)
    ).logits
    law = jax.nn.log_softmax(logits.at[..., 10].set(-jnp.inf))
    shift = int(config.alignment == "shifted")
    total = 0.0
    for b, i in np.argwhere(some.masked):
        total -= float(law[b, i - shift, clean[b, i]]) / float(p[b])
    assert float(loss) == pytest.approx(total / may.sum(), rel=1e-5)
    assert float(metrics["masked"]) == pytest.approx(some.masked.sum() / may.sum())
    assert float(objective.weight(data)) == may.sum() == 4 * (LENGTH - shift)
    # Planted: the other alignment's outputs.
    wrong = -sum(
        float(law[b, i - 1 + shift, clean[b, i]]) / float(p[b])
        for b, i in np.argwhere(some.masked)
        if i
    )
    assert abs(wrong / may.sum() - float(loss)) > 0.01


def test_blocks_as_they_are_decoded(params):
    """A block's laws are of its noised tokens behind clean ones, shifted or not.

    A shifted model's first one is of the block before alone, clean. Planted: it is read
    where the noised copy stands.
    """
    rng = np.random.default_rng(1)
    clean = rng.integers(0, 10, (1, LENGTH)).astype(np.int32)
    noised = np.where(rng.random((1, LENGTH)) < 0.5, 10, clean).astype(np.int32)
    plain = jax.jit(lambda t, m: transformer.forward(SHAPE, params, t, mask=m).logits)
    place = np.arange(LENGTH)
    for config, size in ((SHAPE, 5), (SHIFTED, 5), (SHIFTED, 4)):
        beside = functools.partial(masked_diffusion.logits, config, params)
        got = jax.jit(lambda a, b, of=beside, w=size: of(a, b, w, w))(noised, clean)
        shift, wrong = int(config is SHIFTED), 0.0
        mask = transformer.block_causal(LENGTH, size)
        for i in range(shift, LENGTH):
            begin, source = i // size * size, i - shift
            of = source // size * size
            before = place < of
            behind = noised if of == begin else clean
            want = plain(np.where(before, clean, behind), mask)
            np.testing.assert_allclose(
                got[0, i, :10], want[0, source, :10], atol=1e-4, rtol=0
            )
            planted = plain(np.where(before, clean, noised), mask)
            gap = jnp.abs(planted[0, source, :10] - got[0, i, :10]).max()
            wrong = max(wrong, float(gap))
        assert (wrong > 0.01) == (shift == 1)


def test_a_row_depends_on_its_number_alone(params):
    """A batch's loss is the mean of its parts'. Planted: parts numbered anew."""
    objective = masked_diffusion.objective(SHIFTED, bidirectional=0.5)
    loss = jax.jit(lambda data: objective.loss(params, data, None)[0])
    # The first half is bidirectional, so parts are pairs of one row of each half.
    order = jnp.asarray([0, 2, 1, 3])
    whole = batch()
    parts = [{k: v[order[i : i + 2]] for k, v in whole.items()} for i in (0, 2)]
    mean = sum(map(loss, parts)) / 2
    assert float(mean) == pytest.approx(float(loss(whole)), rel=1e-5)
    anew = sum(loss({**part, "row": jnp.arange(2)}) for part in parts) / 2
    assert abs(float(anew) - float(loss(whole))) > 0.01


def test_answers_only(params):
    """Prompts are never masked; rows count alike. Planted: tokens counting alike."""
    data = batch(2)
    learned = jnp.zeros((2, LENGTH + 1), bool).at[0, 3:5].set(True).at[1, 3:].set(True)
    data["loss_mask"] = learned
    objective = masked_diffusion.objective(SHAPE, answers_only=True)
    by_token = masked_diffusion.objective(SHAPE)
    loss = jax.jit(lambda data: objective.loss(params, data, None)[0])
    # A row's number is of its noise, so the same row twice has the row's own loss.
    alone = [
        loss({k: jnp.stack([v[i], v[i]]) for k, v in data.items()}) for i in (0, 1)
    ]
    assert float(loss(data)) == pytest.approx(float(sum(alone)) / 2, rel=1e-5)
    assert float(objective.weight(data)) == 2
    other = jax.jit(lambda data: by_token.loss(params, data, None)[0])(data)
    assert abs(float(other) - float(loss(data))) > 0.01
    may = masked_diffusion.maskable(SHAPE, data)
    tokens, chance = data["tokens"][:, :-1], jnp.ones(2)
    some = masked_diffusion.noised(tokens, may, chance, data["row"], 10, 0)
    assert (np.asarray(some.masked) == np.asarray(learned[:, :-1])).all()


def test_attention_is_annealed():
    """Row 0 is causal, row n bidirectional, half of the pairs between at n / 2."""
    rows = jnp.asarray([0, 50, 100, 200])
    mask = np.asarray(masked_diffusion.annealed(rows, 40, 100, 0))
    causal = np.tril(np.ones((40, 40), bool))
    assert (mask[0] == causal).all() and mask[2].all() and mask[3].all()
    assert mask[1][causal].all()
    assert 0.4 < mask[1][~causal].mean() < 0.6


def test_documents_are_apart(params):
    """A shifted model predicts no document's first token from the one before.

    Planted: documents seen together.
    """
    data = batch(1)
    cut = jnp.asarray([[0] * 5 + [1] * 8])
    may = masked_diffusion.maskable(SHIFTED, {**data, "segments": cut})[0]
    assert np.flatnonzero(~np.asarray(may)).tolist() == [0, 5]
    tokens = data["tokens"][:, :-1]
    other = tokens.at[0, 5:].set((tokens[0, 5:] + 1) % 10)

    @jax.jit
    def law(tokens, cut):
        whole = masked_diffusion.logits(SHIFTED, params, tokens, segments=cut)
        beside = masked_diffusion.logits(
            SHIFTED, params, tokens, tokens, 7, 7, segments=cut
        )
        return jnp.stack([whole, beside])[:, 0, 1:5, :10]

    apart = [law(t, cut[:, :-1]) for t in (tokens, other)]
    np.testing.assert_allclose(apart[0], apart[1], atol=1e-6)
    mixed = [law(t, jnp.zeros((1, LENGTH), jnp.int32)) for t in (tokens, other)]
    assert (jnp.abs(mixed[0] - mixed[1]).max((1, 2)) > 0.01).all()


def test_settings_are_checked():
    with pytest.raises(ConfigError, match="needs a mask token"):
        plain = dataclasses.replace(SHAPE, mask_token=None)
        masked_diffusion.objective(plain)
    with pytest.raises(ConfigError, match=r"bidirectional=1\.5"):
        masked_diffusion.objective(SHAPE, bidirectional=1.5)
    with pytest.raises(ConfigError, match=r"blocks=\(0, 4\)"):
        masked_diffusion.objective(SHAPE, bidirectional=0.0, blocks=(0, 4))
    with pytest.raises(ConfigError, match="of 3 rows is no whole number"):
        masked_diffusion.split(3, 0.5)
