"""Learn2PD's schedule against plain Python, and its two limits."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import decoding
import models
from decoding import Method, Spec
from decoding.conformance import canvases
from decoding.diffusion import learn2pd
from models.errors import ConfigError, MethodError
from models.predictors import unmask_filter
from models.synthetic import toy_masked

LM = models.Loaded(*toy_masked.model(6, seed=3))
PROMPTS = [[1, 2, 3], [4], [0, 1, 2, 3, 4]]
NEW = 40  # a block of 32 and one of 8


def drawn(bias=0.0, scale=4.0):
    params = unmask_filter.init(jax.random.key(0))
    params = jax.tree.map(lambda x: scale * x, params)
    params["out"]["bias"] = params["out"]["bias"] + bias
    return params


def decoded(params):
    method = Method(schedule=(Spec("diffusion/learn2pd", threshold=0.6),))
    drafts = {"filter": params}
    return decoding.generate(LM, PROMPTS, method, max_new_tokens=NEW, drafts=drafts)


def in_python(prompt, params, threshold, known=1.0):
    """The oracle's text, the filter written again."""
    one, two = params["hidden"], params["out"]

    def rule(view):
        start, open_ = view.canvas[0], view.guesses
        lo = start + (min(open_) - start) // 32 * 32
        conf = np.full(32, known, np.float32)
        for place, guess in open_.items():
            conf[place - lo] = np.exp(guess.logp)
        x = np.maximum(conf @ one["weight"] + one["bias"], 0)
        chance = 1 / (1 + np.exp(-(x @ two["weight"] + two["bias"])))
        sure = {p for p in open_ if chance[p - lo] > threshold}
        return sure | canvases.first(open_, 1)

    return canvases.denoise(LM.config, LM.params, prompt, NEW, rule)


def test_equals_plain_python():
    """Planted: known positions have confidence 0."""
    params = drawn()
    host = jax.tree.map(np.asarray, params)
    out = decoded(params)
    calls = out.stats.target_calls.tolist()
    for prompt, text, count in zip(PROMPTS, out.tokens, calls):
        want = in_python(prompt, host, 0.6)
        assert (list(text), count) == (want.tokens, want.calls)
    assert 2 < max(calls) < NEW
    planted = [in_python(prompt, host, 0.6, 0.0).calls for prompt in PROMPTS]
    assert planted != calls


def test_a_filter_that_takes_none_is_llada_and_one_that_takes_all_needs_one_call():
    plain = Method(schedule=(Spec("diffusion/llada"),))
    one = decoding.generate(LM, PROMPTS, plain, max_new_tokens=NEW)
    none = decoded(drawn(-1e9))
    assert [list(t) for t in none.tokens] == [list(t) for t in one.tokens]
    assert none.stats.target_calls.tolist() == [NEW] * 3
    every = decoded(drawn(1e9))
    assert every.stats.target_calls.tolist() == [2] * 3


def test_what_does_not_fit():
    with pytest.raises(MethodError, match="no filter: pass drafts="):
        learn2pd.scheduler().init({"target": None}, None)
    with pytest.raises(MethodError, match=r"threshold=1\.5"):
        learn2pd.scheduler(1.5)
    with pytest.raises(ConfigError, match=r"these are \['bias', 'weight'\]"):
        unmask_filter.block_of({"bias": jnp.zeros(1), "weight": jnp.zeros(1)})
    wide = Method(schedule=(Spec("diffusion/learn2pd"), Spec("diffusion/blocks")))
    with pytest.raises(MethodError, match="blocks of 32, and the schedule's"):
        decoding.generate(
            LM, PROMPTS, wide, max_new_tokens=NEW, drafts={"filter": drawn()}
        )
