"""StreamingLLM: first and newest tokens, and sinks at positions in the cache."""

import jax.numpy as jnp
import numpy as np
import pytest

from decoding import Method, Spec
from decoding.conformance import kit, peaked
from models.errors import MethodError
from models.transformer.modules import rotate, rotations
from tests.decoding.caches import oracle

pytestmark = pytest.mark.kv

ARGUMENTS = {"budget": 12, "sinks": 2, "every": 8, "prompt_every": 16}
SPEC = Spec("caches/streaming_llm", **ARGUMENTS)
CLOSE = 1e-5  # float32, of keys near 1


def test_it_keeps_the_first_and_the_newest():
    rule = {"budget": 12, "every": 8, "prompt_every": 16, "exact": True}
    value = lambda heads, g, t, length: np.inf if t < 2 else t
    assert oracle.differs(SPEC, value, **rule) == 0
    assert oracle.differs(SPEC, lambda heads, g, t, length: t, **rule) == 3


def gap(spec: Spec, rotated: bool) -> float:
    """The largest gap of the first layer's keys from those at the cache's positions.

    A query at position p stands at p - shift in the cache: keys rotated to their index
    plus shift are at its distance there.
    """
    run = kit.Run(Method(policy=spec), lm=peaked.model())
    state = run.start(oracle.PROMPTS, new=peaked.NEW, size=peaked.SIZE)
    state = run.advance(state)
    cache, worst = state.caches["target"], 0.0
    layer = cache.layers[0]
    for row, prompt in enumerate(oracle.PROMPTS):
        text = np.asarray(state.tokens)[row, : len(prompt) + peaked.NEW].tolist()
        _, k, _ = oracle.first_layer(peaked.model(), text)
        used = int(cache.length[row] - layer.shift[row])
        held = np.asarray(layer.pos)[row, 0, :used]
        at = np.arange(used) + (int(layer.shift[row]) if rotated else 0)
        at = at if rotated else held
        turn = jnp.asarray(at - held, jnp.int32)[None]
        cos, sin = (x[0][:, None] for x in rotations(peaked.config(), turn, 0)[0])
        due = rotate(jnp.asarray(k[held], jnp.float32), cos, sin)
        found = np.asarray(layer.store.k)[row, :, :used].swapaxes(0, 1)
        worst = max(worst, float(np.abs(np.asarray(due) - found).max()))
    return worst


def test_sinks_turn_with_the_cache():
    """Planted: sinks that keep their own positions."""
    assert gap(SPEC, True) < CLOSE
    own = Spec("caches/streaming_llm", **ARGUMENTS, rerotate=False)
    assert gap(own, False) < CLOSE
    assert gap(own, True) > 0.1


def test_a_budget_of_sinks_alone_is_refused():
    with pytest.raises(MethodError, match="one slot more than sinks"):
        Spec("caches/streaming_llm", budget=4).build({"model": peaked.functions()})
