"""Experts that the calls of a decoding meet, counted against the model by hand."""

import dataclasses

import jax
import numpy as np
import pytest

from decoding import Method
from decoding.catalogue import Spec
from experiments.measurement import met_experts
from experiments.measurement.workbench import Bench, Case, Model
from models import base, transformer
from models.transformer import experts
from models.transformer.config import Experts
from tests.models import blocks, small

RULE = Experts(8, 2, 6)
PROMPTS = [[1, 2, 3, 1, 2], [4, 5, 4, 5]]
NEW = 8


@pytest.fixture(scope="module")
def mixture() -> Model:
    alike = transformer.LayerShape(2, 8, 40, experts=RULE)
    dense = dataclasses.replace(alike, experts=None)
    shapes = {"shapes": (alike, dense), "kinds": (0, 1, 0), "eos": ()}
    config = dataclasses.replace(small.CONFIG, windows=(), **shapes)
    model = transformer.transformer(config)
    return Model(model, jax.jit(model.init)(jax.random.key(0)))


def visited(lm: Model, text: list[int]) -> np.ndarray:
    """The experts of every token of a text, int32[L, T, k], in one call."""
    tokens = blocks.ints([text])
    cache = lm.model.init_cache(1, 32)
    block = blocks.causal(tokens, cache.length, blocks.ints([len(text)]), 32)
    out, _ = lm.model(lm.params, cache, block, (base.EXPERTS,))
    return np.asarray(out.hidden[base.EXPERTS])[:, 0]


def test_the_tap_is_what_the_layers_do(mixture):
    """Against the router by hand, in layers with experts alone."""
    found = visited(mixture, PROMPTS[0])
    assert found.shape == (2, 5, 2)
    assert len({tuple(token) for token in found[0]}) > 1


def test_plain_calls_meet_the_experts_of_a_token(mixture):
    """A call of one token: two experts a layer, none twice, as expected."""
    bench = Bench(mixture, {}, 8, NEW, 1)
    met = met_experts.count(bench, Case(Method()), PROMPTS, 0)
    assert met.tokens == 1 and met.calls == 2 * NEW
    assert met.experts == met.expected == 2


def test_calls_of_drafts_meet_what_their_tokens_visit(mixture):
    """One round: a chain of three behind `1 2`, and of two behind `4 5`.

    By the experts of the same tokens in one call each. Planted: the padding behind the
    shorter chain counted, and an expert counted once for each of its tokens.
    """
    lookup = Method(Spec("drafters/prompt_lookup", k=3))
    bench = Bench(mixture, {}, 8, 1, 2)
    met = met_experts.count(bench, Case(lookup), PROMPTS, 0)
    first, second = ([*PROMPTS[0], 3, 1, 2], [*PROMPTS[1], 4, 5])
    rounds = [visited(mixture, first)[:, 4:], visited(mixture, second)[:, 3:]]
    both = np.concatenate(rounds, 1)  # [L, 4 + 3, k]
    assert (met.calls, met.tokens) == (1, 7)
    assert met.experts == np.mean([len({*of.flat}) for of in both])
    assert met.expected == experts.expected(RULE, 7)
    raw: list = []
    watched = met_experts.reporting(mixture, lambda x: raw.append(np.asarray(x)))
    bench.once(Case(lookup), PROMPTS, 0, lm=watched)
    jax.effects_barrier()
    assert raw[0].shape[1] * raw[0].shape[2] == 8
    assert both[0].size > len({*both[0].flat})
