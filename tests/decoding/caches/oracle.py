"""Evictions in NumPy, on the first layer: its keys depend on no other eviction.

`follow` runs a policy on the peaked transformer and returns what its first layer keeps;
`simulate` does the same from the queries and keys of the same tokens, slot by slot.
"""

import functools
from collections.abc import Callable
from typing import Any

import jax.numpy as jnp
import ml_dtypes
import numpy as np

from decoding import Method, Spec
from decoding.conformance import kit, peaked
from models.transformer.layer import Layer
from models.transformer.modules import rotations

PROMPTS = peaked.PROMPTS[2:]


def first_layer(lm: Any, tokens: list[int]) -> tuple[np.ndarray, ...]:
    """Return q [T, G, R, d], scaled, k and v [T, G, d] of the first layer."""
    config, ids = lm.config, jnp.asarray([tokens], jnp.int32)
    at = jnp.arange(len(tokens), dtype=jnp.int32)[None]
    x = lm.model.embed(lm.params, ids, at)
    spun = rotations(config, at, peaked.SIZE)[0]
    layer: Any = Layer(config)
    found = layer.apply({"params": lm.params["layer_0"]}, x, spun, method="project")
    return tuple(np.asarray(part[0], np.float64) for part in found)


@functools.cache
def every_layer(seed: int, tokens: tuple[int, ...]) -> list[tuple[np.ndarray, ...]]:
    """Return q [T, G, R, d] and k [T, G, d] of each layer, which read all tokens.

    Args:
        seed: of the peaked transformer.
        tokens: T of them.
    """
    lm, config = peaked.model(seed), peaked.config()
    at = jnp.arange(len(tokens), dtype=jnp.int32)[None]
    spun = rotations(config, at, peaked.SIZE)[0]
    x = lm.model.embed(lm.params, jnp.asarray([tokens], jnp.int32), at)
    mask = jnp.tril(jnp.ones((1, len(tokens), len(tokens)), bool))
    layer: Any = Layer(config)
    found = []
    for i in range(config.n_layers):
        own = {"params": lm.params[f"layer_{i}"]}
        q, k, _ = layer.apply(own, x, spun, method="project")
        found.append((np.asarray(q[0], np.float64), np.asarray(k[0], np.float64)))
        x = layer.apply(own, x, mask, spun, None)
    return found


def weights(
    q: np.ndarray, k: np.ndarray, cap: float = 0.0, sinks: Any = -np.inf
) -> np.ndarray:
    """Return the softmax weights [R, n] of one query q [R, d] on keys k [n, d].

    `cap` bounds the scores, and `sinks` [R] takes part in each sum.
    """
    s = q @ k.T
    s = np.tanh(s / cap) * cap if cap else s
    top = s.max(-1, keepdims=True)
    p = np.exp(s - top)
    return p / (p.sum(-1, keepdims=True) + np.exp(sinks - top[:, 0])[:, None])


class Heads:
    """What the KV heads of a layer keep, and what their queries saw."""

    def __init__(
        self,
        q: np.ndarray,
        k: np.ndarray,
        v: np.ndarray,
        cap: float = 0.0,
        sinks: np.ndarray | None = None,  # [G, R]
    ):
        self.q, self.k, self.v, self.cap = q, k, v, cap
        self.sinks = np.full(q.shape[1:3], -np.inf) if sinks is None else sinks
        self.kept: list[list[int]] = [[] for _ in range(k.shape[1])]
        self.score = np.zeros(k.shape[:2])
        self.last = 0

    def column(self, g: int, t: int) -> tuple[list[int], np.ndarray]:
        """Return the tokens that query t of group g sees, and their summed weights."""
        seen = [j for j in self.kept[g] if j <= t]
        return seen, weights(
            self.q[t, g], self.k[seen, g], self.cap, self.sinks[g]
        ).sum(0)

    def grow(self, length: int) -> None:
        """See tokens up to `length`; add what each query attends to."""
        for g, kept in enumerate(self.kept):
            kept.extend(range(self.last, length))
            for t in range(self.last, length):
                seen, sums = self.column(g, t)
                self.score[seen, g] += sums
        self.last = length

    def cut(self, budget: int, value: Callable, length: int, exact: bool) -> None:
        """Keep the tokens of the best values, and of equal ones the oldest."""
        values = [
            [value(self, g, t, length) for t in kept]
            for g, kept in enumerate(self.kept)
        ]
        for g, kept in enumerate(self.kept):
            worth = np.asarray(values[g], np.float64)
            if not exact:
                worth = worth.astype(ml_dtypes.bfloat16).astype(np.float64)
            order = np.argsort(-worth, kind="stable")[:budget]
            self.kept[g] = sorted(kept[i] for i in order)


def simulate(
    prompt: list[int],
    text: list[int],
    value: Callable,
    budget: int,
    every: int = 0,
    prompt_every: int = 0,
    exact: bool = False,
    lm: Any = None,
    capped: bool = True,
    sunk: bool = True,
) -> list[list[int]]:
    """Return the tokens that each KV head of the first layer keeps at the end.

    Args:
        prompt: its tokens.
        text: the new tokens.
        value: (heads, group, token, length) -> a number; inf is kept.
        budget: slots.
        every: tokens between evictions behind the prompt; 0: none there.
        prompt_every: those in the prompt; 0: none there.
        exact: values are not rounded.
        lm: the model; None: the peaked one.
        capped: whether the model's bound of scores holds, where it has one.
        sunk: whether its sinks take part.
    """
    lm = lm or peaked.model()
    sinks = lm.params["layer_0"]["attention"].get("sinks") if sunk else None
    cap = lm.config.attention_softcap * capped
    heads = Heads(*first_layer(lm, [*prompt, *text]), cap, sinks)
    read, end = len(prompt) - 1, len(prompt) + len(text) - 1
    events = {read}
    if prompt_every:
        events |= {*range(prompt_every, read + 1, prompt_every)}
    if every:
        events |= {n for n in range(every, end + 1, every) if n > read}
    for length in sorted(events):
        heads.grow(length)
        heads.cut(budget, value, length, exact)
    heads.grow(end)
    return heads.kept


def follow(
    spec: Spec, lm: Any = None
) -> list[tuple[list[int], list[int], list[list[int]]]]:
    """Return of each prompt: itself, its text, and what the first layer keeps."""
    run = kit.Run(Method(policy=spec), lm=lm or peaked.model())
    state = run.start(PROMPTS, new=peaked.NEW, size=peaked.SIZE)
    state = run.advance(state)
    texts, cache = kit.texts(state, PROMPTS), state.caches["target"]
    kept = np.asarray(cache.layers[0].tokens(cache.length))
    rows = [[[int(t) for t in head if t >= 0] for head in row] for row in kept]
    return list(zip(map(list, PROMPTS), texts, rows))


def differs(spec: Spec, value: Callable, lm: Any = None, **rule: Any) -> int:
    """Count the prompts whose kept tokens are not those of `simulate`."""
    found = follow(spec, lm)
    return sum(
        simulate(p, text, value, lm=lm, **rule) != kept for p, text, kept in found
    )
