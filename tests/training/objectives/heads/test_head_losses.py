"""Losses of draft heads: shifts, masks, parts of the logits, the frozen target."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

from tests.decoding.drafters import agreement
from training import losses
from training.loop import train_step
from training.objectives.heads import eagle, eagle3, hydra, medusa
from training.teacher import outputs

KEY = jax.random.key(0)


def counting(rows: int = 8, length: int = 24) -> dict:
    """Texts that count: token t + 1 is token t plus one, modulo the vocabulary."""
    start = np.random.default_rng(0).integers(0, agreement.VOCAB, (rows, 1))
    tokens = (start + np.arange(length)) % agreement.VOCAB
    return {"tokens": tokens.astype(np.int32)}


@pytest.mark.parametrize("objective", [medusa, hydra], ids=["medusa", "hydra"])
def test_head_i_learns_the_token_at_its_distance(objective):
    """Head i must come to guess x_t + 2 + i; a label one off would give 0 hits."""
    lm = agreement.target()
    own = objective.objective(lm.model)
    params = objective.init(KEY, lm.model, lm.params, heads=3)
    optimizer = optax.adam(0.01)
    target = outputs.teacher(lm.model)
    step = jax.jit(train_step.make_step(own, optimizer, target=target))
    state = train_step.TrainState(jnp.int32(0), params, optimizer.init(params), None)
    batch = counting()
    for _ in range(60):
        state, _ = step(state, batch, lm.params)

    @jax.jit
    def guesses(params):
        teacher = target(lm.params, batch)
        found = objective.guesses(params, lm.model, batch, teacher, 3)
        return [draft(states).argmax(-1) for states, draft in found]

    for i, found in enumerate(guesses(state.params)):
        guess = np.asarray(found)[:, : -2 - i]
        wanted = batch["tokens"][:, 2 + i :]
        assert (guess == wanted).mean() > 0.9
        assert (guess == wanted - 1).mean() < 0.1  # planted: the shift of head i - 1


def test_predicted_masks():
    """A position counts where the token it predicts exists, may be, and is its own."""
    tokens = np.zeros((1, 6), np.int32)
    batch = {
        "tokens": tokens,
        "loss_mask": np.array([[1, 1, 1, 0, 1, 1]], bool),
        "segments": np.array([[0, 0, 0, 0, 0, 1]]),
    }
    found = outputs.predicted(batch, 2)
    np.testing.assert_array_equal(found, [[1, 0, 1, 0, 0, 0]])
    # Planted: the mask of the input token instead of the predicted one.
    assert not np.array_equal(found[0, :4], batch["loss_mask"][0, :4])


def test_labels_outside_the_mask_do_not_matter():
    lm = agreement.target()
    own = hydra.objective(lm.model)
    params = hydra.init(KEY, lm.model, lm.params, heads=2)
    target = outputs.teacher(lm.model)
    batch = counting()
    mask = np.ones(batch["tokens"].shape, bool)
    mask[:, -1] = False
    other = {"tokens": batch["tokens"].copy()}
    other["tokens"][:, -1] = 0

    @jax.jit
    def run(params, frozen, batch, mask):
        batch = {**batch, "loss_mask": mask}
        return own.loss(params, batch, target(frozen, batch))[0]

    # As arguments: jaxlib 0.10.2 for CPUs reads garbage for a product with a matrix of
    # one number that the program holds as a constant, and W of a fresh head is zero.
    loss = functools.partial(run, params, lm.params)
    assert loss(batch, mask) == loss(other, mask)
    every = np.ones_like(mask)
    assert loss(batch, every) != loss(other, every)  # planted: no mask


def test_parts_of_the_logits_change_nothing():
    """Values and gradients, to rounding; the parts do not divide the batch."""
    lm = agreement.target()
    params = hydra.init(KEY, lm.model, lm.params, heads=2)
    batch = counting(3)

    def loss(params, part):
        own = hydra.objective(lm.model, soft=0.5, part=part)
        teacher = outputs.teacher(lm.model)(lm.params, batch)
        return own.loss(params, batch, teacher)[0]

    both = jax.jit(jax.value_and_grad(loss), static_argnums=1)
    whole, parts = both(params, 0), both(params, 7)
    for a, b in zip(jax.tree.leaves(whole), jax.tree.leaves(parts)):
        np.testing.assert_allclose(a, b, atol=2e-5, rtol=1e-4)


def test_one_step_of_the_training_time_test_is_plain_training():
    """The first of the steps is the layer over true states; decay weighs the others."""
    lm = agreement.target()
    params = eagle3.init(KEY, lm.model, lm.params)
    batch = counting(2)
    one, two = (eagle3.objective(lm.model, steps=n, decay=0.5) for n in (1, 2))

    @jax.jit
    def run(params):
        teacher = outputs.teacher(lm.model, one.taps)(lm.params, batch)
        states, draft = eagle3.guesses(params, lm.model, batch, teacher, 1)[0]
        weights = outputs.predicted(batch, 2)
        p = teacher.head(outputs.ahead(teacher.hidden[outputs.NORM], 1))
        by_hand = outputs.mean(losses.soft_ce(p, draft(states)), weights)
        graded = (own.loss(params, batch, teacher) for own in (one, two))
        return *graded, by_hand

    (first, metrics), (both, more), by_hand = run(params)
    np.testing.assert_allclose(first, by_hand, rtol=1e-5)
    np.testing.assert_allclose(metrics["alpha_0"], more["alpha_0"], rtol=1e-5)
    assert both > first * 1.2  # a second step was graded


def test_figures_under_a_draft_vocabulary_are_of_all_places():
    """By hand, with the whole p. Planted: the places inside alone, p normalised there.

    That is the loss's teacher, and so nothing of it changes.
    """
    lm, batch = agreement.target(), counting(3)
    kept = np.arange(0, agreement.VOCAB, 2, dtype=np.int32)
    params = eagle3.init(KEY, lm.model, lm.params, kept)
    own = eagle3.objective(lm.model, steps=1, kept=kept)

    @jax.jit
    def run(params, frozen):
        teacher = outputs.teacher(lm.model, own.taps)(frozen, batch)
        states, draft = eagle3.guesses(params, lm.model, batch, teacher, 1)[0]
        p = teacher.head(outputs.ahead(teacher.hidden[outputs.NORM], 1))
        return own.loss(params, batch, teacher), p, draft(states)

    (loss, metrics), p, q = jax.tree.map(np.asarray, run(params, lm.params))
    there = np.asarray(outputs.predicted(batch, 2)) > 0
    p, q = (np.asarray(jax.nn.softmax(x))[there].astype(np.float64) for x in (p, q))
    best = p.argmax(-1)
    assert metrics["hit_0"] == pytest.approx((q.argmax(-1) == best).mean(), rel=1e-5)
    alpha = np.minimum(p, q).sum(-1).mean()
    assert metrics["alpha_0"] == pytest.approx(alpha, rel=1e-4)
    inside = np.isin(best, kept)
    assert 0 < inside.mean() < 1
    p, q = p[inside][:, kept], q[inside][:, kept]
    p = p / p.sum(-1, keepdims=True)
    by_hand = -(p * np.log(q)).sum(-1).mean()
    assert float(loss) == pytest.approx(by_hand, rel=1e-4)
    assert np.minimum(p, q).sum(-1).mean() > alpha + 0.02  # planted


@pytest.mark.long
def test_kept_activations_change_no_gradient():
    """EAGLE-3's steps made again in the backward pass, and kept."""
    lm, batch = agreement.target(), counting()
    params = eagle3.init(KEY, lm.model, lm.params)
    teacher = outputs.teacher(lm.model, eagle3.objective(lm.model).taps)
    out = teacher(lm.params, batch)

    def gradient(**fields):
        own = eagle3.objective(lm.model, steps=3, **fields)
        return jax.jit(jax.grad(lambda p: own.loss(p, batch, out)[0]))(params)

    again, kept = gradient(), gradient(remat=False)
    for one, other in zip(jax.tree.leaves(again), jax.tree.leaves(kept), strict=True):
        np.testing.assert_allclose(one, other, rtol=1e-4, atol=1e-6)
    planted = gradient(remat=False, decay=0.7)
    assert not np.allclose(again["head"], planted["head"], rtol=1e-4, atol=1e-6)


