"""GEAR: drafts keep its text, a window of all tokens is dense, and its bytes."""

import functools

import jax
import jax.numpy as jnp
import pytest

import models
from decoding import Method, Spec, base
from decoding.conformance import kit, peaked
from kernels import quantized_kv
from models.cache_layouts import gear, residual_codes
from models.cache_layouts.residual_codes import KEYS, VALUES, Rule
from models.errors import MethodError

pytestmark = pytest.mark.kv

SPEC = Spec("caches/gear", group=4, block=32, window=8, rank=1)
PROMPTS, SIZE, NEW = peaked.PROMPTS[2:], peaked.SIZE, 40


def run(oracle=True, heat=0.0):
    parts = {}
    if oracle:
        chain = Spec("topologies/chain", length=5)
        parts = {"drafter": Spec("drafters/oracle"), "topology": chain}
    lm = peaked.model()
    return kit.Run(Method(policy=SPEC, **parts), heat, lm=lm).alter(chunk=8)


@functools.cache
def plain(heat=0.0):
    return run(False, heat).texts(PROMPTS, new=NEW, size=SIZE)


@pytest.mark.long
@pytest.mark.parametrize("heat", [0.0, 0.8])
def test_drafts_keep_the_text(heat, monkeypatch):
    """Planted: every node reads what the root reads."""
    assert run(True, heat).texts(PROMPTS, new=NEW, size=SIZE) == plain(heat)
    if heat:
        return
    sound = quantized_kv.attention

    def of_root(q, old, recent, lengths, ancestors, positions, *rest, **more):
        at = jnp.broadcast_to(lengths[:, None], positions.shape)
        return sound(q, old, recent, lengths, ancestors, at, *rest, **more)

    monkeypatch.setattr(gear.quantized_kv, "attention", of_root)
    assert run(True, heat).texts(PROMPTS, new=NEW, size=SIZE) != plain(heat)


@pytest.mark.long
def test_codes_change_the_text():
    """Else the laws of this file would say nothing."""
    dense = kit.Run(Method(), lm=peaked.model())
    assert dense.texts(PROMPTS, new=NEW, size=SIZE) != plain()


def nbytes(tree):
    return sum(x.size * x.dtype.itemsize for x in jax.tree.leaves(tree))


def sizes_of(spec, slots, dtype):
    tiny = models.load("tiny").model
    policy = spec.build({"model": tiny})
    sizes = base.Sizes(1, slots, slots - 128, 112, 16, dtype)
    length = jnp.asarray([slots - 128], jnp.int32)
    made = jax.eval_shape(lambda: policy.make(tiny, sizes, length))
    return (
        tiny.config,
        nbytes(made),
        nbytes(jax.eval_shape(lambda: tiny.init_cache(1, slots, dtype))),
    )


@pytest.mark.parametrize("dtype", [jnp.float32, jnp.bfloat16])
def test_bytes_are_the_closed_form(dtype):
    """2,048 slots; planted: without the exact tokens."""
    slots, width = 2048, 8 * jnp.dtype(dtype).itemsize
    config, found, dense = sizes_of(Spec("caches/gear"), slots, dtype)
    d = config.head_dim
    rule = Rule(2, min(64, d), 2, 0.02)
    bits = [
        residual_codes.bits_per_element(rule, a, 64, d, width) for a in (KEYS, VALUES)
    ]
    elements = config.n_layers * config.n_kv_heads * d
    codes = elements * slots * sum(bits) / 8
    recent = 2 * elements * (2 * 64 + 64) * width / 8
    assert found == codes + recent + config.n_layers * 4 + 4 * slots + 4
    assert found < 0.5 * dense and found != codes


def test_kivi_is_smaller():
    """Two bits and two numbers a group of 32."""
    gear_bytes, kivi = (
        sizes_of(Spec(f"caches/{name}"), 4096, jnp.bfloat16)[1]
        for name in ("gear", "kivi")
    )
    assert kivi < gear_bytes


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        ({"bits": 3}, "bits=3"),
        ({"outliers": 1.0}, "outliers=1.0"),
        ({"window": 4}, "window=4, and a round writes"),
    ],
)
def test_bad_numbers(arguments, words):
    with pytest.raises(MethodError, match=words):
        sizes_of(Spec("caches/gear", **arguments), 512, jnp.float32)
