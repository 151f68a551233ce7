"""SpecDec++'s labels by hand, the minimiser of its loss, and a head that learns."""

import dataclasses
import functools

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

from models import transformer
from models.errors import ConfigError
from models.predictors import acceptance_predictor
from tests.decoding.drafters import agreement
from tests.training.objectives.language_models.test_draft_model import (
    draft,
    logits,
    texts,
)
from training.evaluation import calibration
from training.loop import train_step
from training.objectives.predictors import specdec_pp
from training.runs import acceptance_run


@functools.cache
def pair():
    lm, (model, params) = agreement.target(), draft()
    return lm.model, model, {"target": lm.params, "draft": params}


def labelled(batch, **fields):
    target, model, frozen = pair()
    run = specdec_pp.drafts(target, model, **fields)
    return jax.jit(run)(frozen, batch)


def laws(tokens, temperature=1.0):
    """log p and log q of the token at each place but the first, [B, T - 1, V]."""
    target, model, frozen = pair()
    found = []
    for own, name in ((target, "target"), (model, "draft")):
        raw = logits(own, frozen[name], tokens)[:, :-1]
        found.append(jax.nn.log_softmax(raw / temperature))
    return found


def test_labels_and_mixed_text():
    """With the states the drafts can be found again: a_t must be min(1, p / q) of one
    of them. Planted: the laws of one place later."""
    _, model, frozen = pair()
    batch = {**texts(), "row": np.arange(4, dtype=np.int32)}
    found = labelled(batch, mix=0.5)
    logp, logq = laws(batch["tokens"])
    every = np.exp(np.minimum(logp - logq, 0))
    own = np.asarray(found.accepted)[:, 1:, None]
    used = np.asarray(found.weights)[:, 1:] > 0
    assert (np.abs(every - own).min(-1)[used] < 1e-4).all()
    late = np.abs(every[:, 1:] - own[:, :-1]).min(-1)[used[:, :-1]]
    assert (late > 1e-4).any()
    assert 0.3 < used.mean() < 0.7 and found.weights[:, 0].sum() == 0
    # Places that were not drafted hold the text: with all of them the state is its own.
    read = lambda p, x: transformer.forward(model.config, p, x, taps=("norm",)).hidden
    plain = jax.jit(read)(frozen["draft"], batch["tokens"])["norm"]
    most = labelled(batch, mix=0.999999)
    np.testing.assert_allclose(most.states, plain, atol=1e-5)
    assert np.abs(found.states - plain).max() > 0.1
    again = labelled(batch, mix=0.5, part=7)
    np.testing.assert_allclose(again.accepted, found.accepted, atol=1e-5)


def test_drafts_are_draws_of_q():
    """The mean of a_t over draws is sum min(p, q): n = 400 of 4 x 19 places; planted:
    labels of another temperature."""
    batch = texts()
    rows = {k: np.repeat(v, 400, 0) for k, v in batch.items()}
    rows["row"] = np.arange(len(rows["tokens"]), dtype=np.int32)
    found = np.asarray(labelled(rows, mix=0.0, part=4000).accepted)[:, 1:]
    logp, logq = laws(batch["tokens"])
    alpha = np.exp(np.minimum(logp, logq)).sum(-1)
    mean = found.reshape(4, 400, -1).mean(1)
    error = np.sqrt(0.25 / 400)
    assert np.abs(mean - alpha).max() < 5 * error
    assert abs(mean.mean() - alpha.mean()) < 5 * error / np.sqrt(alpha.size)
    logp, logq = laws(batch["tokens"], 0.3)
    other = np.exp(np.minimum(logp, logq)).sum(-1)
    assert abs(mean.mean() - other.mean()) > 5 * error / np.sqrt(alpha.size)


