"""Column sums of attention: the loop and the TPU kernel against the whole array."""

import dataclasses
import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from kernels import aot, block_traffic
from kernels.attention_columns import api, columns, pallas_tpu, reference, xla

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


@functools.cache
def many():
    """Three blocks of slots and two chunks of queries, both partly full.

    Rows have tokens up to the second block, in one head alone, and none. A slot without
    a token is NaN, and a query's position is before every token of its row.
    """
    rng = np.random.default_rng(2)
    batch, asked, size = 4, 90, 300
    held = np.tile(np.arange(size) * 2, (batch, G, 1))
    held[0, :, 150:] = held[1, 1] = held[2] = -1
    held[3] = rng.permutation(held[3], axis=-1)
    k = rng.normal(size=(batch, G, size, D))
    k[held < 0] = np.nan
    at = rng.integers(0, 600, (batch, asked))
    at[:, 7] = -1
    new = {
        "q": rng.normal(size=(batch, asked, H, D)),
        "k": k,
        "weight": rng.choice([0.0, 1.0, 0.5], (batch, asked)),
    }
    arrays = {name: jnp.asarray(x, jnp.float32) for name, x in new.items()}
    arrays["query_positions"] = jnp.asarray(at, jnp.int32)
    arrays["key_positions"] = jnp.asarray(held, jnp.int32)
    return arrays


def log_sums(arrays, bias):
    """float32[B, M, H]: the log of the sum of exponentials, -inf without a slot."""
    batch, asked = arrays["weight"].shape
    q = arrays["q"].reshape(batch, asked, G, -1, D)
    s = jnp.einsum("bmgrd,bgsd->bmgrs", q, arrays["k"], precision="highest")
    s = s + bias[:, None, :, None]
    held = arrays["key_positions"][:, None]
    seen = (held >= 0) & (held <= arrays["query_positions"][:, :, None, None])
    s = jnp.where(seen[:, :, :, None], s, -jnp.inf)
    return jax.nn.logsumexp(s, -1).reshape(batch, asked, H)


LATER = pytest.mark.long


@pytest.mark.parametrize("reduce", ["sum", pytest.param("max", marks=LATER)])
def test_the_kernel_is_the_whole_array(reduce):
    """One block; several, with `lse` computed, and given. Planted: positions ignored;
    a head of the group forgotten; another head's bias."""
    pallas = jax.jit(
        functools.partial(columns, reduce=reduce, kernel="pallas"),
        static_argnames=("softcap",),
    )
    whole = functools.partial(reference.columns, reduce=reduce)
    assert gap(whole(**given(), softcap=2.0), pallas(**given(), softcap=2.0)) < CLOSE
    arrays = {**many(), "k": jnp.nan_to_num(many()["k"])}
    rng = np.random.default_rng(3)
    bias = jnp.asarray(np.log(rng.integers(1, 4, arrays["key_positions"].shape)))
    bias = bias.astype(jnp.float32)
    expected = whole(**arrays, bias=bias)
    found = pallas(**many(), bias=bias)
    assert gap(expected, found) < CLOSE
    assert not np.asarray(found)[np.asarray(many()["key_positions"]) < 0].any()
    known = pallas(**many(), bias=bias, lse=log_sums(arrays, bias))
    assert gap(expected, known) < CLOSE
    tokens = jnp.zeros_like(arrays["key_positions"])
    assert gap(expected, pallas(**{**arrays, "key_positions": tokens}, bias=bias)) > 0.1
    forgotten = arrays["q"].at[:, :, ::3].set(0)
    assert gap(expected, pallas(**{**arrays, "q": forgotten}, bias=bias)) > 0.1
    assert gap(expected, pallas(**many(), bias=bias[:, ::-1])) > 0.1


