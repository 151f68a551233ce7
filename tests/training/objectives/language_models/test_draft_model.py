"""Draft models against a target: what is graded, masks, exits, and that they learn."""

import dataclasses
import functools

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

from models import transformer
from models.errors import ConfigError
from tests.decoding.drafters import agreement
from training import losses
from training.loop import train_step
from training.objectives.language_models import draft_model, next_token
from training.teacher import outputs


@functools.cache
def draft(layers: int = 2):
    """A smaller model with the target's vocabulary."""
    config = transformer.Config(
        vocab_size=agreement.VOCAB,
        d_model=16,
        n_layers=layers,
        n_heads=2,
        n_kv_heads=1,
        head_dim=8,
        d_ff=24,
        max_positions=256,
        ropes=(transformer.rope(8, 10000.0),),
    )
    model = transformer.transformer(config)
    return model, jax.jit(model.init)(jax.random.key(5))


def texts(rows: int = 4, length: int = 20) -> dict:
    rng = np.random.default_rng(1)
    return {"tokens": rng.integers(0, agreement.VOCAB, (rows, length)).astype(np.int32)}


def graded(batch, **fields):
    """Loss and metrics of a sound objective at random params."""
    lm, (model, params) = agreement.target(), draft()
    own, read = draft_model.objective(model, **fields), outputs.teacher(lm.model)

    @jax.jit
    def run(params, frozen, batch):
        return own.loss(params, batch, read(frozen, batch))

    return run(params, lm.params, batch)


@functools.partial(jax.jit, static_argnums=0)
def logits(model, params, tokens):
    return transformer.forward(model.config, params, tokens).logits


def test_the_text_alone_is_the_plain_objective():
    model, params = draft()
    batch = texts()
    own = draft_model.objective(model, label=1.0, soft=0.0)
    found, metrics = jax.jit(lambda p, b: own.loss(p, b, None))(params, batch)
    other = next_token.objective(model.config)
    plain, _ = jax.jit(lambda p, b: other.loss(p, b, None))(params, batch)
    np.testing.assert_allclose(found, plain, rtol=1e-5)
    np.testing.assert_allclose(metrics["nats"], plain, rtol=1e-5)


def test_the_law_of_the_next_token_is_learned():
    """By hand at every place; planted: the target's law of one token later."""
    lm, (model, params) = agreement.target(), draft()
    batch = texts()
    q = logits(model, params, batch["tokens"])[:, :-1]
    p = logits(lm.model, lm.params, batch["tokens"])
    found, metrics = graded(batch, loss="kl")
    np.testing.assert_allclose(found, losses.kl(p[:, :-1], q).mean(), rtol=1e-4)
    alpha = losses.alpha(p[:, :-1], q).mean()
    np.testing.assert_allclose(metrics["alpha_0"], alpha, rtol=1e-4)
    late = losses.kl(p[:, 1:], q).mean()
    assert abs(float(late) / float(found) - 1) > 1e-3
    half, _ = graded(batch, loss="kl", label=0.5, soft=0.5)
    np.testing.assert_allclose(half, 0.5 * (found + metrics["nats"]), rtol=1e-5)


@pytest.mark.parametrize("loss", ["kl", "tvdpp"])
def test_places_outside_the_mask_change_nothing(loss):
    """Nor do they enter TVD++'s mean and deviation; planted: they do."""
    batch, other = texts(), texts()
    mask = np.ones(batch["tokens"].shape, bool)
    mask[:, 12:] = False
    other["tokens"][:, 13:] = 0
    one, two = (graded({**b, "loss_mask": mask}, loss=loss)[0] for b in (batch, other))
    np.testing.assert_allclose(one, two, rtol=1e-6)
    whole, changed = (graded(b, loss=loss)[0] for b in (batch, other))
    assert abs(float(whole) - float(changed)) > 1e-4
    p, q = jax.random.normal(jax.random.key(0), (2, 6, 9))
    counted = jnp.array([1.0, 1, 1, 0, 0, 0])
    few = losses.tvdpp(p[:3], q[:3])
    np.testing.assert_allclose(losses.tvdpp(p, q, counted)[:3], few, rtol=1e-5)
    assert np.abs(losses.tvdpp(p, q)[:3] - few).max() > 1e-3


def test_parts_of_the_logits_change_nothing():
    batch = texts(3)
    (one, a), (two, b) = (graded(batch, loss="hybrid", part=n) for n in (0, 7))
    np.testing.assert_allclose(one, two, rtol=1e-5)
    for name in a:
        np.testing.assert_allclose(a[name], b[name], rtol=1e-4)


def test_exits_are_the_shallower_models():
    """The mean of the losses of the model cut after 1 layer, and of the whole one."""
    lm, (model, params) = agreement.target(), draft()
    batch = texts()
    both, metrics = graded(batch, loss="kl", exits=(1,))
    cut = transformer.transformer(dataclasses.replace(model.config, n_layers=1))
    shallow = {k: v for k, v in params.items() if k != "layer_1"}
    teacher = jax.jit(outputs.teacher(lm.model))(lm.params, batch)
    own = draft_model.objective(cut, loss="kl")
    first, alone = jax.jit(own.loss)(shallow, batch, teacher)
    whole, _ = graded(batch, loss="kl")
    np.testing.assert_allclose(both, (first + whole) / 2, rtol=1e-5)
    np.testing.assert_allclose(metrics["alpha_1"], alone["alpha_0"], rtol=1e-5)
    assert abs(float(first) - float(whole)) > 1e-5  # planted: the same exit twice


@pytest.mark.parametrize("fields", [{"loss": "tvdpp"}, {"label": 1.0, "soft": 0.0}])
def test_alignment_raises_acceptance_on_new_text(fields):
    """The target's own text; the plain loss learns from the text alone."""
    lm, (model, params) = agreement.target(), draft()
    target = outputs.teacher(lm.model)
    own = draft_model.objective(model, **fields)
    optimizer = optax.adam(0.02)
    step = jax.jit(train_step.make_step(own, optimizer, target=target))
    sample = jax.jit(functools.partial(written, lm))
    state = train_step.TrainState(jnp.int32(0), params, optimizer.init(params), None)
    before = jax.tree.map(np.asarray, lm.params)
    seen = []
    for i in range(60):
        batch = {"tokens": sample(jax.random.key(i))}
        state, metrics = step(state, batch, lm.params)
        seen.append(float(metrics["alpha_0"]))
    assert np.mean(seen[-5:]) > np.mean(seen[:5]) + 0.05
    jax.tree.map(np.testing.assert_array_equal, before, lm.params)


def written(lm, key, rows: int = 16, length: int = 12):
    """Text that the target samples, token by token."""
    tokens = jax.random.randint(key, (rows, length), 0, agreement.VOCAB)

    def one(i, tokens):
        logits = transformer.forward(lm.config, lm.params, tokens).logits[:, i]
        drawn = jax.random.categorical(jax.random.fold_in(key, i), logits)
        return tokens.at[:, i + 1].set(drawn)

    return jax.lax.fori_loop(0, length - 1, one, tokens)


def test_bad_arguments():
    model, params = draft()
    with pytest.raises(ConfigError, match="one must be positive"):
        draft_model.objective(model, label=0.0, soft=0.0)
    with pytest.raises(ConfigError, match=r"exits=\(2,\)"):
        draft_model.objective(model, exits=(2,))
    with pytest.raises(ConfigError, match="axis='row'"):
        draft_model.objective(model, axis="row")
    with pytest.raises(ConfigError, match="needs a target"):
        draft_model.objective(model, "kl").loss(params, texts(), None)
