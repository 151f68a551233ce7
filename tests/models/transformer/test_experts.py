"""Experts: routers by hand, the three forms of the products, what calls read."""

import dataclasses

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from models import transformer
from models.errors import ConfigError
from models.transformer import experts
from models.transformer.config import Experts
from tests.models import small

KEY = jax.random.key(0)


def logits(tokens: int, count: int) -> np.ndarray:
    return np.random.default_rng(0).normal(size=(tokens, count)).astype(np.float32)


def softmax(z: np.ndarray) -> np.ndarray:
    p = np.exp(z - z.max(-1, keepdims=True))
    return p / p.sum(-1, keepdims=True)


def test_softmax_routers():
    """Planted: weights normalised before the choice, which keeps their size."""
    z = logits(5, 8)
    plain = Experts(8, 3, 4, normalised=False)
    chosen, weights = map(np.asarray, experts.route(plain, jnp.asarray(z)))
    p = softmax(z)
    best = np.argsort(-p, -1)[:, :3]
    assert (chosen == best).all()
    np.testing.assert_allclose(weights, np.take_along_axis(p, best, -1), rtol=1e-5)
    _, summed = experts.route(
        dataclasses.replace(plain, normalised=True, scale=2.0), jnp.asarray(z)
    )
    np.testing.assert_allclose(np.asarray(summed).sum(-1), 2.0, rtol=1e-5)
    # gpt-oss: a softmax over the chosen logits alone.
    own = softmax(np.take_along_axis(z, best, -1))
    np.testing.assert_allclose(np.asarray(summed) / 2, own, rtol=1e-5)
    assert (weights.sum(-1) < 0.99).all()


