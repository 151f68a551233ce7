"""Bytes of a kept cache: the closed form, and shares of the dense cache on `tiny`.

Shapes alone: nothing is run.
"""

import jax
import jax.numpy as jnp
import pytest

import models
from decoding import Spec, base
from decoding.loops import engines
from models.cache_layouts import kept

pytestmark = pytest.mark.kv

PROMPT, NEW, BLOCK, BUDGET, EVERY = 2048, 128, 16, 256, 32
SLOTS = PROMPT + NEW + BLOCK
ONLINE = {
    "h2o": Spec("caches/h2o", budget=BUDGET),
    "streaming_llm": Spec("caches/streaming_llm", budget=BUDGET),
}
EVERY_ONE = {**ONLINE, "snapkv": Spec("caches/snapkv", budget=BUDGET)}


@pytest.fixture(scope="module")
def tiny():
    return models.load("tiny").model


def nbytes(tree) -> int:
    return sum(x.size * x.dtype.itemsize for x in jax.tree.leaves(tree))


def sizes_of(tiny, spec: Spec) -> tuple[int, int]:
    """Bytes while the prompt is read, and afterwards."""
    policy = spec.build({"model": tiny})
    sizes = base.Sizes(1, SLOTS, PROMPT, NEW, BLOCK, jnp.float32)
    length = jnp.asarray([PROMPT], jnp.int32)
    before = jax.eval_shape(lambda: policy.make(tiny, sizes, length))
    after = jax.eval_shape(
        lambda cache: policy.finish(policy.init(cache), cache)[0], before
    )
    return nbytes(before), nbytes(after)


def dense(tiny) -> int:
    make = lambda: tiny.init_cache(1, SLOTS, jnp.float32)
    return nbytes(jax.eval_shape(make))


@pytest.mark.parametrize("name", EVERY_ONE)
def test_a_quarter_of_the_dense_cache(tiny, name):
    """2,048 tokens of prompt, 128 new ones, 256 slots; planted: slots that stay."""
    prefill, decode = sizes_of(tiny, EVERY_ONE[name])
    assert decode <= 0.25 * dense(tiny)
    if name in ONLINE:
        assert prefill <= 0.45 * dense(tiny)
    masked = Spec(EVERY_ONE[name].name, budget=PROMPT)
    assert sizes_of(tiny, masked)[1] > 0.25 * dense(tiny)


@pytest.mark.parametrize("name", EVERY_ONE)
def test_bytes_are_those_of_the_budget(tiny, name):
    """Budget, tokens between evictions (or new ones), block, and the ring: 5 %."""
    config = tiny.config
    slot = config.n_kv_heads * (2 * 4 * config.head_dim + 4)  # keys, values, position
    notes = 4 * config.n_kv_heads if name == "h2o" else 0
    query = 4 * config.n_heads * config.head_dim + 4
    ring = (EVERY + BLOCK) * query if name == "h2o" else 0
    raw = 4 * 4 * config.n_kv_heads * config.head_dim if name == "streaming_llm" else 0
    grows = NEW if name == "snapkv" else EVERY
    due = (BUDGET + grows + BLOCK) * (slot + notes) + ring + raw
    due = config.n_layers * due + 4 * SLOTS
    found = sizes_of(tiny, EVERY_ONE[name])[1]
    assert due <= found <= 1.05 * due
    assert kept.STEP <= 0.05 * (BUDGET + EVERY + BLOCK) + 1


def test_an_engine_counts_what_lives():
    assert engines.nbytes({"a": jnp.zeros((3, 4)), "b": jnp.zeros(5, jnp.int8)}) == 53
