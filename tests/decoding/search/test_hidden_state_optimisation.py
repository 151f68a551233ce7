"""decoding/search/hidden_state_optimisation.py: its steps, by hand, and its limits."""

import functools
import types
from dataclasses import replace

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import decoding
from decoding import Method, Spec
from decoding.conformance import kit
from decoding.loops import engines, prefill
from decoding.search import hidden_state_optimisation as hso
from models import transformer
from models.errors import MethodError
from tests.decoding.loops.test_copies import lm

TARGET = lm(3, 2, 0)
PROMPTS = [[1, 2, 3], [4], list(range(1, 40)), [5, 6] * 10]
WINDOW, RATE = 8, 0.05
LOSS = jax.jit(
    lambda kept, *window: hso.loss(kept, TARGET.model, TARGET.params, *window)
)
SLOPE = jax.jit(jax.grad(LOSS))
FORWARD = jax.jit(lambda *arguments: TARGET.model(*arguments))


def method(**arguments) -> Method:
    known = {"window": WINDOW, "rate": RATE}
    name = "search/hidden_state_optimisation"
    return Method(search=Spec(name, **{**known, **arguments}))


def generate(how: Method, prompts=PROMPTS, **fields):
    fields = {"max_new_tokens": 12, "width": "paper", **fields}
    return decoding.generate(TARGET, prompts, how, **fields)


def caches(prompts=PROMPTS, **arguments) -> list[np.ndarray]:
    """Keys and values of the prompts, [P, G, S, d] each, after they were read."""
    run = kit.Run(method(**arguments), lm=TARGET)
    cache = run.start(prompts, new=12).caches["target"]
    return [np.asarray(x) for pair in hso.states(cache) for x in pair]


def test_rate_0_is_plain_decoding():
    """Bit for bit; planted: another rate changes texts and log-probabilities."""
    plain = generate(Method(), prefill_chunk=WINDOW)
    still = generate(method(rate=0.0))
    assert (still.tokens, still.logprobs) == (plain.tokens, plain.logprobs)
    moved = generate(method(rate=0.3))  # a number: the same program
    assert moved.tokens != plain.tokens and moved.logprobs != plain.logprobs
    assert moved.guarantee == "LOSSY"


@functools.cache
def reading(steps: int):
    """Compile `Prefill.read`; the rate lies in its state."""
    return jax.jit(hso.prefill(TARGET.model, steps=steps, window=WINDOW).read)


class Window:
    """The second window of two prompts, and the loss behind other keys and values."""

    def __init__(self):
        tokens = jnp.asarray([p[:20] for p in (PROMPTS[2], PROMPTS[3])])
        length = jnp.asarray([20, 14])
        cache = TARGET.model.init_cache(2, 64)
        block, _, count = prefill.chunk(tokens, length, cache, WINDOW)
        _, cache = FORWARD(TARGET.params, cache, block)
        none = jnp.zeros((2, 0), jnp.int32)
        self.cache = cache.commit(none, count - 1, linear=True)
        chunk = prefill.chunk(tokens, length, self.cache, WINDOW)
        self.block, _, self.count = chunk
        self.labels = tokens[:, 9:17]

    def loss(self, kept) -> float:
        return float(LOSS(kept, self.cache, self.block, self.labels, self.count))

    def read(self, rate: float, steps: int = 1):
        """The keys and values after the window was read."""
        part = hso.prefill(TARGET.model, steps=steps, window=WINDOW)
        state = part.init(jnp.float32(rate), self.cache)
        rest = (self.cache, self.block, self.labels, self.count)
        cache, _ = reading(steps)({"target": TARGET.params}, state, *rest)
        return hso.states(cache)


def test_a_step_lowers_the_loss_of_the_window():
    """By rate times the sum of |dL / dh|, to first order, as Adam's first step does."""
    window = Window()
    before = hso.states(window.cache)
    slopes = SLOPE(before, window.cache, window.block, window.labels, window.count)
    slope = sum(float(jnp.abs(g).sum()) for pair in slopes for g in pair)
    rate = 1e-3
    fall = window.loss(before) - window.loss(window.read(rate))
    assert fall > 0 and fall == pytest.approx(rate * slope, rel=0.05)
    assert window.loss(window.read(0.01, steps=5)) < window.loss(window.read(0.01))
    # Planted: the gradient's sign turned around.
    assert window.loss(window.read(-rate)) > window.loss(before)


def test_only_the_past_of_rows_with_a_window_moves():
    window = Window()
    still = replace_count(window, [WINDOW, 0])
    for old, new in zip(hso.states(window.cache), still.read(0.1)):
        for a, b in zip(old, new):
            assert (a[0, :, :8] != b[0, :, :8]).any() and (a[1] == b[1]).all()
            assert (a[:, :, 8:] == b[:, :, 8:]).all()


def replace_count(window: Window, count: list[int]) -> Window:
    window.count = jnp.asarray(count)
    return window