def test_sigmoid_routers_choose_with_a_bias_and_weigh_without():
    """Planted: weights that have the bias."""
    z, bias = logits(5, 8), np.linspace(-1, 1, 8).astype(np.float32)
    rule = Experts(8, 2, 4, router="sigmoid", groups=4, kept_groups=2, scale=2.5)
    chosen, weights = map(
        np.asarray, experts.route(rule, jnp.asarray(z), jnp.asarray(bias))
    )
    s = 1 / (1 + np.exp(-z))
    for row in range(5):
        choice = s[row] + bias
        groups = choice.reshape(4, 2).sum(-1)
        kept = set(np.argsort(-groups)[:2])
        inside = [i for i in range(8) if i // 2 in kept]
        best = sorted(inside, key=lambda i: -choice[i])[:2]
        assert chosen[row].tolist() == best
        own = s[row][best]
        np.testing.assert_allclose(weights[row], 2.5 * own / own.sum(), rtol=1e-5)
        biased = choice[best]
        assert abs(weights[row] - 2.5 * biased / biased.sum()).max() > 1e-3


def test_grouped_softmax_takes_a_group_by_its_best_expert():
    z = np.log(np.array([[0.3, 0.01, 0.2, 0.19, 0.15, 0.15]], np.float32))
    rule = Experts(6, 2, 4, normalised=False, groups=3, kept_groups=1)
    assert np.asarray(experts.route(rule, jnp.asarray(z))[0]).tolist() == [[0, 1]]
    sums = dataclasses.replace(rule, router="sigmoid")  # planted: the sum of two
    assert np.asarray(experts.route(sums, jnp.asarray(z))[0]).tolist() == [[2, 3]]


def test_equal_scores_go_to_the_lowest_number():
    chosen, _ = experts.route(Experts(4, 2, 4), jnp.zeros((1, 4)))
    assert np.asarray(chosen).tolist() == [[0, 1]]


@pytest.mark.parametrize("bias", [False, True])
def test_all_forms_are_the_sum_over_the_chosen_experts(bias):
    """Values and gradients. Planted: an expert of another token."""
    rule = Experts(5, 2, 6, bias=bias)
    config = small.CONFIG
    tokens, dim = 7, config.d_model
    keys = jax.random.split(KEY, 6)
    x = jax.random.normal(keys[0], (tokens, dim))
    up = jax.random.normal(keys[1], (5, dim, 2, 6)) * 0.3
    down = jax.random.normal(keys[2], (5, 6, dim)) * 0.3
    up_bias = jax.random.normal(keys[3], (5, 2, 6)) if bias else None
    chosen, weights = experts.route(rule, jnp.asarray(logits(tokens, 5)))
    given = (x, chosen, weights, up, down, up_bias)
    want = np.zeros((tokens, dim))
    for t in range(tokens):
        for j in range(2):
            e = int(chosen[t, j])
            h = np.einsum("d,dcf->cf", x[t], up[e]) + (up_bias[e] if bias else 0)
            h = np.asarray(jax.nn.silu(h[0]) * h[1])
            y = h @ np.asarray(down[e])
            want[t] += float(weights[t, j]) * y
    slopes = []
    for form in experts.FORMS:
        found = experts.mixed(config, form, *given)
        np.testing.assert_allclose(found, want, rtol=1e-4, atol=1e-5)
        of = lambda up, f=form: experts.mixed(
            config, f, x, chosen, weights, up, *given[4:]
        )
        slopes.append(jax.grad(lambda up, of=of: (of(up) ** 2).sum())(up))
    for other in slopes[1:]:
        np.testing.assert_allclose(other, slopes[0], rtol=1e-3, atol=1e-4)
    moved = experts.mixed(config, "ragged", x, jnp.roll(chosen, 1, 0), *given[2:])
    assert np.abs(np.asarray(moved) - want).max() > 1e-2


def test_few_tokens_read_their_own_experts_alone():
    rule = Experts(128, 8, 4)
    assert experts.form(rule, 16) == "gathered"
    assert experts.form(rule, 17) == "every"  # on this CPU


def test_expected_experts_of_independent_routers():
    """By drawing: E (1 - (1 - k / E)^n), n = 20000 draws, 5 deviations."""
    rng = np.random.default_rng(0)
    rule, tokens, draws = Experts(16, 3, 4), 5, 20000
    order = rng.random((draws, tokens, 16)).argsort(-1)[..., :3]
    seen = np.asarray([len(set(d.ravel().tolist())) for d in order])
    error = 5 * seen.std() / draws**0.5
    assert abs(seen.mean() - experts.expected(rule, tokens)) < error
    assert abs(seen.mean() - tokens * 3) > error  # planted: none is met twice


def test_balance_is_one_where_all_experts_get_as_much():
    """By hand. Planted: all tokens to one expert."""
    rule = Experts(4, 1, 4)
    even = 10.0 * jnp.eye(4)
    chosen, _ = experts.route(rule, even)
    assert abs(float(experts.balance(rule, even, chosen)) - 1) < 1e-5
    alone = jnp.broadcast_to(even[0], (4, 4))
    chosen, _ = experts.route(rule, alone)
    assert abs(float(experts.balance(rule, alone, chosen)) - 4) < 0.01


def test_bytes_that_a_call_reads():
    """Of one layer with experts and two without, with a head of its own.

    Planted: all experts counted, or the table of embeddings.
    """
    rule = Experts(8, 2, 6)
    dense = transformer.LayerShape(2, 8, 40)
    mixed = dataclasses.replace(dense, experts=rule)
    config = dataclasses.replace(
        small.CONFIG, windows=(), shapes=(dense, mixed), kinds=(0, 1, 0), tied=False
    )
    params = jax.eval_shape(transformer.transformer(config).init, KEY)
    size = lambda x: x.size
    whole = sum(map(size, jax.tree.leaves(params)))
    table = params["embedding"]["tokens"].size
    own = 8 * 3 * config.d_model * 6
    assert experts.read_bytes(config, params, 1, size) == whole - table - own * 6 // 8
    two = 1 - (1 - 2 / 8) ** 2
    found = experts.read_bytes(config, params, 2, size)
    assert found == round(whole - table - own * (1 - two))
    assert experts.read_bytes(config, params, np.inf, size) == whole - table
    assert experts.read_bytes(config, params, 0, size) == whole - table - own


@pytest.mark.parametrize(
    "fields",
    [
        {"router": "softmax2"},
        {"active": 9},
        {"groups": 3},
        {"groups": 4, "kept_groups": 1, "active": 3},
    ],
)
def test_rules_that_mean_nothing(fields):
    with pytest.raises(ConfigError, match=next(iter(fields))):
        Experts(**{"count": 8, "active": 2, "width": 4, **fields})


def test_layers_without_a_shape_are_refused():
    shape = transformer.LayerShape(2, 8, 16)
    with pytest.raises(ConfigError, match="kinds"):
        dataclasses.replace(small.CONFIG, windows=(), shapes=(shape,), kinds=(0,))
    with pytest.raises(ConfigError, match="windows"):
        dataclasses.replace(small.CONFIG, shapes=(shape,), kinds=(0, 0, 0))
