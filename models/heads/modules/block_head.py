"""A head on a block of slots: from a slot's state and the tokens before it to a law.

A head reads the block's tokens one after the other. In training they are the text's,
and all slots' laws come at once from the summaries; in decoding they are a tree's.
"""

from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jax import Array


class Slot(NamedTuple):
    """A slot, or several, before its head; leading axes broadcast to the tokens'."""

    raw: Array  # [..., D]: the last layer's output
    states: Array  # [..., D]: h, after the final norm


class Head(NamedTuple):
    """A head's arithmetic; `params` are all of a draft head's.

    - `start(params, shape) -> carry`, of texts of `shape` before the anchor is read.
    - `step(params, carry, tokens, embedded, slot) -> carry, summary` reads the tokens
      before a slot: int32[...], and the target's embeddings of them [..., D].
    - `logits(params, slot, laws, summary, head) -> logits` float32[..., V]. `head` is
      the target's, from normed states to logits; `laws` are those of h.

    - `reads`: a law depends on the token before its slot.
    - `memory(params)`: and on those before that.
    - `watched(params, tokens, slot) -> [..., W]`: what topologies may watch of a slot
      after tokens int32[...]; (): nothing.
    """

    name: str
    start: Callable[[Any, tuple[int, ...]], Any]
    step: Callable[[Any, Any, Array, Array, Slot], tuple[Any, Any]]
    logits: Callable[[Any, Slot, Array, Any, Callable[[Array], Array]], Array]
    reads: bool = True
    memory: Callable[[Any], bool] = lambda params: False
    watched: Callable[[Any, Array, Slot], Any] = lambda params, tokens, slot: ()


def plain(name: str) -> Head:
    """Return the head that reads no token: a slot's law is the target's head of h."""
    return Head(
        name,
        lambda params, shape: (),
        lambda params, carry, tokens, embedded, slot: ((), ()),
        lambda params, slot, laws, summary, head: laws,
        reads=False,
    )


def summaries(
    head: Head, params: Any, tokens: Array, embedded: Array, slots: Slot
) -> Any:
    """Read blocks of known tokens: return the summaries, a tree of [..., K, *].

    Args:
        head: the head.
        params: its params.
        tokens: int32[..., K], the tokens before each slot.
        embedded: [..., K, D].
        slots: of all slots, [..., K, D].
    """
    carry, found = head.start(params, tokens.shape[:-1]), []
    for k in range(tokens.shape[-1]):
        slot = Slot(slots.raw[..., k, :], slots.states[..., k, :])
        carry, summary = head.step(
            params, carry, tokens[..., k], embedded[..., k, :], slot
        )
        found.append(summary)
    return jax.tree.map(lambda *x: jnp.stack(x, tokens.ndim - 1), *found)
