"""What a frozen target says of a batch, computed in the training step itself.

No hidden state is ever written to disk: the target runs forward beside the head that
learns from it. The batch's contract: `tokens` int32[B, T]; `loss_mask` bool[B, T],
where present, says which tokens may be *predicted* (the assistant's, say).
"""

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
from flax import struct
from jax import Array, lax

from models import base, transformer

NORM = "norm"


@struct.dataclass
class Teacher:
    """The frozen target on a batch. Nothing in it has a gradient."""

    params: Any  # the target's
    hidden: base.Hidden  # tap -> [B, T, D]
    model: base.LanguageModel = struct.field(pytree_node=False)

    def embed(self, tokens: Array) -> Array:
        """The target's embeddings [B, T, D] of `tokens` int32[B, T]."""
        positions = jnp.broadcast_to(jnp.arange(tokens.shape[1]), tokens.shape)
        return self.model.embed(self.params, tokens, positions)

    def head(self, normed: Array) -> Array:
        """float32[..., V]: the target's logits of states after its final norm."""
        return self.model.head(self.params, normed)


def teacher(
    model: base.LanguageModel, taps: tuple = (), remat: bool = False
) -> Callable[[Any, dict[str, Array]], Teacher]:
    """`(params, batch) -> Teacher`, with the normed last state and `taps`.

    Logits are not kept: `Teacher.head` makes them where and when a loss needs them.
    """
    wanted = tuple(dict.fromkeys((NORM, *taps)))

    def run(params: Any, batch: dict[str, Array]) -> Teacher:
        params = lax.stop_gradient(params)
        out = transformer.forward(
            model.config,
            params,
            batch["tokens"],
            batch.get("segments"),
            taps=wanted,
            remat=remat,
        )
        return Teacher(params, lax.stop_gradient(out.hidden), model)

    return run


def ahead(x: Array, steps: int | Array) -> Array:
    """`x[:, t + steps]` at t; what wraps around is masked by `predicted`."""
    return jnp.roll(x, -jnp.asarray(steps), 1)


def predicted(batch: dict[str, Array], steps: int) -> Array:
    """float32[B, T]: 1 at t where token `t + steps` exists and may be predicted.

    Of packed documents also where it is of the document of token t.
    """
    tokens = batch["tokens"]
    length = tokens.shape[1]
    there = jnp.broadcast_to(jnp.arange(length) < length - steps, tokens.shape)
    if "loss_mask" in batch:
        there = there & ahead(batch["loss_mask"], steps).astype(bool)
    if "segments" in batch:
        there = there & (ahead(batch["segments"], steps) == batch["segments"])
    return there.astype(jnp.float32)


def mean(values: Array, weights: Array) -> Array:
    """The weighted mean; 0 where nothing counts."""
    return (values * weights).sum() / jnp.maximum(weights.sum(), 1.0)


def in_parts(function: Callable[..., Any], size: int, *arrays: Array) -> Any:
    """Sums of `function(*parts)` over parts of `size` positions of arrays [B, T, ...].

    The parts are recomputed in the backward pass, so that of logits [B, T, V] only one
    part exists at a time. `size` 0 takes all positions at once.
    """
    flat = [x.reshape(-1, *x.shape[2:]) for x in arrays]
    count = flat[0].shape[0]
    if not size or count <= size:
        return function(*flat)
    short = -count % size
    padded = [jnp.pad(x, [(0, short)] + [(0, 0)] * (x.ndim - 1)) for x in flat]
    parts = [x.reshape(-1, size, *x.shape[1:]) for x in padded]
    sums = lax.map(lambda part: jax.checkpoint(function)(*part), tuple(parts))
    return jax.tree.map(lambda x: x.sum(0), sums)


def by_part(function: Callable[..., Any], size: int, *arrays: Array) -> Any:
    """`function(*parts)` of parts of `size` positions of arrays [B, T, ...], side by
    side: what it returns [n, ...] comes back as [B, T, ...]. `size` 0: all at once.
    """
    batch, length = arrays[0].shape[:2]
    flat = [x.reshape(-1, *x.shape[2:]) for x in arrays]
    count = batch * length
    size = size if 0 < size < count else count
    short = -count % size
    padded = [jnp.pad(x, [(0, short)] + [(0, 0)] * (x.ndim - 1)) for x in flat]
    parts = tuple(x.reshape(-1, size, *x.shape[1:]) for x in padded)
    found = lax.map(lambda part: function(*part), parts)

    def whole(x: Array) -> Array:
        return x.reshape(-1, *x.shape[2:])[:count].reshape(batch, length, *x.shape[2:])

    return jax.tree.map(whole, found)
