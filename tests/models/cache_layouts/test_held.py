"""Layers that hold their windows only: the texts of the whole cache, in fewer bytes."""

import dataclasses

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import decoding
import models
from decoding import compose
from decoding.conformance import kit
from decoding.loops import engines, initial_state
from decoding.serving import continuous_batching
from models import base, transformer
from models.cache_layouts import held
from models.transformer import cached_attention
from tests.models import blocks, small

WINDOWS = (0, 5, 40)
CONFIG = dataclasses.replace(
    small.CONFIG, windows=WINDOWS, max_positions=1024, eos=(), n_layers=3
)
LM = transformer.transformer(CONFIG)
LOADED = models.Loaded(LM, blocks.numpy_params(LM))
PROMPTS = [small.random_tokens(i, n).tolist() for i, n in enumerate((350, 9, 200))]
TREE = decoding.Method(kit.spec("drafters/token_recycling", choices=kit.SMALL_TREE))
SIZE, WIDTH = 512, 8  # slots; nodes a call writes
SWAPPED = np.array([1, 0])


@pytest.fixture
def often(monkeypatch):
    """Compact every 16 tokens and round capacities to 16 slots."""
    monkeypatch.setattr(held, "EVERY", 16)
    monkeypatch.setattr(held, "STEP", 16)


def make():
    return LM.init_cache(2, SIZE)


def holding(cache):
    return [isinstance(x, held.HeldLayer) for x in cache.layers]


@jax.jit
def step(cache, tokens, count):
    """Feed a tree of WIDTH nodes; commit its path of odd nodes, `count` of them."""
    parents = [max(i - 2, 0) for i in range(WIDTH)]  # 0 <- 1 <- 3 <- 5, 0 <- 2 <- 4
    seen = np.eye(WIDTH, dtype=bool)
    depth = np.zeros(WIDTH, np.int32)
    for i in range(1, WIDTH):
        seen[i] |= seen[parents[i]]
        depth[i] = depth[parents[i]] + 1
    index = jnp.arange(WIDTH, dtype=jnp.int32)
    start = cache.length[:, None]
    bits = jnp.broadcast_to(base.pack_bits(jnp.asarray(seen)), (2, WIDTH, 1))
    block = base.Block(
        tokens, start + depth, start + index, base.Visibility(cache.length, bits)
    )
    out, cache = LM(LOADED.params, cache, block)
    path = jnp.broadcast_to(jnp.array([1, 3, 5, 7], jnp.int32), (2, 4))
    return out.logits, cache.commit(path, count)


def largest_error(cache, rounds=110, swap=lambda cache: cache):
    """The largest difference of logits from the whole cache's, over ragged trees.

    The rows change places in every 30th round; `swap` does it with the held cache.
    """
    rng, whole, worst = np.random.default_rng(0), make(), 0.0
    for i in range(rounds):
        if i % 30 == 29:
            whole, cache = whole.gather(SWAPPED), swap(cache.gather(SWAPPED))
        tokens = blocks.ints(rng.integers(0, CONFIG.vocab_size, (2, WIDTH)))
        count = blocks.ints(rng.integers((1, -1), (4, 3)))
        expected, whole = step(whole, tokens, count)
        logits, cache = step(cache, tokens, count)
        worst = max(worst, float(jnp.abs(expected - logits).max()))
        assert (cache.length == whole.length).all()
    return worst, cache


@pytest.mark.parametrize("limit", [4096, 0])
def test_logits_are_those_of_the_whole_cache(often, monkeypatch, limit):
    """Both forms of attention, trees, ragged rows; texts of 6 windows of 40 tokens."""
    monkeypatch.setattr(cached_attention, "LONG", limit)
    step.clear_cache()
    cache = held.windowed(make, WINDOWS, WIDTH)
    assert holding(cache) == [False, True, True]
    worst, cache = largest_error(cache)
    step.clear_cache()
    assert worst < 1e-5 and int(cache.length.max()) > 6 * 40
    for layer in cache.layers[1:]:
        used = cache.length - layer.shift
        assert (used <= layer.window + 16).all() and (used >= layer.window).all()


FAULTS = {
    "a token too many is dropped": lambda f, self, before, length: f(
        dataclasses.replace(self, window=self.window - 24), before, length
    ).replace(window=self.window),
    "one compaction is skipped": lambda f, self, before, length: jax.lax.cond(
        ((length > 100) & (length < 150)).any(),
        lambda: self,
        lambda: f(self, before, length),
    ),
}


