"""The order of a canvas's commits in an output, against the oracle."""

import decoding
import models
from decoding import Method, Spec
from decoding.conformance import canvases, kit
from models.synthetic import toy_masked

PROMPTS = [[1, 2], [3], [0, 4, 2, 1]]
METHOD = Method(schedule=(Spec("diffusion/llada"),))
MODEL, PARAMS = toy_masked.model(6, seed=2)
LM = models.Loaded(MODEL, PARAMS)


def test_the_order_is_the_oracles():
    """Each of two samples has one; planted: positions in place of steps."""
    fields = {"max_new_tokens": 7, "echo": True, "n": 2}
    out = decoding.generate(LM, PROMPTS, method=METHOD, **fields)
    one = lambda view: canvases.first(view.guesses, 1)
    for prompt, tokens, order in zip(PROMPTS, out.tokens, out.order, strict=True):
        text = canvases.denoise(MODEL.config, PARAMS, prompt, 7, one)
        assert tokens == [prompt + text.tokens] * 2
        assert order == [[None] * len(prompt) + text.born] * 2
        assert sorted(text.born) == [*range(7)] != text.born


def test_left_to_right_texts_have_none():
    assert kit.generate(Method()).order is None
