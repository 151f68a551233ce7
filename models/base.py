"""The one model call: its input, a block of nodes, and its output.

Letters: `B` rows, `N` nodes of a block, `V` vocabulary, `S` cache slots, `D` model
width, `L` layers, `W` 32-bit words of ancestor bits.
"""

from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from flax import struct
from jax import Array

from models.errors import ConfigError

ALL = "all"
LAST = "last"
NONE = "none"

FFN_INPUT = "ffn_input"
BALANCE, EXPERTS = "balance", "experts"

Params = Any
Tap = int | str


@struct.dataclass
class Visibility:
    """The attention mask of a block, without a dense array.

    Node `n` of row `b` sees slot `s` when `s < prefix[b]`, or when bit
    `s - prefix[b]` of `ancestors[b, n]` is set. A block's nodes are therefore in the
    scratch slots `prefix + j`, where `j` is the node's index in its *tree*. A block may
    hold only one level of that tree.
    """

    prefix: Array  # int32[B]: slots below this hold committed tokens
    ancestors: Array  # uint32[B, N, W]: ancestor-or-self bits, bit j = tree node j
    slot_mask: Array | None = None  # bool[B, N, S]: ANDed to the prefix (policies only)


@struct.dataclass
class Block:
    """The input of a model call."""

    tokens: Array  # int32[B, N]; ids >= V need a wrapped `embed`
    positions: Array  # int32[B, N]
    slots: Array  # int32[B, N]: where keys are written; >= S writes nowhere
    visibility: Visibility
    run: Array | None = (
        None  # bool[L, 2]: run (attention, MLP) of each layer; None: all
    )
    logits_at: str = struct.field(pytree_node=False, default=ALL)  # ALL | LAST | NONE
    embeds: Array | None = (
        None  # float32[B, N, D]: read in place of the table's rows of `tokens`
    )
    gate: Array | None = (
        None  # bool[L, B, N]: nodes that pass a layer by, and leave no key in it
    )


def layer_slots(block: Block, layer: int, size: int) -> Array:
    """Return int32[B, N]: where a layer's keys are written; >= `size`: nowhere."""
    if block.gate is None:
        return block.slots
    index = jnp.arange(block.slots.shape[1], dtype=jnp.int32)
    return jnp.where(block.gate[layer], size + index, block.slots)


@jax.tree_util.register_pytree_node_class
class Hidden(dict):
    """Tapped states by tap: a pytree, although ints and strings cannot be sorted."""

    def tree_flatten(self) -> tuple[tuple, tuple]:
        taps = tuple(sorted(self, key=str))
        return tuple(self[tap] for tap in taps), taps

    @classmethod
    def tree_unflatten(cls, taps: tuple, states: tuple) -> "Hidden":
        return cls(zip(taps, states))


@struct.dataclass
class ModelOutput:
    """The output of a call; `logits` is `[B, 1, V]` for LAST and None for NONE."""

    logits: Array | None  # float32[B, N, V], raw
    hidden: Hidden  # tap -> [B, N, D]; i: after layer i (0: embeddings)


