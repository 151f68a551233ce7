"""A tree's node is its path in every family, read whole or in pieces.

Sinks, windows, unlike layers, experts and latents in the golden models, whose windows
are shorter than these texts. In pieces, eight slots at a time are merged by their
log-sum-exp. The faults are those of such models under trees.
"""

import dataclasses

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from kernels.tree_attention import xla
from models import base, transformer
from models.cache_layouts import kv_cache, quantized
from models.transformer import cached_attention, experts, modules
from tests.conformance.test_families import FAMILIES
from tests.golden import families
from tests.models import blocks

TOLERANCE = 1e-4
FAULT = 100 * TOLERANCE
SIZE, NODES, COUNTS = 32, 9, (13, 9)
LATENT = ("deepseek_v2",)  # which a call reads whole
USUAL = (("gpt_oss", "pieces"), ("mixtral", "whole"))


@pytest.fixture
def pieces(monkeypatch):
    """Caches of any size are read eight slots at a time."""
    monkeypatch.setattr(cached_attention, "LONG", 16)
    monkeypatch.setattr(xla, "STRETCH", 8)


def target(name: str):
    """A golden model with functions of its own, which no other test has compiled."""
    lm = families.loaded(name)
    return transformer.transformer(lm.config), lm.params


def case(name: str):
    """Prompts [2, 13], parents and tokens [2, NODES] of random trees behind them."""
    rng = np.random.default_rng(0)
    vocab = families.loaded(name).config.vocab_size
    prompts = rng.integers(0, vocab, (2, max(COUNTS))).astype(np.int32)
    tokens = rng.integers(0, vocab, (2, NODES)).astype(np.int32)
    return prompts, blocks.random_tree(rng, 2, NODES), tokens


def prompted(lm, params, name: str):
    """The cache of the prompts."""
    return blocks.prefill(lm, params, case(name)[0], COUNTS, SIZE)[1]


def of_tree(lm, params, name: str, cache=None) -> np.ndarray:
    """Logits [2, NODES, V] of the trees, each in one call behind its prompt."""
    _, parents, tokens = case(name)
    cache = prompted(lm, params, name) if cache is None else cache
    block = blocks.tree_block(tokens, parents, COUNTS)
    return np.asarray(blocks.call(lm)(params, cache, block)[0].logits)


def of_paths(lm, params, name: str) -> np.ndarray:
    """The same, of every path from the prompt's first token on, read alone."""
    prompts, parents, tokens = case(name)
    rows = np.zeros((2 * NODES, SIZE), np.int32)
    last = np.zeros(2 * NODES, int)
    for b, count in enumerate(COUNTS):
        for i in range(NODES):
            path = [0, *blocks.path_of(parents[b], i)]
            text = [*prompts[b, :count], *tokens[b, path]]
            rows[b * NODES + i, : len(text)], last[b * NODES + i] = text, len(text) - 1
    logits = blocks.whole(lm, params, rows, SIZE)
    return logits[np.arange(2 * NODES), last].reshape(2, NODES, -1)


def distance(a: np.ndarray, b: np.ndarray) -> float:
    return float(np.abs(a - b).max())


@pytest.mark.parametrize(
    ("name", "form"),
    [
        pytest.param(
            *(name, form), marks=[pytest.mark.long] * ((name, form) not in USUAL)
        )
        for name in FAMILIES
        for form in ("whole", "pieces")
        if form == "whole" or name not in LATENT
    ],
)
def test_a_node_is_its_path(name, form, request):
    """Planted: the other row's tree."""
    lm, params = target(name)
    want = of_paths(lm, params, name)  # before pieces: the form of short caches
    if form == "pieces":
        request.getfixturevalue("pieces")
        lm, params = target(name)
    found = of_tree(lm, params, name)
    assert distance(found, want) < TOLERANCE
    assert distance(found[::-1], want) > FAULT


@pytest.mark.long
@pytest.mark.parametrize("name", FAMILIES)
def test_a_tree_behind_codes(name):
    """Behind 180 tokens, 128 of them in codes; those of 4 bits err, of 8 far less.

    Planted: codes of another prompt.
    """
    config, params = families.loaded(name).config, families.loaded(name).params
    rng = np.random.default_rng(1)
    text = rng.integers(0, config.vocab_size, (2, 180)).astype(np.int32)
    _, parents, tokens = case(name)
    block = blocks.tree_block(tokens, parents, [180, 180])

    def logits(layout, text=text):
        lm = transformer.transformer(config, cache=layout)
        cache = lm.init_cache(2, 256)
        chain = blocks.ints([range(1, 30)] * 2)
        for start in range(0, 180, 30):
            part, both = blocks.ints(text[:, start : start + 30]), blocks.ints([30, 30])
            given = blocks.causal(part, cache.length, both, 256, base.NONE)
            _, cache = blocks.call(lm)(params, cache, given)
            cache = blocks.keep(cache, chain, both - 1)
        return np.asarray(blocks.call(lm)(params, cache, block)[0].logits)

    dense = logits(kv_cache.dense)
    eight, four = (logits(make(32)) for make in (quantized.int8, quantized.int4))
    assert 1e-3 < distance(four, dense)
    assert distance(eight, dense) < 0.25 * distance(four, dense)
    assert distance(logits(quantized.int8(32), text[::-1]), dense) > 1


def test_fault_a_sink_for_every_piece(pieces):
    """Two pieces with a sink each count it twice: exp(s) + exp(s) is exp(s + log 2)."""
    lm, params = target("gpt_oss")
    sound = of_tree(lm, params, "gpt_oss")

    def twice(path, x):
        return x + jnp.log(2.0) if path[-1].key == "sinks" else x

    params = jax.tree_util.tree_map_with_path(twice, params)
    assert distance(of_tree(lm, params, "gpt_oss"), sound) > FAULT


def test_fault_windows_counted_from_the_anchor(monkeypatch):
    """All nodes see as far back as the root does: of the deeper ones too far."""
    lm, params = target("gpt_oss")
    cache = prompted(lm, params, "gpt_oss")
    sound = of_tree(lm, params, "gpt_oss", cache)
    views = modules.Views

    def of_root(config, positions, *rest):
        return views(config, jnp.broadcast_to(positions[:, :1], positions.shape), *rest)

    monkeypatch.setattr(modules, "Views", of_root)
    lm, _ = target("gpt_oss")
    found = of_tree(lm, params, "gpt_oss", cache)
    assert distance(found, sound) > FAULT
    assert distance(found[:, :1], sound[:, :1]) < TOLERANCE


def test_fault_weights_normalised_before_the_choice(monkeypatch):
    """The sum of all experts in place of the chosen ones' makes them smaller."""
    lm, params = target("mixtral")
    sound = of_tree(lm, params, "mixtral")
    route = experts.route

    def before(rule, logits, bias=None):
        return route(dataclasses.replace(rule, normalised=False), logits, bias)

    monkeypatch.setattr(experts, "route", before)
    lm, _ = target("mixtral")
    assert distance(of_tree(lm, params, "mixtral"), sound) > FAULT