def by_hand(prompt: list[int], is_shared: bool = False) -> list[np.ndarray]:
    """Adam in NumPy over the windows of one prompt; moments of every slot are its own.

    `is_shared`: all slots count their steps from the first window on. Two rows have the
    prompt, as `Window` has two.
    """
    tokens, length = jnp.asarray([prompt] * 2), jnp.asarray([len(prompt)] * 2)
    cache = TARGET.model.init_cache(2, 64)
    mean = [np.zeros(x.shape) for pair in hso.states(cache) for x in pair]
    square = [np.zeros(m.shape) for m in mean]
    turns = np.zeros(64)
    while int(cache.length[0]) < len(prompt) - 1:
        start = int(cache.length[0])
        block, _, count = prefill.chunk(tokens, length, cache, WINDOW)
        ahead = jnp.minimum(start + 1 + jnp.arange(WINDOW), len(prompt) - 1)
        rest = (cache, block, tokens[:, ahead], count)
        kept = hso.states(cache)
        slopes = SLOPE(kept, *rest)
        turns[: 64 if is_shared else start] += 1
        flat, after = [g for pair in slopes for g in pair], []
        for i, x in enumerate(x for pair in kept for x in pair):
            g = np.asarray(flat[i], np.float64)
            mean[i] = 0.9 * mean[i] + 0.1 * g
            square[i] = 0.999 * square[i] + 0.001 * g * g
            t = np.maximum(turns, 1)[:, None]
            way = mean[i] / (1 - 0.9**t)
            way /= np.sqrt(square[i] / (1 - 0.999**t)) + 1e-8
            way[:, :, start:] = 0
            after.append(jnp.asarray(np.asarray(x) - RATE * way, jnp.float32))
        cache = hso.with_states(cache, tuple(zip(after[::2], after[1::2])))
        _, cache = FORWARD(TARGET.params, cache, block)
        none = jnp.zeros((2, 0), jnp.int32)
        cache = cache.commit(none, count - 1, linear=True)
    return [np.asarray(x) for pair in hso.states(cache) for x in pair]


def furthest(ours: list, theirs: list, row: int, size: int) -> float:
    """The greatest difference of the first `size` slots of a row from another's."""
    pairs = zip(ours, theirs)
    return max(np.abs(a[row, :, :size] - b[0, :, :size]).max() for a, b in pairs)


def test_equals_adam_by_hand():
    """Five windows; planted: one count of steps for all slots."""
    size = len(PROMPTS[2]) - 1
    found = caches()
    assert furthest(found, by_hand(PROMPTS[2]), 2, size) < 2e-3
    assert furthest(found, by_hand(PROMPTS[2], is_shared=True), 2, size) > 1e-2


def test_a_prompt_is_as_alone(monkeypatch):
    """The shorter of two prompts, whose windows end first."""
    size = len(PROMPTS[3]) - 1
    alone = caches(PROMPTS[3:] * 4)  # no longer prompt beside it: the same program
    assert furthest(caches(), alone, 3, size) < 1e-4
    sound = hso.adam

    def adam(kept, slopes, row, learns, rate):
        """Planted: a row's moments move it as long as any prompt is read."""
        return sound(
            kept, slopes, row, jnp.broadcast_to(learns.any(0), learns.shape), rate
        )

    monkeypatch.setattr(hso, "adam", adam)
    with engines.apart():
        assert furthest(caches(), alone, 3, size) > 1e-2


@pytest.mark.long
def test_samples_and_streams():
    """As of any other drafter: n texts a prompt, the first that of n=1; pieces."""
    fields = {"temperature": 0.8, "seed": [3, 1, 4, 2]}
    one = generate(method(), **fields)
    # Two texts of two prompts are four rows, too: the same program.
    several = generate(method(), PROMPTS[2:], n=2, temperature=0.8, seed=[4, 2])
    assert [texts[0] for texts in several.tokens] == one.tokens[2:]
    assert all(first != second for first, second in several.tokens)
    pieces = decoding.stream(
        TARGET, PROMPTS, method(), max_new_tokens=12, width="paper", **fields
    )
    texts = [[] for _ in PROMPTS]
    for piece in pieces:
        texts[piece.prompt] += piece.tokens
    assert texts == one.tokens
    # Planted: plain decoding, which is rate 0.
    assert generate(method(rate=0.0), **fields).tokens != one.tokens


def windowed():
    config = replace(TARGET.config, windows=(16, 0, 16))
    model = transformer.transformer(config)
    return types.SimpleNamespace(**{**vars(TARGET), "model": model, "config": config})


@pytest.mark.parametrize(
    ("lm", "arguments", "fields", "words"),
    [
        (TARGET, {"rate": -1.0}, {}, "rate=-1.0"),
        (TARGET, {"window": 0}, {}, "window=0"),
        (kit.TARGET, {}, {}, "load a transformer"),
        (windowed(), {}, {"max_new_tokens": 300}, "without sliding windows"),
        (TARGET, {}, {"prefill_chunk": 16}, "prefill_chunk=16 beside"),
        (TARGET, {}, {"reward": Spec("rewards/likelihood")}, "it changes"),
    ],
)
def test_refuses(lm, arguments, fields, words):
    with pytest.raises(MethodError, match=words):
        decoding.generate(lm, [[1, 2]], method(**arguments), **fields)
