"""PARD's training: the masks behind a text, their places, and what they learn from."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

from models import transformer
from models.errors import ConfigError
from tests.training.objectives.language_models import test_draft_model
from training import losses
from training.objectives.language_models import next_token, pard

MASK, DEPTHS = 3, 3


def batch(rows: int = 2, length: int = 14) -> dict:
    return {
        **test_draft_model.texts(rows, length),
        "row": np.arange(rows),
        "segments": np.repeat([[0] * 8 + [1] * (length - 8)], rows, 0),
    }


@functools.cache
def every():
    """States of masks behind all tokens, and those of forwards of each by hand."""
    model, params = test_draft_model.draft()
    text = batch()
    found = jax.jit(
        lambda p, b: [x for x, _ in pard.guesses(p, model, b, None, DEPTHS, MASK)]
    )(params, text)
    return [np.asarray(x) for x in found], text


def by_hand(text: dict, row: int, t: int, late: int = 0) -> np.ndarray:
    """Normed states of a forward of one document up to token t, and of its masks."""
    model, params = test_draft_model.draft()
    first = 8 if t >= 8 else 0
    tokens = [*text["tokens"][row, first : t + 1 + late], *[MASK] * (DEPTHS - 1)]
    out = transformer.forward(
        model.config, params, jnp.asarray([tokens]), taps=("norm",)
    )
    return np.asarray(out.hidden["norm"])[0, -DEPTHS:]


@pytest.mark.parametrize("t", [0, 5, 8, 12])
def test_masks_see_the_text_up_to_theirs_and_those_before(t):
    """In packed documents; planted: the token behind is seen."""
    found, text = every()
    for row in range(2):
        states = np.stack([x[row, t] for x in found])
        np.testing.assert_allclose(states, by_hand(text, row, t), atol=1e-5)
        assert np.abs(states[1:] - by_hand(text, row, t, late=1)[1:]).max() > 1e-2


def test_depths_keep_nested_shares():
    """0.7, 0.49, .., at least 0.2 of a text; planted: no least share."""
    masks = pard.kept(100, 8, 0.7, 0.2)
    counts = [int((masks.depth == j).sum()) for j in range(1, 8)]
    assert counts == [70, 49, 34, 24, 20, 20, 20]
    for j in range(1, 8):
        assert masks.place[masks.of(j)].tolist() == list(range(counts[j - 1]))
    without = pard.kept(100, 8, 0.7, 1e-9)
    assert (without.depth == 7).sum() == 8
    assert not len(pard.kept(100, 1, 0.7, 0.2).place)


def loss(text: dict, **fields):
    model, params = test_draft_model.draft()
    own = pard.objective(model, MASK, **fields)
    return jax.jit(lambda p, b: own.loss(p, b, None))(params, text)


def test_the_loss_is_the_mean_over_places():
    """By hand with every place kept; planted: every depth weighs alike."""
    model, params = test_draft_model.draft()
    found, text = every()
    value, metrics = loss(text, depths=DEPTHS, keep=1.0)
    sums, counts = [], []
    for j, states in enumerate(found):
        q = model.head(params, jnp.asarray(states))
        labels = np.roll(text["tokens"], -1 - j, 1)
        valid = np.roll(text["segments"], -1 - j, 1) == text["segments"]
        valid[:, text["tokens"].shape[1] - 1 - j :] = False
        nats = np.asarray(losses.ce(q, jnp.asarray(labels)))
        sums.append((nats * valid).sum())
        counts.append(valid.sum())
    np.testing.assert_allclose(value, sum(sums) / sum(counts), rtol=1e-5)
    np.testing.assert_allclose(metrics["nats"], sums[0] / counts[0], rtol=1e-5)
    alike = np.mean(np.array(sums) / np.array(counts))
    assert abs(float(value) - alike) > 1e-4


def test_one_depth_is_the_next_token_loss():
    """Planted: with two it is not."""
    model, params = test_draft_model.draft()
    text = batch()
    other = next_token.objective(model.config)
    plain, _ = jax.jit(lambda p, b: other.loss(p, b, None))(params, text)
    np.testing.assert_allclose(loss(text, depths=1)[0], plain, rtol=1e-5)
    assert abs(float(loss(text, depths=2)[0] - plain)) > 1e-4


def test_masks_learn_a_text():
    """Texts that count: each depth comes to know its token; planted: no training."""
    model, params = test_draft_model.draft()
    start = np.arange(8)[:, None]
    tokens = ((start + np.arange(16)) % 12 + 4).astype(np.int32)
    text = {"tokens": tokens, "row": np.arange(8)}
    own, optimizer = pard.objective(model, MASK, depths=DEPTHS), optax.adam(1e-2)

    @jax.jit
    def step(params, state):
        slope, metrics = jax.grad(lambda p: own.loss(p, text, None), has_aux=True)(
            params
        )
        updates, state = optimizer.update(slope, state)
        return optax.apply_updates(params, updates), state, metrics

    state = optimizer.init(params)
    hits = []
    for _ in range(120):
        params, state, metrics = step(params, state)
        hits.append([float(metrics[f"hit_{j}"]) for j in range(DEPTHS)])
    assert min(hits[-1]) > 0.95 and max(hits[0]) < 0.5


@pytest.mark.parametrize(
    ("fields", "named"),
    [({"mask": 99}, "mask=99"), ({"depths": 0}, "depths=0"), ({"keep": 0.0}, "keep=0")],
)
def test_bad_fields_are_refused(fields, named):
    model, _ = test_draft_model.draft()
    with pytest.raises(ConfigError, match=named):
        pard.objective(model, **{"mask": MASK, **fields})
