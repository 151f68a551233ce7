"""SpecPC: shorten prompts to what a draft model's last queries attend to.

Galim, Ewer, Kang, Lee, Koo, Lee, *Draft-based Approximate Inference for LLMs*, 2025,
arXiv 2506.08373; its official code.

A draft model reads the prompt of n tokens. With a its softmax weights, and w_i the i-th
of `window` numbers from 0 to 1, token j is worth

    s_j = max over the last `window` queries i, heads and layers of w_i a_ij

of the layers from `first_layer` on, pooled over `kernel` neighbours. The `cap` tokens
of the highest worth are taken in turn, the best first, each with its `neighbours`, the
nearest first, after the last `window` tokens, until there are `cap`. They stay in the
prompt's order, and the target reads them at positions without gaps.

Deviations: worths are compared in bfloat16, and of equal ones the older token is taken;
the papers' models have 16 layers and more and begin at layer 8, a draft model with
fewer begins at half of its own; layers with sliding windows have no vote. Cost: the
draft model reads each prompt that is longer than `cap`, and keeps its keys and values
meanwhile; one read of the keys.
"""

import functools
from collections.abc import Sequence
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import ml_dtypes
import numpy as np
from jax import Array

from decoding import base
from decoding.cache_eviction import scored
from decoding.loops import initial_state, prefill
from decoding.serving import requests
from models.cache_layouts.kept import KeptLayer
from models.errors import MethodError, PromptError

FIRST = 8  # the layer that votes begin at
CHUNK = 128  # tokens that the draft model reads a call


class Compressed(NamedTuple):
    """Shortened prompts, and what is left of each."""

    prompts: list[list[int]]  # the tokens kept, in order
    positions: list[np.ndarray]  # int32[kept]: where they were
    kept: list[int]
    whole: list[int]  # tokens of the prompts as they were given
    calls: list[int]  # of the draft model


