"""decoding/transforms/top_p.py."""

import jax.numpy as jnp
import numpy as np
import pytest

from decoding.transforms import top_p
from models.errors import MethodError


@pytest.mark.parametrize("p", [0.05, 0.5, 0.9, 0.99, 1.0])
def test_equals_hf(parity, p):
    parity(f"top_p/{p}", top_p.transform(p))


def test_fault_a_nucleus_short_of_its_last_token(parity, golden):
    good = top_p.transform(0.9)

    def short(state, logits, aux):
        out = good.apply(state, logits, aux)
        least = jnp.where(jnp.isfinite(out), out, jnp.inf).argmin()
        return out.at[least].set(-jnp.inf)

    with pytest.raises(AssertionError):
        parity("top_p/0.9", good._replace(apply=short))


def _kept(p, probabilities):
    made = top_p.transform(p)
    state = made.init(jnp.zeros(1, jnp.int32), jnp.int32(1))
    out = made.apply(state, jnp.log(jnp.array(probabilities)), {})
    return np.isfinite(out).astype(int).tolist()


def test_by_hand():
    # 0.5 + 0.25 reach 0.6; 0.5 alone does not.
    assert _kept(0.6, [0.125, 0.5, 0.25, 0.125]) == [0, 1, 1, 0]
    assert _kept(0.5, [0.125, 0.5, 0.25, 0.125]) == [0, 1, 0, 0]
    # The two of 0.125 tie for the last place: both stay.
    assert _kept(0.8, [0.125, 0.5, 0.25, 0.125]) == [1, 1, 1, 1]
    # A mass that float32 holds as 0 keeps the best token; 1 keeps everything.
    assert _kept(1e-50, [0.125, 0.5, 0.25, 0.125]) == [0, 1, 0, 0]
    assert _kept(1.0, [1e-30, 1.0, 0.0]) == [1, 1, 0]


@pytest.mark.parametrize("p", [0, -0.1, 1.01, float("nan")])
def test_refuses(p):
    with pytest.raises(MethodError, match=r"outside \(0, 1\]"):
        top_p.transform(p)
