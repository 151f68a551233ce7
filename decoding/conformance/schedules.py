"""Contracts of schedules and of the cache policies of canvases, on the masked toy."""

import functools
import types
from typing import Any

import jax
import numpy as np

import decoding
from decoding import Method, Spec
from decoding.conformance import kit
from decoding.conformance.require import require
from decoding.denoising.canvas_policy import BLOCK_CAUSAL
from decoding.loops import engines
from models.predictors import unmask_filter
from models.synthetic import toy_masked

PROMPTS = [[1, 2, 3], [2, 0, 1, 4, 4], [5], [1] * 9]
NEW, HEAT = 11, 0.8
SUFFIX = [3, 0]


class Letters:
    """A tokenizer whose token i is the i-th letter; the mask has no bytes."""

    def token_bytes(self) -> list[bytes]:
        return [b"a", b"b", b"c", b"d", b"e", b"f", b""]

    def decode(self, tokens: list[int]) -> str:
        return "".join("abcdef"[t] for t in tokens)

    def stream(self) -> Any:
        return types.SimpleNamespace(push=lambda token: "abcdef"[token])


@functools.cache
def lm() -> Any:
    """Make a toy without an end of sequence, so that every text is whole."""
    model, params = toy_masked.model(7, scale=2.0)
    return types.SimpleNamespace(model=model, params=params, tokenizer=Letters())


def schedule(spec: Spec) -> Method:
    """Return the method of one part, with its card's examples."""
    return Method(schedule=(kit.spec(spec.name, **spec.arguments),))


def policy(spec: Spec) -> Method:
    """Return the method of a cache policy, one position a forward and a block."""
    part = kit.spec(spec.name, **spec.arguments)
    return Method(schedule=(Spec("diffusion/blocks", size=1),), policy=part)


def written(method: Method, rows: slice = slice(None), **settings: Any) -> Any:
    """Decode some of the prompts."""
    numbers = {"max_new_tokens": NEW, "temperature": HEAT, "seed": [*range(4)][rows]}
    drafts = {"filter": unmask_filter.init(jax.random.key(0))}  # for those that read it
    about = (lm(), PROMPTS[rows], method)
    return decoding.generate(*about, **{**numbers, "drafts": drafts, **settings})


def every_forward_commits(spec: Spec) -> None:
    """A text is whole, no call is idle, and given tokens stay as they are."""
    out = written(schedule(spec), suffix=[SUFFIX] * len(PROMPTS))
    sizes = [len(tokens) for tokens in out.tokens]
    require(sizes == [NEW] * len(PROMPTS), spec, f"texts of {sizes} tokens, not {NEW}")
    mask = lm().model.config.mask_token
    has_mask = any(mask in tokens for tokens in out.tokens)
    require(not has_mask, spec, "a text has the mask")
    for calls, order in zip(out.stats.target_calls.tolist(), out.order):
        steps = {*order}
        whole = steps == {*range(len(steps))} and calls <= len(steps)
        require(whole, spec, f"a row of {calls} calls committed in the steps {steps}")


def a_row_is_as_alone(spec: Spec) -> None:
    """A row's text and calls are those of a call of it alone."""
    method = schedule(spec)
    together, alone = written(method), written(method, slice(1, 2))
    same = together.tokens[1] == alone.tokens[0]
    require(same, spec, f"{together.tokens[1]} among others, {alone.tokens[0]} alone")


def a_refresh_is_whole(spec: Spec) -> None:
    """Blocks of one position, of which each refreshes, have the text of no cache."""
    method = policy(spec)
    part = method.policy.build(
        {
            "visibility": "bidirectional",
            "visibilities": (BLOCK_CAUSAL,),
            "block_size": 4,
        }
    )
    none = Spec("caches/recompute", visibility=part.visibility)
    whole = Method(schedule=method.schedule, policy=none)
    ours, theirs = written(method), written(whole)
    require(ours.tokens == theirs.tokens, spec, "the text is not that of no cache")
    for a, b in zip(ours.logprobs, theirs.logprobs):
        require(np.allclose(a, b, atol=1e-6), spec, "other log-probabilities")


def check(spec: Spec) -> None:
    """Hold a schedule, or a part of one, to its contract."""
    with engines.apart():
        every_forward_commits(spec)
        a_row_is_as_alone(spec)