@pytest.mark.long
def test_the_regression_by_its_weight():
    """EAGLE's loss is linear in it; with none the law alone teaches."""
    lm, batch = agreement.target(), counting(2)
    params = eagle.init(KEY, lm.model, lm.params)
    out = outputs.teacher(lm.model)(lm.params, batch)
    found, metrics = zip(
        *(
            eagle.objective(lm.model, noise=0.0, regression=weight).loss(
                params, batch, out
            )
            for weight in (0.0, 1.0, 3.0)
        )
    )
    assert metrics[0]["feature"] == metrics[2]["feature"] > 0
    each = found[0] + jnp.asarray([0.0, 1.0, 3.0]) * metrics[0]["feature"]
    np.testing.assert_allclose(found, each, rtol=1e-5)
    own = eagle.objective(lm.model, noise=0.0, regression=0.0, soft=1.0)
    law = own.loss(params, batch, out)
    np.testing.assert_allclose(found[0], 0.1 * law[0], rtol=1e-5)


def test_the_regression_does_not_reach_the_target():
    """EAGLE reads the target's embedding, states and head; none has a gradient."""
    lm = agreement.target()
    own = eagle.objective(lm.model, noise=0.0)
    params = eagle.init(KEY, lm.model, lm.params)
    batch = counting(2)

    def loss(frozen):
        return own.loss(params, batch, outputs.teacher(lm.model)(frozen, batch))[0]

    slopes = jax.jit(jax.grad(loss))(lm.params)
    assert all((g == 0).all() for g in jax.tree.leaves(slopes))
