"""PyramidKV: SnapKV's choice, at budgets that fall from layer to layer."""

import jax.numpy as jnp
import numpy as np
import pytest

from decoding import Spec, base
from decoding.conformance import peaked
from models.cache_layouts import kept
from models.errors import MethodError
from tests.decoding.caches import oracle
from tests.decoding.caches.test_snapkv import value_of

pytestmark = [pytest.mark.kv, pytest.mark.long]

SPEC = Spec("caches/pyramid_kv", budget=12, window=4, kernel=3, beta=4)


def budgets(spec: Spec, prompt: int = 60) -> list[int]:
    """The layers' budgets of a row, and that each layer has the slots for it."""
    policy = spec.build({"model": peaked.functions()})
    sizes = base.Sizes(1, 128, prompt, 24, 1, jnp.float32)
    length = jnp.asarray([prompt], jnp.int32)
    cache = policy.make(peaked.functions(), sizes, length)
    due = []
    for layer in cache.layers:
        assert isinstance(layer, kept.KeptLayer)
        due.append(int(layer.budget[0]))
        assert due[-1] + 24 + 1 <= layer.after
    return due


def test_budgets_fall_from_layer_to_layer():
    """8 of 12 slots are divided by 1.75 and 0.25; planted: the window divided, too."""
    assert budgets(SPEC) == [4 + 14, 4 + 2]
    assert budgets(Spec("caches/snapkv", budget=12, layers=(7.0, 1.0))) == [21, 3]
    flat = Spec("caches/pyramid_kv", budget=12, window=4, kernel=3, beta=1)
    assert budgets(flat) == [12, 12]


def test_it_keeps_what_snapkv_would():
    """Of the first layer; planted: its average budget."""
    rule = value_of(3, np.max)
    assert oracle.differs(SPEC, rule, budget=18) == 0
    assert oracle.differs(SPEC, rule, budget=12) > 0


def test_a_pyramid_on_its_head_is_refused():
    with pytest.raises(MethodError, match=r"beta=0.5: use at least 1"):
        Spec("caches/pyramid_kv", beta=0.5).build({"model": peaked.functions()})