def test_greedy_labels():
    """At temperature 0 a draft is accepted or it is not."""
    batch = texts()
    found = labelled(batch, mix=0.0, temperature=0.0)
    logp, logq = laws(batch["tokens"])
    same = np.asarray(logp.argmax(-1) == logq.argmax(-1))
    np.testing.assert_array_equal(np.asarray(found.accepted)[:, 1:], same)


def test_masks_and_documents():
    """What may not be predicted is neither drafted nor graded."""
    batch = texts()
    mask = np.ones(batch["tokens"].shape, bool)
    mask[:, 7:] = False
    found = labelled({**batch, "loss_mask": mask}, mix=0.0)
    assert found.weights[:, 7:].sum() == 0 and (found.weights[:, 1:7] == 1).all()


@pytest.mark.parametrize("reject", [1.0, 6.0])
def test_the_least_loss_is_at_the_weighted_acceptance(reject):
    """One state, labels of mean a: a / (a + w (1 - a)); planted: a itself at w = 6."""
    labels = jnp.array([0.9, 0.2, 1.0, 0.5])
    a = float(labels.mean())

    def loss(x):
        yes, no = jax.nn.log_sigmoid(x), jax.nn.log_sigmoid(-x)
        each, norm = specdec_pp.bce(yes, no, labels, reject)
        return each.sum() / norm.sum()

    x = jnp.float32(0.0)
    for _ in range(20):  # Newton
        x = x - jax.grad(loss)(x) / jax.grad(jax.grad(loss))(x)
    found = float(jax.nn.sigmoid(x))
    assert abs(found - a / (a + reject * (1 - a))) < 1e-5
    assert abs(acceptance_run.unweighted(np.array(found), reject) - a) < 1e-5
    assert reject == 1 or abs(found - a) > 0.1


@pytest.mark.long
def test_a_head_learns_which_drafts_are_accepted():
    """The target is the draft with the output rows of half of the tokens turned round,
    which the draft's state tells. Held-out area under the ROC curve; planted: a head
    that was trained on shuffled labels."""
    model, params = draft()
    config = dataclasses.replace(model.config, tied=False)
    target, rows = transformer.transformer(config), params["embedding"]["tokens"]
    turned = jnp.where(jnp.arange(agreement.VOCAB)[:, None] % 2 == 0, rows, -rows)
    own = {**params, "embedding": {**params["embedding"], "head": turned}}
    frozen = {"target": own, "draft": params}
    labels = specdec_pp.drafts(target, model, mix=0.15)
    graded = specdec_pp.objective(reject=2.0, blocks=1)
    optimizer = optax.adam(0.01)

    def shuffled(frozen, batch):
        found = labels(frozen, batch)
        return found.replace(accepted=jnp.roll(found.accepted, 5, 1))

    areas = []
    for given in (labels, shuffled):
        step = jax.jit(train_step.make_step(graded, optimizer, target=given))
        start = acceptance_predictor.init(jax.random.key(0), model.config.d_model)
        state = train_step.TrainState(jnp.int32(0), start, optimizer.init(start), None)
        for i in range(120):
            state, _ = step(state, sample(i), frozen)
        held = jax.jit(labels)(frozen, sample(1000))
        said = acceptance_predictor.probability(state.params, held.states, 1)
        areas.append(calibration.bins(said, held.accepted, held.weights).auc)
    assert areas[0] > 0.7 and areas[0] > areas[1] + 0.1


def sample(number: int) -> dict:
    rng = np.random.default_rng(number)
    tokens = rng.integers(0, agreement.VOCAB, (16, 20)).astype(np.int32)
    return {"tokens": tokens, "row": np.arange(16, dtype=np.int32) + 16 * number}


def test_bad_arguments():
    target, model, _ = pair()
    with pytest.raises(ConfigError, match="mix=1"):
        specdec_pp.drafts(target, model, mix=1.0)
    with pytest.raises(ConfigError, match="temperature=-1"):
        specdec_pp.drafts(target, model, temperature=-1.0)
    with pytest.raises(ConfigError, match="reject=0"):
        specdec_pp.objective(reject=0.0)
