"""SpecEE's predictors: their labels, their features, and what they learn."""

import dataclasses
import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from decoding import Method, Spec
from decoding.conformance import kit
from models import transformer
from models.errors import ConfigError
from models.heads import eagle
from models.predictors import exit_predictor
from tests.decoding.drafters import agreement
from training.objectives.predictors import specee

K = 3
TOKENS = np.random.default_rng(0).integers(0, agreement.VOCAB, (2, 12)).astype(np.int32)


def heads():
    return eagle.init(jax.random.key(0), agreement.target(4).config)


def found(asked: float = 1.0, part: int = 0, tokens=TOKENS) -> specee.Answers:
    lm = agreement.target(4)
    run = specee.answers(lm.model, K, asked, part=part)
    frozen = {"target": lm.params, "heads": heads()}
    return jax.tree.map(np.asarray, jax.jit(run)(frozen, {"tokens": tokens}))


@functools.cache
def cut(layers: int) -> np.ndarray:
    """Logits [B, T, V] of the target with its first layers alone."""
    lm = agreement.target(4)
    config = dataclasses.replace(lm.config, n_layers=layers)
    run = jax.jit(lambda params: transformer.forward(config, params, TOKENS).logits)
    return np.asarray(run(lm.params))


@pytest.mark.long
def test_labels_and_features_by_hand():
    """Against the target cut after each layer."""
    own, full = found(), cut(4)
    assert own.features.shape == (2, 12, 3, 3 * K)
    before = np.zeros((2, 12, K))
    for layer in range(3):
        logits = cut(layer + 1)
        same = logits.argmax(-1) == full.argmax(-1)
        np.testing.assert_array_equal(own.right[..., layer], same)
        z = np.take_along_axis(logits, own.candidates, -1)
        s = np.asarray(jax.nn.softmax(z))
        wanted = np.concatenate([z, s, s - before], -1)
        np.testing.assert_allclose(own.features[..., layer, :], wanted, atol=1e-4)
        among = (logits.argmax(-1)[..., None] == own.candidates).any(-1)
        np.testing.assert_array_equal(own.expected[..., layer], among)
        other = np.take_along_axis(cut(layer + 2), own.candidates, -1)
        assert np.abs(z - other).max() > 0.1  # planted: a layer off
        before = s
    parts = found(part=5)
    np.testing.assert_allclose(parts.features, own.features, atol=1e-5)
    assert own.weights[:, 0].sum() == 0 and (own.weights[:, 1:-1] == 1).all()


def test_candidates_are_those_of_the_loop():
    """Those that the drafter asks about are those that the predictors learn from;
    planted: they are not those of the place before."""
    lm = agreement.target(4)
    beside = {
        "heads": heads(),
        "exits": exit_predictor.init(jax.random.key(1), 4, K, 8),
    }
    method = Method(exit=Spec("exits/specee", static=(0,), threshold=1.0))
    run = kit.Run(method, lm=lm, beside=beside).alter(chunk=4)
    prompts, rounds = [[3, 9, 4, 7, 1, 2], [5, 6]], 5
    state, asked = run.start(prompts, 20), []
    for _ in range(rounds):
        state, _ = run.engine.step(run.params, state)
        asked.append(np.asarray(state.exit.row.candidates))
    texts = np.zeros((2, 12), np.int32)
    for i, tokens in enumerate(np.asarray(state.tokens)):
        texts[i] = tokens[:12]
    own = found(tokens=texts).candidates
    for i, prompt in enumerate(prompts):
        at = len(prompt) - 1
        drawn = np.stack([each[i] for each in asked])
        np.testing.assert_array_equal(drawn, own[i, at : at + rounds])
        assert (drawn != own[i, at - 1 : at - 1 + rounds]).any()


