"""Texts of a schedule on the masked toy, beside those of the plain-Python loop."""

import types

import numpy as np

import decoding
from decoding import Method, Spec
from decoding.conformance import canvases
from models.synthetic import toy_masked

PROMPTS = [[1, 2, 3], [2, 0, 1, 4, 4], [5], [1] * 9, [3, 3]]
NEW, BLOCK, VOCAB = 13, 5, 7
BLOCKS = Spec("diffusion/blocks", size=BLOCK)


def blocks(view, lo):
    """Plan as `BLOCKS` does."""
    return lo + BLOCK


def single(view):
    """One position a forward, the most confident."""
    return canvases.first(view.guesses, 1)


def lm(alignment="same", eos=(2,), seed=0, scale=3.0):
    """A toy that ends some texts early; its laws are peaked."""
    model, params = toy_masked.model(VOCAB, seed, scale, alignment=alignment, eos=eos)
    return types.SimpleNamespace(model=model, params=params, tokenizer=None)


def written(lm, *schedule, policy="recompute", planned=False, **settings):
    """Decode `PROMPTS`."""
    parts = schedule if planned else (BLOCKS, *schedule)
    method = Method(schedule=parts, policy=Spec(f"caches/{policy}"))
    settings = {"max_new_tokens": NEW, **settings}
    return decoding.generate(lm, PROMPTS, method=method, **settings)


def expected(lm, rule, plan=blocks, new=NEW, **settings):
    """Decode `PROMPTS` by the oracle."""
    about = (lm.model.config, lm.params)
    return [canvases.denoise(*about, p, new, rule, plan, **settings) for p in PROMPTS]


def same(out, oracle):
    """Whether texts and calls are the oracle's; log-probabilities must be, too."""
    alike = out.tokens == [text.tokens for text in oracle]
    alike &= out.stats.target_calls.tolist() == [text.calls for text in oracle]
    if alike:
        for ours, text in zip(out.logprobs, oracle):
            np.testing.assert_allclose(ours, text.logprobs, atol=1e-5)
    return alike
