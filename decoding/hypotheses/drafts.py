"""Drafts inside a search: nodes that run with the lanes, before they are chosen.

`B` requests · `K` lanes · `N` nodes of a round's block, the lanes' first · `D` drafts,
`N - K` · `G` drafts of one level · `V` vocabulary · `W` words of bits.
"""

from collections.abc import Callable
from typing import Any, NamedTuple

from flax import struct
from jax import Array

from decoding import base


class Lanes(NamedTuple):
    """Drafts for all lanes of a search together, by a model on the same nodes.

    - `model`: the draft model, a `LanguageModel`; its weights are `params["draft"]`.
    - `depth`: levels of drafts.
    - `count(lanes) -> int`: G, the drafts of a level.
    - `expand(sums, logprobs, G) -> parent int32[G], token int32[G], sums float32[G]` ★
      gets the log-probabilities float32[F, V] of the draft model at the nodes of a
      level, and float32[F], those of the nodes' own texts; without one (-inf) there is
      no node.
    """

    model: Any
    depth: int
    count: Callable[[int], int]
    expand: Callable[[Array, Array, int], tuple[Array, Array, Array]]
    guarantee: str = base.LAW


@struct.dataclass
class Block:
    """The nodes that run in a round: those of the lanes, then the drafts below them."""

    tokens: Array  # int32[B, N]
    depth: Array  # int32[B, N]: generated tokens up to the node
    there: Array  # bool[B, N]
    parents: Array  # int32[B, D]: the drafts' parents among the N nodes
    slot: Array  # int32[B, N]: -1: not there
    seen: Array  # uint32[B, N, W]: ancestors-or-self, by slots
    most: int = struct.field(pytree_node=False, default=0)  # levels of drafts


@struct.dataclass
class Texts:
    """The lanes as rows of a drafter that reads texts."""

    tokens: Array  # int32[B, K, T]: prompt and text
    length: Array  # int32[B, K]
    own: base.State  # the drafter's, row leaves [B, K, ...]


@struct.dataclass
class Trail:
    """How each lane came out of a round's block."""

    lane: Array  # int32[B, K]: the lane that it was when the round began
    path: Array  # int32[B, K, depth]: drafts of that lane that it went through
    moves: Array  # int32[B, K]: new tokens, of which all but the last are drafts
    last: Array  # int32[B, K]: the last of them
