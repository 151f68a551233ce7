"""Beams in every layout of the cache: one beam is greedy, four are the dense ones."""

import functools
import types
from dataclasses import replace

import numpy as np
import pytest

import decoding
from decoding import Method, Spec, compose
from decoding.conformance import kit
from decoding.loops import initial_state
from decoding.serving import searching
from models import transformer
from models.cache_layouts import held, paged, quantized
from models.errors import PromptError
from tests.decoding.loops.test_copies import lm

NEW, PROMPTS = 100, [[1, 2, 3], [4], list(range(1, 40))]
PREFIX = initial_state.bucket(40)
CACHES = {
    "dense": None,
    "paged": paged.pages(page=16),
    "int8": quantized.int8(256),
    "int4": quantized.int4(256),
}


@functools.cache
def target(name: str, window: int = 0):
    sound = lm(3, 2, 0)
    config = sound.config
    if window:
        config = replace(config, windows=(window, 0, window))
    cache = {} if CACHES[name] is None else {"cache": CACHES[name]}
    model = transformer.transformer(config, **cache)
    return types.SimpleNamespace(
        model=model, params=sound.params, tokenizer=None, config=config
    )


def beams(model, width: int, new: int = NEW, n: int = 1):
    method = Method(search=Spec("search/beam", width=width))
    return decoding.generate(model, PROMPTS, method, max_new_tokens=new, n=n)


@pytest.mark.long
@pytest.mark.parametrize("name", CACHES)
def test_one_beam_is_greedy(name):
    """Three settlings; planted: with other keys the text is another."""
    model = target(name)
    greedy = decoding.generate(model, PROMPTS, max_new_tokens=NEW, width="paper")
    assert beams(model, 1).tokens == greedy.tokens
    other = types.SimpleNamespace(**{**vars(model), "params": lm(3, 2, 7).params})
    assert beams(other, 1).tokens != greedy.tokens


@pytest.mark.long
def test_settled_tokens_leave_the_scratch_as_it_is(monkeypatch):
    """A prompt that fills its slots. Planted: no slots for the text, as if no token
    were ever committed, so that keys past the cache's end are lost."""
    model = kit.model(3)  # it reads every slot
    prompts = [[i % 7 for i in range(PREFIX)]]
    fields = {"max_new_tokens": NEW}
    greedy = decoding.generate(model, prompts, width="paper", **fields)
    search = Method(search=Spec("search/beam", width=1))
    assert decoding.generate(model, prompts, search, **fields).tokens == greedy.tokens
    sound = initial_state._cache

    def narrow(program, prompts, sizes, *rest):
        text = initial_state.bucket(PREFIX + NEW) - PREFIX
        less = sizes._replace(slots=sizes.slots - text)
        return sound(program, prompts, less, *rest)

    monkeypatch.setattr(initial_state, "_cache", narrow)
    wrong = decoding.generate(model, prompts, search, **fields).tokens
    assert wrong != greedy.tokens


def test_four_beams_in_pages_are_the_dense_ones():
    dense, pages = (beams(target(name), 4, n=4) for name in ("dense", "paged"))
    assert dense.tokens == pages.tokens
    np.testing.assert_allclose(dense.scores, pages.scores, rtol=1e-5)


@pytest.mark.long
def test_layers_that_hold_a_window(monkeypatch):
    """As whole layers that mask; planted: a window of one token less."""
    whole = lambda make, windows, width: make()
    held_layers = beams(target("dense", 48), 3, n=3)
    with monkeypatch.context() as patch:
        patch.setattr(held, "windowed", whole)
        patch.setattr(decoding.loops.initial_state, "windowed", whole)
        masked = beams(target("dense", 48), 3, n=3)
        narrower = beams(target("dense", 47), 3, n=3)
    assert held_layers.tokens == masked.tokens
    assert narrower.tokens != masked.tokens


def test_a_cache_that_cannot_grow_says_so(monkeypatch):
    """64 slots that int8 layers of a window of 64 take are too few for eight beams."""
    small = types.SimpleNamespace(**vars(target("int8")))
    small.model = transformer.transformer(small.config, cache=quantized.int8(64))
    parts = compose.compose(Method(search=Spec("search/beam", width=8)), small)
    assert searching.scratch(small, parts.program, NEW) == (64, 64)
    with pytest.raises(PromptError, match="more than 64 scratch slots"):
        beams(small, 8)
