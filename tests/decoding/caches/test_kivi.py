"""KIVI is GEAR without a low-rank matrix and outliers."""

import jax
import jax.numpy as jnp
import pytest

from decoding import Method, Spec, base
from decoding.conformance import kit, peaked
from models.errors import MethodError

pytestmark = pytest.mark.kv

SPEC = Spec("caches/kivi", window=8)


def text(spec):
    one = kit.Run(Method(policy=spec), lm=peaked.model()).alter(chunk=8)
    return one.texts(peaked.PROMPTS[2:], new=40, size=peaked.SIZE)


@pytest.mark.long
def test_it_is_gear_at_rank_zero():
    """Planted: rank 4."""
    rest = {"group": 32, "block": 32, "window": 8, "outliers": 0.0}
    own = text(SPEC)
    assert own == text(Spec("caches/gear", rank=0, **rest))
    assert own != text(Spec("caches/gear", rank=4, **rest))


def test_two_bits_and_two_numbers_a_group():
    """Codes and scales of 32 tokens of a head of 8 channels, in float32."""
    model = peaked.model().model
    sizes = base.Sizes(1, 32, 16, 8, 8, jnp.float32)
    policy = SPEC.build({})
    layer = jax.eval_shape(
        lambda: policy.make(model, sizes, jnp.zeros(1, jnp.int32)).layers[0]
    )
    of_one = lambda codes: (
        sum(x.size * x.dtype.itemsize for x in codes) // peaked.GROUPS
    )
    assert of_one(layer.old.k) == 32 * 8 * 2 // 8 + 8 * 2 * 4
    assert of_one(layer.old.v) == 32 * 8 * 2 // 8 + 32 * 2 * 4


def test_bad_numbers():
    with pytest.raises(MethodError, match="bits=5"):
        Spec("caches/kivi", bits=5).build({})
