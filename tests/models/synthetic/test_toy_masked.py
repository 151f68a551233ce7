"""The masked toy is its plain-Python reference, and notices what is not seen."""

import jax.numpy as jnp
import numpy as np
import pytest

from models import base
from models.synthetic import toy_masked

TOKENS = [1, 2, 6, 6, 0, 6, 3, 6]  # 6 is the mask


def run(lm, params, tokens, positions, sees, cache=None, slots=None):
    """Run some positions of one row."""
    cache = cache or lm.init_cache(1, 16)
    width = len(positions)
    ids = jnp.asarray([[tokens[p] for p in positions]])
    at = jnp.asarray([positions])
    seen = base.Visibility(jnp.asarray([sees]), jnp.zeros((1, width, 1), jnp.uint32))
    block = base.Block(ids, at, jnp.asarray([slots or positions]), seen)
    out, cache = lm(params, cache, block)
    return np.asarray(out.logits[0]), cache


@pytest.mark.parametrize("alignment", ["same", "shifted"])
def test_forwards_are_the_reference_s(alignment):
    """Whole, then a part over what was left behind: bitwise."""
    lm, params = toy_masked.model(7, alignment=alignment)
    reference = toy_masked.Reference(lm.config, params)
    everything, some = [*range(8)], [2, 3, 4]
    logits, cache = run(lm, params, TOKENS, everything, 8)
    expected = reference.run(TOKENS, everything, lambda p: 8)
    np.testing.assert_array_equal(logits, [expected[p] for p in everything])
    changed = [1, 2, 6, 6, 5, 6, 3, 6]
    logits, _ = run(lm, params, changed, some, 8, cache)
    expected = reference.run(changed, some, lambda p: 8)
    np.testing.assert_array_equal(logits, [expected[p] for p in some])
    # Planted: keys that were not left behind, but run anew, give other laws.
    fresh = toy_masked.Reference(lm.config, params).run(
        changed, everything, lambda p: 8
    )
    assert any((fresh[p] != expected[p]).any() for p in some)


def test_what_is_not_seen_rolls_the_logits():
    """Planted: a position that is missing, and one that is seen twice."""
    lm, params = toy_masked.model(7)
    sound, _ = run(lm, params, TOKENS, [*range(8)], 8)
    cache = lm.init_cache(1, 16)
    _, cache = run(lm, params, TOKENS, [0, 1, 2, 3, 4, 6, 7], 8, cache)
    missing, _ = run(lm, params, TOKENS, [6], 8, cache)
    _, cache = run(lm, params, TOKENS, [*range(8)], 8)
    twice, _ = run(lm, params, TOKENS, [5], 9, cache, slots=[8])
    for logits, place in ((missing, 6), (twice, 5)):
        law = np.exp(logits[0]) / np.exp(logits[0]).sum()
        right = np.exp(sound[place]) / np.exp(sound[place]).sum()
        assert not np.allclose(law, right)