class LanguageModel(NamedTuple):
    """A language model as pure functions; `__call__` composes them.

    `taps` name hidden states: an int `i` is the state after `i` layers (0 is the
    embedding output, `L` the last layer's), `"norm"` the state after the final norm,
    `FFN_INPUT` what the last layer's feed-forward reads: the state after attention,
    normed. A call of some of the layers returns it if the last one is among them.
    `EXPERTS`, int32[L, B, N, k], has the experts that nodes visit in the layers run
    that have any.

    `embed` is `embed_rows` of `token_rows`: a table's rows, and then what the model
    makes of any row, such as a mixture of several. Models without a table have neither.
    """

    config: Any
    init: Callable  # key -> params
    init_cache: Callable  # (batch, size) -> cache
    embed: Callable  # (params, tokens, positions) -> x[B, N, D]
    layers: Callable  # (params, cache, x, block, lo, hi, taps) -> x, cache, hidden
    fill: Callable  # (params, cache, x, block, lo, hi) -> cache: keys and values only
    norm: Callable  # (params, x) -> x after the final norm
    head: Callable  # (params, normed x) -> float32 logits
    logits_of: Callable  # (params, normed x[..., D], ids[..., k]) -> logits[..., k]
    plan: Any = (
        None  # models.distributed.sharding.Plan: sharding of arrays; None: one device
    )
    token_rows: Callable | None = None  # (params, tokens[...]) -> rows[..., D]
    embed_rows: Callable | None = None  # (params, rows, positions) -> x[B, N, D]
    init_layer: Callable | None = (
        None  # (batch, slots, dtype, layer) -> a layer of a cache
    )

    def __call__(
        self,
        params: Params,
        cache: Any,
        block: Block,
        taps: tuple[Tap, ...] = (),
    ) -> tuple[ModelOutput, Any]:
        """Run the block; return its output, and the cache with its keys.

        Raises:
            ConfigError: the block has `embeds` and the model no table.
        """
        cache = cache.open(block)
        if block.embeds is None:
            x = self.embed(params, block.tokens, block.positions)
        elif self.embed_rows is None:
            raise ConfigError(
                "embeds= for a model without an embedding table: give it tokens alone"
            )
        else:
            x = self.embed_rows(params, block.embeds, block.positions)
        x, cache, hidden = self.layers(
            params, cache, x, block, 0, self.config.n_layers, taps
        )
        logits = None
        if block.logits_at == LAST:
            x = x[:, -1:]
        if block.logits_at != NONE or "norm" in taps:
            x = self.norm(params, x)
        if "norm" in taps:
            hidden["norm"] = x
        if block.logits_at != NONE:
            logits = self.head(params, x)
        return ModelOutput(logits, Hidden(hidden)), cache


def pack_bits(mask: Array) -> Array:
    """Pack bool[..., M] into uint32[..., ceil(M / 32)]; bit j of word w is 32 w + j."""
    size = mask.shape[-1]
    words = -(-size // 32)
    padded = jnp.pad(mask, [(0, 0)] * (mask.ndim - 1) + [(0, words * 32 - size)])
    split = padded.reshape(*mask.shape[:-1], words, 32).astype(jnp.uint32)
    return (split << jnp.arange(32, dtype=jnp.uint32)).sum(-1, dtype=jnp.uint32)


def dense_mask(visibility: Visibility, size: int) -> Array:
    """Expand a `Visibility` to bool[B, N, S], for short caches and references."""
    slots = jnp.arange(size, dtype=jnp.int32)
    offset = slots[None, :] - visibility.prefix[:, None]  # [B, S]
    bits = visibility.ancestors
    shift = (offset & 31).astype(jnp.uint32)[:, None, :]
    seen = jnp.zeros((*bits.shape[:2], size), bool)
    for word in range(bits.shape[-1]):
        hit = (bits[:, :, word, None] >> shift) & 1
        seen |= (hit == 1) & ((offset >> 5) == word)[:, None, :]
    prefix = (offset < 0)[:, None, :]
    if visibility.slot_mask is not None:
        prefix = prefix & visibility.slot_mask
    return prefix | seen


def causal_block(
    tokens: Array, start: Array, count: Array, size: int, logits_at: str = NONE
) -> Block:
    """Make the block of a chain of `count[b]` tokens from slot `start[b]` on.

    Nodes at or past `count` write nowhere, so that one block serves rows of different
    lengths.

    Args:
        tokens: int32[B, N].
        start: int32[B], the first position and slot.
        count: int32[B].
        size: the cache's number of slots.
        logits_at: ALL, LAST or NONE.
    """
    batch, nodes = tokens.shape
    index = jnp.arange(nodes, dtype=jnp.int32)
    positions = start[:, None] + index
    slots = jnp.where(index < count[:, None], positions, size + index)
    bits = pack_bits(jnp.tril(jnp.ones((nodes, nodes), bool)))
    visibility = Visibility(start, jnp.broadcast_to(bits, (batch, *bits.shape)))
    return Block(tokens, positions, slots, visibility, logits_at=logits_at)
