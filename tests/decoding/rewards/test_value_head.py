"""decoding/rewards/value_head.py: a product with the target's state at the last token.

The states come from one pass over the whole text.
"""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import decoding
from decoding import Method, Spec
from decoding.conformance import kit, rewards
from models.base import causal_block
from models.errors import ConfigError, MethodError
from models.predictors import value_predictor

VALUE = Spec("rewards/value_head")


def states(tokens: list[int]):
    """The target's last states, from one block."""
    model, size = kit.TARGET.model, len(tokens)
    cache = model.init_cache(1, kit.SIZE, jnp.float32)
    zero, count = jnp.zeros(1, jnp.int32), jnp.full(1, size, jnp.int32)
    block = causal_block(jnp.asarray([tokens]), zero, count, cache.size)
    return model(kit.TARGET.params, cache, block, ("norm",))[0].hidden["norm"][0]


def by_hand(at: int) -> list[float]:
    head = kit.value_head()
    found = []
    for prompt, text in zip(kit.PROMPTS, rewards.TEXTS):
        state = states([*prompt, *text])[at]
        found.append(float(state @ head["weight"] + head["bias"]))
    return found


def test_the_last_token_is_valued():
    found = rewards.values(VALUE)
    np.testing.assert_allclose(found, by_hand(-1), rtol=1e-5)
    assert not np.allclose(found, by_hand(-2), rtol=1e-2)  # planted: one token short


def test_other_params_are_refused():
    method = Method(search=Spec("search/best_of_n", samples=2), rewards=(VALUE,))

    def generate(**drafts):
        decoding.generate(kit.TARGET, kit.PROMPTS, method, 4, 0.8, drafts=drafts)

    with pytest.raises(ConfigError, match="a value head has the params"):
        generate(reward={"weight": np.zeros(3)})
    with pytest.raises(ConfigError, match="for states of width"):
        generate(reward=value_predictor.init(jax.random.key(0), 3))
    with pytest.raises(MethodError, match="needs 'reward'"):
        generate()
