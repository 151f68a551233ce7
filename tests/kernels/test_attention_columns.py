"""Column sums of attention: the loop over the cache against the whole array."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from kernels.attention_columns import columns, reference, xla

pytestmark = pytest.mark.kernels

B, M, H, G, S, D = 2, 7, 6, 2, 50, 8
CLOSE = 1e-5


@functools.cache
def given():
    rng = np.random.default_rng(0)
    tokens = np.stack([np.sort(rng.choice(90, S, False)) for _ in range(B * G)])
    held = tokens.reshape(B, G, S)
    held[:, :, 43:] = -1
    return {
        "q": jnp.asarray(rng.normal(size=(B, M, H, D)), jnp.float32),
        "k": jnp.asarray(rng.normal(size=(B, G, S, D)), jnp.float32),
        "weight": jnp.asarray(rng.choice([0.0, 1.0, 0.5], (B, M)), jnp.float32),
        "query_positions": jnp.asarray(rng.integers(20, 90, (B, M)), jnp.int32),
        "key_positions": jnp.asarray(held, jnp.int32),
    }


def gap(expected, found) -> float:
    return float(jnp.abs(expected - found).max())


@pytest.mark.parametrize("reduce", ["sum", "max"])
@pytest.mark.parametrize("softcap", [0.0, 2.0])
def test_the_loop_is_the_whole_array(reduce, softcap):
    """Stretches that divide the slots and that do not; `lse` given and computed."""
    settings = {"reduce": reduce, "softcap": softcap}
    expected = reference.columns(**given(), **settings)
    for stretch in (16, 25, 512):
        assert (
            gap(expected, xla.columns(**given(), **settings, stretch=stretch)) < CLOSE
        )
    s = jnp.einsum(
        "bmgrd,bgsd->bmgrs", given()["q"].reshape(B, M, G, -1, D), given()["k"]
    )
    s = jnp.tanh(s / softcap) * softcap if softcap else s
    held = given()["key_positions"][:, None]
    seen = (held >= 0) & (held <= given()["query_positions"][:, :, None, None])
    s = jnp.where(seen[:, :, :, None], s, -jnp.inf)
    lse = jax.nn.logsumexp(s, -1).reshape(B, M, H)
    for form in (reference.columns, functools.partial(xla.columns, stretch=16)):
        assert gap(expected, form(**given(), **settings, lse=lse)) < CLOSE


def test_the_sums_are_the_queries_that_saw():
    """Every query spreads its weight; planted: a head of the group is forgotten."""
    found = columns(**given())
    share = jnp.broadcast_to(given()["weight"].sum(1)[:, None] * H / G, (B, G))
    assert gap(share, found.sum(-1)) < CLOSE
    less = {**given(), "q": given()["q"][:, :, ::3]}
    assert gap(share, columns(**less).sum(-1)) > 1


def test_noise_changes_scores_by_slot():
    noise = jax.random.gumbel(jax.random.key(0), (B, M, H, 100))

    def at(queries, held):
        by_token = noise.reshape(B, M, G, H // G, 100).transpose(0, 2, 1, 3, 4)
        index = jnp.clip(held, 0, 99)[:, :, None, None]
        return jnp.take_along_axis(
            by_token, jnp.broadcast_to(index, (*by_token.shape[:4], held.shape[-1])), -1
        )

    held = jnp.clip(given()["key_positions"], 0, 99)
    whole = at(None, held).transpose(0, 2, 1, 3, 4).reshape(B, M, H, S)
    expected = reference.columns(**given(), noise=whole)
    assert gap(expected, xla.columns(**given(), noise=at, stretch=16)) < CLOSE
    assert gap(expected, columns(**given())) > 0.01


def test_a_bias_weighs_a_slot():
    """A slot of bias ln 3 is three slots; planted: the bias of the other KV head."""
    bias = jnp.log(jnp.asarray(np.random.default_rng(1).integers(1, 4, (B, G, S))))
    bias = bias.astype(jnp.float32)
    expected = reference.columns(**given(), bias=bias)
    assert gap(expected, xla.columns(**given(), bias=bias, stretch=16)) < CLOSE
    assert gap(expected, columns(**given(), bias=bias[:, ::-1])) > 0.01
    count = jnp.zeros((B, G, S)).at[:, :, 4].set(jnp.log(3.0))
    more = {name: given()[name] for name in ("k", "key_positions")}
    three = [jnp.concatenate([x] + [x[:, :, 4:5]] * 2, 2) for x in more.values()]
    apart = columns(**{**given(), **dict(zip(more, three))})
    assert gap(apart[:, :, 4] * 3, columns(**given(), bias=count)[:, :, 4]) < CLOSE


def test_another_reduction_is_refused():
    with pytest.raises(ValueError, match="use 'sum' or 'max'"):
        columns(**given(), reduce="mean")


def test_no_array_of_queries_times_slots():
    """The compiled loop has none; the reference, which makes one, does."""
    many = {
        "q": jax.ShapeDtypeStruct((1, 64, 2, D), jnp.float32),
        "k": jax.ShapeDtypeStruct((1, 1, 4096, D), jnp.float32),
        "weight": jax.ShapeDtypeStruct((1, 64), jnp.float32),
        "query_positions": jax.ShapeDtypeStruct((1, 64), jnp.int32),
        "key_positions": jax.ShapeDtypeStruct((1, 1, 4096), jnp.int32),
    }

    def temporary(form) -> int:
        compiled = jax.jit(lambda given: form(**given)).lower(many).compile()
        return compiled.memory_analysis().temp_size_in_bytes

    whole = 4 * 64 * 2 * 4096
    assert temporary(xla.columns) < whole < temporary(reference.columns)