def test_a_query_without_a_slot_has_no_weight():
    """Its `lse` is -inf, in the loop as in the reference."""
    arrays = {**many(), "k": jnp.nan_to_num(many()["k"])}
    bias = jnp.zeros(arrays["key_positions"].shape)
    lse = log_sums(arrays, bias)
    assert jnp.isneginf(lse).any()
    expected = reference.columns(**arrays)
    assert gap(expected, xla.columns(**arrays, lse=lse)) < CLOSE


def test_what_the_kernel_takes():
    shape = aot.attention_columns_shape("8B", 8, 8192, 32)
    limit = block_traffic.budget("v5e")
    assert api.choose("auto", "tpu", shape, limit).form == "tpu"
    assert api.choose("auto", "cpu", shape, limit).form == "xla"
    assert api.choose("pallas", "cpu", shape).form == "interpret"
    assert api.choose("pallas", "hopper", shape, limit).form == "xla"
    form, why = api.choose("pallas", "tpu", shape, limit, noisy=True)
    assert form == "xla" and "noise" in why
    form, why = api.choose("auto", "tpu", shape, 2**20)
    assert form == "xla" and "does not fit" in why


def test_keys_are_read_once_a_sweep_and_no_block_without_a_token():
    """8B on v5e, by hand: q, two numbers a query, a slot's position and its sum."""
    shape = aot.attention_columns_shape("8B", 2, 8192, 32, known=True)
    cut = pallas_tpu.plan(shape, block_traffic.budget("v5e"))
    assert (cut.groups, cut.block, cut.rows) == (8, 1024, 128)
    full = np.full((2, 8), 8192)
    moved = cut.traffic(full)
    assert moved["k"] == shape.key_bytes == 2 * 8 * 8192 * 128 * 2
    assert moved["q"] == 2 * 32 * 32 * 128 * 2
    assert moved["held"] == moved["sums"] == 2 * 8 * 8192 * 4
    assert cut.cost.bytes_accessed == sum(moved.values())
    assert sum(moved.values()) < 1.05 * shape.key_bytes
    twice = pallas_tpu.Plan(dataclasses.replace(shape, known=False), 8, 1024)
    assert twice.traffic(full)["k"] == 2 * shape.key_bytes
    assert twice.traffic(full)["sums"] == moved["sums"]
    used = full.copy()
    used[1] = [1000, 0, 0, 0, 0, 0, 0, 1025]  # two blocks of eight
    assert cut.traffic(used)["k"] == shape.key_bytes * (8 + 2) // 16


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


def sinks_of(arrays):
    rng = np.random.default_rng(4)
    return jnp.asarray(rng.normal(size=(len(arrays["q"]), H)) * 3, jnp.float32)


@pytest.mark.parametrize("form", ["xla", "pallas"])
def test_a_sink_takes_its_share(form):
    """A query's weights and its sinks' are its own; planted: another head's sink."""
    arrays = {**many(), "k": jnp.nan_to_num(many()["k"])}
    sinks = sinks_of(arrays)
    expected = reference.columns(**arrays, sinks=sinks)
    here = functools.partial(columns, **arrays, kernel=form)
    assert gap(expected, here(sinks=sinks)) < CLOSE
    assert gap(expected, here(sinks=sinks[:, ::-1])) > 0.1
    assert gap(expected, here()) > 0.1
    less = sinks - 1e3  # which nothing goes to
    assert gap(reference.columns(**arrays), here(sinks=less)) < CLOSE
    none = jnp.zeros_like(arrays["key_positions"])
    slot = jnp.concatenate([arrays["k"][:, :, :1] * 0, arrays["k"]], 2)
    seen = jnp.concatenate([none[:, :, :1], arrays["key_positions"]], 2)
    also = {**arrays, "k": slot, "key_positions": seen}
    apart = columns(**also)[:, :, 1:]  # a sink of score 0 is a slot of score 0
    asked = arrays["query_positions"] >= 0
    weight = jnp.where(asked, arrays["weight"], 0.0)
    found = here(sinks=jnp.zeros_like(sinks), weight=weight)
    assert gap(apart, found) < CLOSE


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