@pytest.mark.parametrize("fault", FAULTS)
def test_a_wrong_compaction_shows(often, monkeypatch, fault):
    settle = held.HeldLayer.settle
    wrong = lambda *args: FAULTS[fault](settle, *args)
    monkeypatch.setattr(held.HeldLayer, "settle", wrong)
    step.clear_cache()
    worst, _ = largest_error(held.windowed(make, WINDOWS, WIDTH), 80)
    step.clear_cache()
    assert worst > 1e-3


def test_a_position_off_by_one_shows(often, monkeypatch):
    logical = held.HeldLayer._logical
    wrong = lambda self: logical(self) + (self.shift[:, None] > 0)
    monkeypatch.setattr(held.HeldLayer, "_logical", wrong)
    step.clear_cache()
    worst, _ = largest_error(held.windowed(make, WINDOWS, WIDTH), 60)
    step.clear_cache()
    assert worst > 1e-3


def test_rows_that_keep_the_shift_of_others_show(often):
    def swap(cache):
        layers = [
            dataclasses.replace(x, shift=x.shift[SWAPPED]) if held_too else x
            for x, held_too in zip(cache.layers, holding(cache))
        ]
        return dataclasses.replace(cache, layers=tuple(layers))

    worst, _ = largest_error(held.windowed(make, WINDOWS, WIDTH), 60, swap)
    assert worst > 1e-3


def bytes_of(tree):
    return sum(x.nbytes for x in jax.tree.leaves(tree))


def test_bytes_are_windows_and_slack(often):
    """Keys and values of each layer's slots, a shift a held layer, and positions."""
    cache = held.windowed(make, WINDOWS, WIDTH)
    slots = SIZE + 32 + 64  # 5 and 40 tokens, 16 between compactions, 8 nodes
    a_slot = 2 * CONFIG.n_kv_heads * CONFIG.head_dim * 4
    assert bytes_of(cache) == 2 * (slots * a_slot + 2 * 4 + SIZE * 4 + 4)
    assert bytes_of(cache) < 0.5 * bytes_of(make())


def test_short_caches_and_other_layers_are_whole():
    small_cache = lambda: LM.init_cache(2, 256)
    assert not any(holding(held.windowed(small_cache, WINDOWS, 128)))
    assert not any(holding(held.windowed(make, (), WIDTH)))


def texts(method=TREE, temperature=0.0):
    out = decoding.generate(
        LOADED, PROMPTS, method, max_new_tokens=90, temperature=temperature
    )
    return out.tokens


@pytest.mark.long
@pytest.mark.parametrize("temperature", [0.0, 0.8])
@pytest.mark.parametrize("method", [TREE, decoding.Method()])
def test_texts_are_those_of_the_whole_cache(monkeypatch, method, temperature):
    """The loop holds windows by itself."""
    windowed = held.windowed
    kept = []

    def held_cache(*args):
        kept.append(windowed(*args))
        return kept[-1]

    monkeypatch.setattr(initial_state, "windowed", lambda make, *rest: make())
    whole = texts(method, temperature)
    monkeypatch.setattr(initial_state, "windowed", held_cache)
    assert texts(method, temperature) == whole
    assert holding(kept[-1]) == [False, True, True]


@pytest.mark.long
def test_fault_windows_of_one_token(monkeypatch):
    plain, windowed = decoding.Method(), held.windowed
    sound = texts(plain)
    narrow = lambda make, windows, width: windowed(
        make, [min(w, 1) for w in windows], width
    )
    monkeypatch.setattr(initial_state, "windowed", narrow)
    assert texts(plain) != sound


@pytest.mark.long
def test_refilled_rows_are_those_of_the_whole_cache(monkeypatch):
    """Two rows for four requests."""
    parts = compose.compose(decoding.Method(), LOADED, 0.8)
    prompts = [*PROMPTS, PROMPTS[0][:300]]
    limits = [len(p) + n for p, n in zip(prompts, (40, 420, 90, 60))]
    keys = engines.request_keys(0, len(prompts), 1)

    def refilled():
        found = continuous_batching.decode_requests(
            parts, {"target": LOADED.params}, prompts, limits, keys, 2
        )
        return {f.request: f.tokens for f in found}

    texts = refilled()
    whole = lambda make, *rest: make()
    with monkeypatch.context() as patch:
        patch.setattr(initial_state, "windowed", whole)
        assert refilled() == texts
