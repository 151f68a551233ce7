"""The layout of GEAR and KIVI: blocks of few bits, and exact recent tokens.

As in `quantized`, a slot's precision for a node depends on the node's position p alone:
slots below block * floor((p - window) / block) are codes (`residual_codes`), the others
exact. A block is coded once it is complete and committed; its exact copy stays until no
node of a round needs it.
"""

from dataclasses import replace
from typing import Any

import jax
import jax.numpy as jnp
from flax import struct
from jax import Array, lax

from kernels import quantized_kv
from models import base
from models.cache_layouts import residual_codes
from models.cache_layouts.kv_cache import KVCache
from models.cache_layouts.quantized import QuantizedLayer
from models.cache_layouts.residual_codes import KEYS, VALUES, Codes, Rule
from models.errors import ConfigError


class Blocks(struct.PyTreeNode):
    """The coded blocks of a layer: arrays [B, G, S / block, ...]."""

    k: Codes
    v: Codes


@struct.dataclass
class GearLayer(QuantizedLayer):
    """One layer: codes of complete blocks, and the recent arrays."""

    old: Any  # Blocks
    block: int = struct.field(pytree_node=False)
    rule: Rule = struct.field(pytree_node=False)

    @property
    def group(self) -> int:  # type: ignore[override]
        return self.block

    def read(self) -> tuple[Array, Array]:
        """Return keys and values float32[B, G, S, d], exact from the boundary on."""
        recent = self.recent
        rows = recent.base[:, None] + jnp.arange(recent.k.shape[2])
        k, v = self._expanded()
        at = self._at(k, rows)
        return (
            k.at[at].set(recent.k.astype(k.dtype), mode="drop"),
            v.at[at].set(recent.v.astype(v.dtype), mode="drop"),
        )

    def attend(
        self,
        q: Array,
        seen: base.Visibility,
        positions: Array,
        key_positions: Array,
        **settings: Any,
    ) -> tuple[Array, Array]:
        """Attend with q `[B, N, H, d]`; see `kv_cache.DenseLayer.attend`."""
        if q.shape[1] > self.window:
            raise ConfigError(
                f"a tree or a chunk of {q.shape[1]} nodes, and the cache's window is "
                f"{self.window}: use a window of {q.shape[1]} at least"
            )
        k, v = (x.astype(self.recent.k.dtype) for x in self._expanded())
        ones = jnp.ones((*k.shape[:2], k.shape[3]), q.dtype)
        return quantized_kv.attention(
            q,
            quantized_kv.Old(k, v, None, None, ones),
            self.recent,
            seen.prefix,
            seen.ancestors,
            positions,
            key_positions,
            keep=self.window,
            group=self.block,
            **settings,
        )

    def take(self, index: Array, before: Array, after: Array) -> "GearLayer":
        raise NotImplementedError("blocks of tokens cannot give up some of them")

    def sized(self, slots: int) -> "GearLayer":
        raise NotImplementedError("the layout has all its slots from the start")

    def axes(self) -> Any:
        heads: Any = "batch kv_heads"
        rows: Any = "batch"
        old = jax.tree.map(lambda x: heads, self.old)
        return replace(self, old=old, recent=quantized_kv.Recent(heads, heads, rows))

    def _expanded(self) -> tuple[Array, Array]:
        """Return what the codes stand for, float32[B, G, S, d] each."""
        parts = ((self.old.k, KEYS), (self.old.v, VALUES))
        blocks = [residual_codes.expand(x, self.rule, axis) for x, axis in parts]
        k, v = (x.reshape(*x.shape[:2], -1, x.shape[-1]) for x in blocks)
        return k, v

    def _completed(self, before: Array, length: Array) -> "GearLayer":
        # Few rounds complete a block, and a large window would unroll many of them.
        first, end = before // self.block, length // self.block

        def body(carry: tuple) -> tuple:
            layer, i = carry
            return layer._quantise(first + i, first + i < end), i + 1

        start = (self, jnp.int32(0))
        return lax.while_loop(
            lambda carry: (first + carry[1] < end).any(), body, start
        )[0]

    def _quantise(self, group: Array, complete: Array) -> "GearLayer":
        """Write the codes of block `group[b]` in the rows where it is `complete`."""
        recent = self.recent
        slots = group[:, None] * self.block + jnp.arange(self.block, dtype=jnp.int32)
        at = self._at(recent.k, slots - recent.base[:, None])
        rows, heads = (jnp.arange(n) for n in recent.k.shape[:2])
        number = jnp.where(complete, group, self.size // self.block)
        to = rows[:, None], heads, number[:, None]

        def put(old: Codes, x: Array, axis: int) -> Codes:
            new = residual_codes.compress(x.at[at].get(mode="clip"), self.rule, axis)
            return jax.tree.map(lambda x, y: x.at[to].set(y, mode="drop"), old, new)

        old = Blocks(put(self.old.k, recent.k, KEYS), put(self.old.v, recent.v, VALUES))
        return replace(self, old=old)


def cache(
    n_layers: int,
    batch: int,
    size: int,
    groups: int,
    head_dim: int,
    dtype: Any,
    *,
    rule: Rule,
    block: int,
    window: int,
) -> KVCache:
    """Make an empty cache; `size` is rounded up to whole blocks.

    Args:
        n_layers, batch, size, groups, head_dim, dtype: as in `kv_cache.dense`.
        rule: how a block is coded.
        block: tokens that are coded together.
        window: the tokens that are exact at least; a block or chunk has no more nodes.

    Raises:
        ConfigError: numbers that fit neither words of bits nor heads.
    """
    if block % 32 or not 32 <= block <= 256 or window < 1:
        raise ConfigError(
            f"block={block}, window={window}: use a block of 32, 64, 96 ... 256 tokens "
            "and a window of at least 1"
        )
    if rule.bits not in (2, 4, 8) or head_dim % rule.group or head_dim > 256:
        raise ConfigError(
            f"bits={rule.bits}, group={rule.group}: use 2, 4 or 8 bits, and a group "
            f"that divides the heads' {head_dim} channels"
        )
    if not 0 <= rule.rank <= min(head_dim, block):
        raise ConfigError(f"rank={rule.rank}: use 0 to {min(head_dim, block)}")
    size = -(-size // block) * block

    def layer() -> GearLayer:
        shape = (rule, (batch, groups, size // block), block, head_dim, dtype)
        k, v = (residual_codes.empty(shape[0], a, *shape[1:]) for a in (KEYS, VALUES))
        rows = (batch, groups, 2 * window + block, head_dim)
        recent = quantized_kv.Recent(
            jnp.zeros(rows, dtype),
            jnp.zeros(rows, dtype),
            jnp.zeros((batch,), jnp.int32),
        )
        return GearLayer(Blocks(k, v), recent, size, window, block, rule)

    return KVCache(
        tuple(layer() for _ in range(n_layers)),
        jnp.full((batch, size), -1, jnp.int32),
        jnp.zeros((batch,), jnp.int32),
    )
