"""Chunks of the prompt: few calls, the caches and texts of small ones."""

import dataclasses
import functools
import types

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import decoding
import models
from decoding import compose
from decoding.conformance import kit
from decoding.loops import engines, prefill
from models import transformer
from models.cache_layouts import held, quantized
from models.errors import PromptError
from tests.models import blocks, small

CONFIG = dataclasses.replace(
    small.CONFIG, windows=(40, 40), max_positions=2048, n_layers=2, eos=()
)
LM = transformer.transformer(CONFIG)
LOADED = models.Loaded(LM, blocks.numpy_params(LM))
PROMPTS = [small.random_tokens(i, n).tolist() for i, n in enumerate((700, 9, 300))]
SIZE = 1024


def filled(chunk: int):
    """The target's cache after PROMPTS, read in chunks of `chunk`."""
    parts = compose.compose(decoding.Method(), LOADED)
    engine = engines.Engine(parts.program)
    limits = [len(prompt) + 9 for prompt in PROMPTS]
    keys = engines.request_keys(0, len(PROMPTS), 1)
    params = compose.params(LOADED)
    state = engine.start(params, parts, PROMPTS, limits, keys, SIZE, chunk=chunk)
    return state.caches["target"]


def error(cache, expected) -> float:
    """The largest difference of keys and values in the slots that rows use."""
    worst = 0.0
    for a, b in zip(cache.layers, expected.layers, strict=True):
        np.testing.assert_array_equal(a.shift, b.shift)
        for row, used in enumerate(np.asarray(cache.length - a.shift)):
            for x, y in ((a.store.k, b.store.k), (a.store.v, b.store.v)):
                gap = jnp.abs(x[row, :, :used] - y[row, :, :used])
                worst = max(worst, float(gap.max()))
    return worst


def test_caches_are_those_of_small_chunks(monkeypatch):
    """Of 700, 9 and 300 tokens; planted: a held layer without room for a chunk."""
    monkeypatch.setattr(held, "EVERY", 64)
    monkeypatch.setattr(held, "STEP", 16)
    expected, large = filled(128), filled(512)
    assert isinstance(large.layers[0], held.HeldLayer)
    assert large.layers[0].capacity == 112  # 40 tokens, 64 and a node, in whole 16s
    assert error(large, expected) < 1e-5
    monkeypatch.setattr(held, "widened", lambda tree, width: tree)
    assert error(filled(512), expected) > 1e-3


@functools.cache
def begun():
    """A run of a drafter that may read logits of the prompt, and a state of it."""
    run = kit.Run(kit.cases()["token_recycling"])
    return run.parts.program, run.start()


def chosen(rows=1, longest=1 << 17, vocab=None, caches=None, **changes) -> int:
    sound, state = begun()
    drafter = sound.drafter._replace(prompt_logits=vocab is not None)
    config = types.SimpleNamespace(vocab_size=vocab or kit.VOCAB)
    model = sound.model._replace(config=config)
    program = dataclasses.replace(sound, drafter=drafter, model=model, **changes)
    state = dataclasses.replace(state, length=jnp.zeros(rows, jnp.int32))
    if caches is not None:
        state = dataclasses.replace(state, caches=caches)
    return prefill.chunk_size(program, state, longest)


def on_tpu(monkeypatch):
    """Choose chunks, and nothing else, as on a TPU."""
    chips = types.SimpleNamespace(platform=lambda plan: "tpu")
    monkeypatch.setattr(prefill, "sharding", chips)


def test_chunks_fit(monkeypatch):
    """By rows, the longest prompt, logits that a drafter reads, and the layout."""
    assert chosen() == 128  # on a CPU
    on_tpu(monkeypatch)
    assert [chosen(n) for n in (1, 4, 8, 9, 64)] == [1024, 1024, 512, 256, 128]
    assert [chosen(1, n) for n in (1, 129, 130, 600)] == [128, 128, 256, 1024]
    assert [chosen(n, vocab=128_000) for n in (1, 2, 9)] == [512, 256, 128]
    assert chosen(chunk=48) == 48
    codes = lambda n: {"target": quantized.int8(n)(1, 1, 256, 1, 16, "bfloat16")}
    assert [chosen(caches=codes(n)) for n in (128, 256, 96)] == [128, 256, 32]


def test_a_long_prompt_takes_few_calls(monkeypatch):
    """Of 4,096 tokens alone; planted: chunks of `CHUNK` tokens, whatever fits."""
    on_tpu(monkeypatch)
    prompt = np.random.default_rng(0).integers(0, 7, 4096).tolist()

    def calls() -> int:
        seen: list[int] = []
        run = kit.Run(decoding.Method())
        sound = run.parts.program.drafter

        def observe(ctx, state, outcome):
            jax.debug.callback(lambda: seen.append(1))
            return sound.observe(ctx, state, outcome)

        run.alter(drafter=sound._replace(observe=observe))
        jax.block_until_ready(run.start([prompt], size=4160))
        jax.effects_barrier()
        return len(seen)

    assert calls() == 4
    monkeypatch.setattr(prefill, "MOST", prefill.CHUNK)
    assert calls() == 32


@pytest.mark.parametrize("chunk", [0, -1, 2.5, True])
def test_a_wrong_chunk_is_refused(chunk):
    with pytest.raises(PromptError, match=f"prefill_chunk={chunk}"):
        decoding.generate(kit.TARGET, kit.PROMPTS, prefill_chunk=chunk)
