"""Hidden-state optimisation: the prompt's keys and values learn to predict the prompt.

Yoshida, Gimpel, *Reconsidering the Past: Optimizing Hidden States in Language Models*,
2021, arXiv 2112.08653. The prompt is read in windows. With h the cached keys and values
of the windows before, and L the loss of a window's own tokens,

    L(h) = - sum_t log p(x_{t+1} | h, x of the window up to t)
    h <- h - rate * Adam(dL / dh)        `steps` times

and the window is then read behind the new h. Each key and value has moments of its own,
which begin when it enters the cache. Params stay as they are. The text is decoded
plainly behind the last h, or under any drafter.

Deviations: a reconstruction from the paper's abstract and summaries of it; rate, window
and number of steps are not the paper's, and Adam's other numbers are its usual ones.
The last window's own keys are not optimised, and none are while the text grows.
Cost: `steps` passes forward and back over the prompt, beside its own; the logits of a
window; two moments, float32, beside every key and value.
"""

import math
from dataclasses import replace
from typing import Any

import jax
import jax.numpy as jnp
from flax import struct
from jax import Array, lax

from decoding import base, vocab
from decoding.catalogue import Card
from decoding.hypotheses.prefill import Prefill
from models.base import ALL, Block, LanguageModel
from models.cache_layouts.kv_cache import DenseLayer
from models.errors import MethodError

CARD = Card(
    paper="Hidden-state optimisation, arXiv 2112.08653",
    guarantee=base.LOSSY,
    family="cached states",
    kind="prefill",
    needs=("model",),
    data=("rate",),
    examples={"window": 4, "rate": 0.01},
    sources=("yoshida2021reconsidering",),
)

DECAY, SQUARES, LEAST = 0.9, 0.999, 1e-8  # Adam's

States = tuple[tuple[Array, Array], ...]  # keys and values [B, G, S, d] by layer


@struct.dataclass
class Row:
    """Adam's moments."""

    mean: States
    square: States
    count: Array  # int32[B, S]: steps that a slot has taken


def prefill(
    model: LanguageModel, rate: float = 3e-3, steps: int = 1, window: int = 64
) -> Prefill:
    """Optimise the cache while the prompt is read.

    Args:
        model: the target, a transformer with dense caches.
        rate: of Adam; 0 leaves everything as it is.
        steps: of Adam for every window.
        window: tokens that are predicted from the states before them.

    Raises:
        MethodError: a model without keys and values, or a number out of range.
    """
    if not 0 <= rate < math.inf:
        raise MethodError(f"rate={rate}: use a number from 0, such as 0.003")
    if steps < 1 or window < 1:
        raise MethodError(f"steps={steps}, window={window}: use at least 1 of each")
    like = jax.eval_shape(lambda: model.init_cache(1, 64))
    if not all(type(layer) is DenseLayer for layer in like.layers):
        raise MethodError(
            "search/hidden_state_optimisation changes keys and values where they lie: "
            "load a transformer with the dense cache"
        )

    def init(numbers: Array, cache: Any) -> base.State:
        if not all(type(layer) is DenseLayer for layer in cache.layers):
            raise MethodError(
                "search/hidden_state_optimisation on layers that hold a window of the "
                "text, or no slots of their own: use a model without sliding windows"
            )
        zeros = lambda x: jnp.zeros(x.shape, jnp.float32)
        mean, square = (jax.tree.map(zeros, states(cache)) for _ in range(2))
        count = jnp.zeros(cache.pos.shape, jnp.int32)
        return base.State(Row(mean, square, count), numbers)

    def read(
        params: base.Params,
        state: base.State,
        cache: Any,
        block: Block,
        labels: Array,
        count: Array,
    ) -> tuple[Any, base.State]:
        past = jnp.arange(cache.size) < cache.length[:, None]
        learns = past & (count > 0)[:, None]
        of_window = (model, params["target"], cache, block, labels, count)
        slope = jax.grad(lambda kept: loss(kept, *of_window))

        def step(_: Any, carry: tuple) -> tuple:
            kept, row = carry
            return adam(kept, slope(kept), row, learns, state.shared)

        kept, row = lax.fori_loop(0, steps, step, (states(cache), state.row))
        return with_states(cache, kept), base.State(row, state.shared)

    return Prefill(window, jnp.float32(rate), init, read)


def states(cache: Any) -> States:
    """Return the keys and values of every layer."""
    return tuple((layer.k, layer.v) for layer in cache.layers)


def with_states(cache: Any, kept: States) -> Any:
    """Return the cache with other keys and values."""
    return replace(cache, layers=tuple(DenseLayer(*pair) for pair in kept))


def loss(
    kept: States,
    model: LanguageModel,
    weights: Any,
    cache: Any,
    block: Block,
    labels: Array,
    count: Array,
) -> Array:
    """Return the loss of a window behind `kept`, in nats, summed over rows.

    Args:
        kept: keys and values of all slots.
        model: the target.
        weights: its params.
        cache: for the positions of the slots.
        block: the window, N nodes a row.
        labels: int32[B, N], the tokens after them.
        count: int32[B], nodes of each row.
    """
    # A slot mask, of all slots, has the cache read whole: no kernel has a gradient.
    every = jnp.ones((*labels.shape, cache.size), bool)
    seen = replace(block.visibility, slot_mask=every)
    block = replace(block, visibility=seen, logits_at=ALL)
    out, _ = model(weights, with_states(cache, kept), block)
    assert out.logits is not None
    given = vocab.token_logprob(out.logits, labels)
    live = jnp.arange(labels.shape[1]) < count[:, None]
    return -jnp.where(live, given, 0.0).sum()


def adam(
    kept: States, slopes: States, row: Row, learns: Array, rate: Array
) -> tuple[States, Row]:
    """Take a step of Adam in the slots that `learns` bool[B, S]."""
    count = row.count + learns
    wide = lambda x: x[:, None, :, None]
    turns = wide(jnp.maximum(count, 1)).astype(jnp.float32)
    here = wide(learns)

    def moved(old: Array, new: Array, decay: float) -> Array:
        return jnp.where(here, decay * old + (1 - decay) * new, old)

    def after(x: Array, mean: Array, square: Array) -> Array:
        mean, square = mean / (1 - DECAY**turns), square / (1 - SQUARES**turns)
        way = rate * mean / (jnp.sqrt(square) + LEAST)
        return jnp.where(here, x - way, x).astype(x.dtype)

    slopes = jax.tree.map(lambda g: g.astype(jnp.float32), slopes)
    mean = jax.tree.map(lambda m, g: moved(m, g, DECAY), row.mean, slopes)
    square = jax.tree.map(lambda s, g: moved(s, g * g, SQUARES), row.square, slopes)
    kept = jax.tree.map(after, kept, mean, square)
    return kept, Row(mean, square, count)