def test_what_was_not_asked_is_not_compared_with():
    """With hardly a layer asked every s' is 0; with half of them s' is 0 or an s of a
    layer below."""
    rare = found(asked=1e-9).features
    np.testing.assert_array_equal(rare[..., 2 * K :], rare[..., K : 2 * K])
    half = found(asked=0.5).features
    s = half[..., K : 2 * K]
    before = s - half[..., 2 * K :]
    options = [np.zeros_like(s[..., 0, :]), s[..., 0, :], s[..., 1, :]]
    which = [np.abs(before[..., 2, :] - o).max(-1) < 1e-6 for o in options]
    assert np.any(which, axis=0).all() and all(w.any() for w in which)
    with pytest.raises(ConfigError, match="asked=0"):
        specee.answers(agreement.target(4).model, K, 0)


def answers(features, right) -> specee.Answers:
    shape = right.shape
    return specee.Answers(
        jnp.asarray(features, jnp.float32),
        jnp.asarray(right, jnp.float32),
        jnp.zeros((*shape[:2], K), jnp.int32),
        jnp.ones(shape, bool),
        jnp.ones(shape[:2]),
    )


def test_predictors_learn_and_the_loss_is_the_cross_entropy():
    """Layer i is right where its first logit is above i, n = 512, seed 0; planted: with
    labels of other places nothing is learnt."""
    rng = np.random.default_rng(0)
    features = rng.normal(size=(4, 128, 3, 3 * K)) * 2
    right = features[..., 0] > np.arange(3)
    own = specee.objective()
    start = exit_predictor.init(jax.random.key(0), 4, K, 16)

    @jax.jit
    def trained(given):
        def step(params, _):
            grads, metrics = jax.grad(own.loss, has_aux=True)(params, {}, given)
            return jax.tree.map(lambda p, g: p - 1.0 * g, params, grads), metrics

        return jax.lax.scan(step, start, None, 200)

    params, metrics = trained(answers(features, right))
    assert metrics["hit"][-1] > 0.95 > metrics["hit"][0]
    _, other = trained(answers(features, right[:, ::-1]))
    assert other["hit"][-1] < 0.9
    odds = np.asarray(specee.log_odds(params, jnp.asarray(features, jnp.float32)))
    odds = odds.astype(np.float64)
    yes, no = -np.log1p(np.exp(-odds)), -np.log1p(np.exp(odds))
    by_hand = -np.where(right, yes, no).mean()
    value = jax.jit(own.loss)(params, {}, answers(features, right))[0]
    np.testing.assert_allclose(value, by_hand, rtol=1e-4)


def test_rules_without_training():
    """From a layer on, and where a candidate has more than a share; planted: the
    share sought among the logits."""
    z = np.array([[4.0, 0.0, 1.0], [0.5, 0.4, 0.6]], np.float32)

    @jax.jit
    def said(rule, z):
        given = exit_predictor.features(z, jnp.zeros_like(z))[0]
        return jnp.stack([exit_predictor.probability(rule, i, given) for i in range(3)])

    from_one = np.asarray(said(exit_predictor.after(4, K, 1), z)) > 0.5
    np.testing.assert_array_equal(from_one, [[False] * 2, [True] * 2, [True] * 2])
    for share, wanted in (
        (0.9, [True, False]),
        (0.3, [True, True]),
        (1.0, [False] * 2),
    ):
        rule = exit_predictor.sure(4, K, share)
        exit_predictor.check(rule, 4)
        found = np.asarray(said(rule, z)) > 0.5
        np.testing.assert_array_equal(found, [wanted] * 3)
    rule = exit_predictor.sure(4, K, 0.55)
    rule["in"]["weight"] = jnp.roll(rule["in"]["weight"], -K, 1)
    assert (np.asarray(said(rule, z))[:, 1] > 0.5).all()  # 0.6 is a logit


def test_first_stops():
    """The first layer that is sure and whose answer is expected."""
    sure = jnp.asarray([[True, True, False], [False, False, True], [False] * 3])
    given = answers(np.zeros((1, 3, 3, 3 * K)), np.zeros((1, 3, 3)))
    given = given.replace(expected=jnp.asarray([[False, True, True]] * 3))
    stop, first = specee.first_stops(sure, given)
    assert stop.tolist() == [1.0, 1.0, 0.0] and first.tolist()[:2] == [1, 2]