def compress(
    draft: Any,
    prompts: Sequence[Any],
    cap: int = 1024,
    *,
    window: int = 64,
    kernel: int = 32,
    neighbours: int = 32,
    first_layer: int | None = None,
    weighted: bool = True,
) -> Compressed:
    """Shorten prompts to `cap` tokens; those of at most as many stay as they are.

    A prompt's result depends on nothing but the prompt. Pass `prompts` of the result to
    `decoding.generate`, whose model has the draft model's tokenizer.

    Args:
        draft: a transformer, as `models.load` returns it.
        prompts: texts, conversations or token lists, as of `generate`.
        cap: tokens to keep, at least `window`.
        window: the last tokens, which are kept and whose queries judge.
        kernel: tokens that the worth is pooled over.
        neighbours: tokens around a chosen one that are kept with it, itself among them;
            1: it alone.
        first_layer: the first layer that judges; None: 8, or half of a model of fewer
            than 16 layers.
        weighted: whether later queries weigh more; else all weigh 1.

    Returns:
        The tokens kept, their positions, and how many of how many each prompt keeps.

    Raises:
        MethodError: a number out of range, or a draft model without layers to judge.
        PromptError: a prompt that the draft model cannot read.
    """
    config = draft.model.config
    try:
        scored.check_model(draft.model)
    except MethodError as error:
        raise MethodError(
            "SpecPC cannot read this draft model's attention: use a transformer "
            f"without ALiBi and latent heads ({error})"
        ) from error
    layers = config.n_layers
    first = min(FIRST, layers // 2) if first_layer is None else first_layer
    low = min(window, kernel, neighbours)
    if low < 1 or cap < window or not 0 <= first < layers:
        raise MethodError(
            f"cap={cap}, window={window}, kernel={kernel}, neighbours={neighbours}, "
            f"first_layer={first}: use at least 1 of each, a cap of at least the "
            f"window, and one of the draft model's {layers} layers"
        )
    texts = requests.encode(draft, prompts)
    for i, tokens in enumerate(texts):
        _check(config, i, tokens)
    made = Compressed([], [], [], [], [])
    for tokens in texts:
        calls, positions = 0, np.arange(len(tokens), dtype=np.int32)
        if len(tokens) > cap:
            calls = -(-len(tokens) // CHUNK)
            worth = worths(draft, tokens, window, first, weighted)
            positions = chosen(worth, cap, window, kernel, neighbours)
        made.prompts.append([tokens[i] for i in positions])
        made.positions.append(positions)
        made.kept.append(len(positions))
        made.whole.append(len(tokens))
        made.calls.append(calls)
    return made


def worths(
    draft: Any, tokens: Sequence[int], window: int, first: int, weighted: bool
) -> np.ndarray:
    """Return float32[n]: the largest weight that each token got, before pooling."""
    size = initial_state.bucket(len(tokens))
    padded = np.zeros((1, size), np.int32)
    padded[0, : len(tokens)] = tokens
    length = jnp.asarray([len(tokens)], jnp.int32)
    about = (draft.model, window, first, weighted)
    found = _worths(*about, draft.params, jnp.asarray(padded), length)
    return np.asarray(found)[0, : len(tokens)]


def chosen(
    worth: np.ndarray, cap: int, window: int, kernel: int, neighbours: int
) -> np.ndarray:
    """Return the positions int32[cap] to keep, in rising order.

    Args:
        worth: float32[n] of more than `cap` tokens.
        cap: see `compress`, as for the rest.
        window: tokens.
        kernel: tokens.
        neighbours: tokens.
    """
    size, before = len(worth), (kernel - 1) // 2
    padded = np.pad(worth, (before, kernel - 1 - before))
    pooled = np.lib.stride_tricks.sliding_window_view(padded, kernel).max(1)
    rounded = pooled.astype(ml_dtypes.bfloat16).astype(np.float32)
    best = np.argsort(-rounded, kind="stable")[:cap]
    before = (neighbours - 1) // 2
    steps = np.arange(-before, neighbours - before)
    steps = steps[np.argsort(np.abs(steps), kind="stable")]
    near = np.clip(best[:, None] + steps, 0, size - 1).ravel()
    every = np.concatenate([np.arange(size - window, size), near])
    _, places = np.unique(every, return_index=True)
    return np.sort(every[np.sort(places)[:cap]]).astype(np.int32)


@functools.partial(jax.jit, static_argnums=(0, 1, 2, 3))
def _worths(
    model: Any,
    window: int,
    first: int,
    weighted: bool,
    params: Any,
    tokens: Array,
    length: Array,
) -> Array:
    """Return float32[B, C] of prompts int32[B, T] of `length` int32[B] tokens."""
    batch, size = tokens.shape
    dtype = jax.tree.leaves(params)[0].dtype
    # Layers as of an evicting policy, which hold the last queries; nothing is evicted.
    # To them the prompt has a token more, since its last one is read here, too.
    sizes = base.Sizes(batch, size, size, 0, CHUNK, dtype)
    policy = scored.policy(scored.Rule(queries=window), 1)
    assert policy.make is not None
    cache = policy.make(model, sizes, length + 1)
    own = (model, params)
    cache = prefill.fill_stream(own, cache, tokens, length + 1, min(CHUNK, size))
    found = []
    for layer in cache.layers[first:]:
        if not isinstance(layer, KeptLayer):
            continue
        q, at = layer.asked(length)
        weight = jnp.ones(at.shape, jnp.float32)
        if weighted and window > 1:
            weight = (at - (length - window)[:, None]) / (window - 1)
        weight = jnp.where(at < 0, 0.0, weight)
        held = layer.tokens(length)
        each = layer.received(q, weight, at, held, reduce="max")
        found.append(each.max(1))
    if not found:
        raise MethodError(
            f"the draft model's layers from {first} on all have sliding windows: use "
            "an earlier first_layer, or another model"
        )
    return jnp.stack(found).max(0)


def _check(config: Any, i: int, tokens: Sequence[int]) -> None:
    """Raise PromptError for a prompt that the draft model cannot read."""
    if not tokens:
        raise PromptError(f"prompt {i} is empty: leave it out")
    wrong = [t for t in tokens if not 0 <= t < config.vocab_size]
    if wrong:
        raise PromptError(
            f"prompt {i} has token {wrong[0]}, outside the draft model's vocabulary of "
            f"{config.vocab_size}: encode it with this model's tokenizer"
        )
    if len(tokens) > config.max_positions:
        raise PromptError(
            f"prompt {i} has {len(tokens)} tokens, more than the draft model's "
            f"{config.max_positions} positions: use another, or a shorter prompt"
        )
