"""Parts of a schedule are merged, or refused; ranks break ties by position."""

import jax.numpy as jnp
import numpy as np
import pytest

from decoding import Spec, base
from decoding.denoising import schedule
from models.errors import MethodError


def parts(*names, **arguments):
    available = {"eos": (1,), "vocab_size": 8}
    return {n: Spec(f"diffusion/{n}", **arguments).build(available) for n in names}


def test_parts_are_merged():
    merged = schedule.merged(
        {
            **parts("localleap", "eotp", "freedave"),
            **parts("adablock", delimiters=(2,)),
        }
    )
    assert merged.select and merged.plan and merged.stop
    assert merged.branches == 8
    assert merged.guarantee == base.LOSSY
    assert merged.window(400) == 100  # AdaBlock's quarter
    assert schedule.merged(parts("llada", "freedave")).guarantee == base.LAW
    # Planted: the window of the part that selects would cut AdaBlock's blocks.
    assert schedule.merged(parts("localleap")).window is None


def test_parts_that_do_the_same():
    with pytest.raises(MethodError, match=r"\['llada', 'dream'\].*'select'"):
        schedule.merged(parts("llada", "dream"))
    with pytest.raises(MethodError, match="'plan'"):
        schedule.merged(parts("dream", "blocks"))
    with pytest.raises(MethodError, match="chooses no positions"):
        schedule.merged(parts("eotp"))


def test_ranks_break_ties_by_position():
    values = jnp.asarray([0.2, 0.7, 0.7, 0.9, 0.7])
    among = jnp.asarray([True, True, True, False, True])
    assert schedule.ranks(values, among).tolist()[:3] == [3, 0, 1]
    chosen = schedule.best(values, among, 2)
    assert np.flatnonzero(chosen).tolist() == [1, 2]
    hopeless = schedule.best(jnp.full(5, -jnp.inf), ~among, 1)
    assert np.flatnonzero(hopeless).tolist() == [3]  # or a row would never end
    # Planted: an argsort from the greatest on would take the later ones.
    late = np.argsort(np.where(among, values, -1))[::-1][:2]
    assert sorted(late.tolist()) != [1, 2]
