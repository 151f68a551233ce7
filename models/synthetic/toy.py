"""An exact tiny language model: a table of logits, with checks of what a node sees.

The next-token law is a table over the last `order` tokens, so it can be enumerated
(`law`, `sequence_law`). Every layer finds those tokens in *its own* cache, by position,
among the slots that are visible to the node:

    c = sum_j t(p - j) (V + 1)^(order - 1 - j),  j < order      code of the context
    logits = sum over layers l that ran of table[l, c]

where `t(q)` is the token at position q, or the filler V for q < 0. A node at position p
must see each of the positions 0..p exactly once, the cache's positions must agree with
every layer's, and all layers must hold the same tokens. Otherwise the node is *faulty*
and its logits are rolled by one. So a wrong mask, a slot that was not rolled back, a
skipped layer that was not filled, or wrongly gathered rows change the output. All
arithmetic is on integers but for one fixed sum, so the logits are bitwise the same for
every block width and batch.
"""

import functools
import itertools
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from flax import struct
from jax import Array

from models import base
from models.cache_layouts import kv_cache
from models.errors import ConfigError

# Features of the residual stream x[B, N, D]; those from FREE on come from a table, for
# drafters.
TOKEN, RAN, CODE, FAULT, HASH, FREE = range(6)
LIMIT = 2**24  # integers below are exact in float32


@dataclass(frozen=True)
class Config:
    """The shape of the toy model, and the fields that loops and drafters read."""

    vocab_size: int
    order: int
    n_layers: int
    d_model: int
    max_positions: int = 1 << 20
    bos: int | None = None
    eos: tuple[int, ...] = ()

    def __post_init__(self) -> None:
        if min(self.vocab_size, self.order, self.n_layers) < 1:
            raise ConfigError(
                f"vocab_size={self.vocab_size}, order={self.order} and n_layers="
                f"{self.n_layers} must be at least 1"
            )
        if self.d_model <= FREE:
            raise ConfigError(f"d_model={self.d_model}: use at least {FREE + 1}")
        if self.contexts >= LIMIT or self.n_layers > 20:
            raise ConfigError(
                f"{self.contexts} contexts in {self.n_layers} layers are too many: "
                "lower vocab_size, order or n_layers"
            )

    @property
    def contexts(self) -> int:
        return (self.vocab_size + 1) ** self.order


@struct.dataclass
class Tokens:
    """One layer's cache: tokens and their positions, -1 where nothing was written."""

    token: Array  # int32[B, S]
    pos: Array  # int32[B, S]

    shares = False
    span = 0

    def append(self, slots: Array, token: Array, pos: Array) -> "Tokens":
        """Write at `slots[B, N]`; slots >= S are dropped."""
        at = (jnp.arange(self.token.shape[0])[:, None], slots)
        return Tokens(
            self.token.at[at].set(token, mode="drop"),
            self.pos.at[at].set(pos, mode="drop"),
        )

    def read(self) -> tuple[Array, Array]:
        return self.token, self.pos

    def move(self, source: Array, target: Array) -> "Tokens":
        """Copy slots `source[B, M]` to `target[B, M]`; targets >= S are dropped."""
        token = jnp.take_along_axis(self.token, source, axis=1, mode="clip")
        pos = jnp.take_along_axis(self.pos, source, axis=1, mode="clip")
        return self.append(target, token, pos)

    def settle(self, before: Array, length: Array) -> "Tokens":
        return self

    def grown(self, more: int) -> "Tokens":
        add = lambda x: jnp.pad(x, ((0, 0), (0, more)), constant_values=-1)
        return Tokens(add(self.token), add(self.pos))

    def gather(self, rows: Array) -> "Tokens":
        return Tokens(self.token[rows], self.pos[rows])

    def axes(self) -> Any:
        names: Any = "batch sequence"
        return Tokens(names, names)


def mix(x: Array) -> Array:
    """Hash uint32 (the finaliser of MurmurHash3)."""
    x = (x ^ (x >> 16)) * jnp.uint32(0x85EBCA6B)
    x = (x ^ (x >> 13)) * jnp.uint32(0xC2B2AE35)
    return x ^ (x >> 16)


@functools.cache
def places(size: int) -> np.ndarray:
    """Return uint32[size]: the sum of the hashes of the positions 0..p, modulo 2^32."""
    x: Any = np.arange(size, dtype=np.uint32)
    x = (x ^ (x >> 16)) * np.uint32(0x85EBCA6B)
    x = (x ^ (x >> 13)) * np.uint32(0xC2B2AE35)
    return np.cumsum(x ^ (x >> 16), dtype=np.uint32)


def _complete(count: Array, place: Array, positions: Array, size: int) -> Array:
    """Return bool[B, N]: whether a node sees the positions 0..p, each exactly once.

    It sees `count` slots, and the hashes of their positions have the sum `place`. A
    wrong set passes with probability 2^-32.
    """
    expected = jnp.asarray(places(size))[jnp.clip(positions, 0, size - 1)]
    return (count.astype(jnp.int32) == positions + 1) & (place == expected)


def language_model(config: Config) -> base.LanguageModel:
    """Build the pure functions of a toy model."""
    vocab, order = config.vocab_size, config.order
    powers = (vocab + 1) ** np.arange(order, dtype=np.int32)[::-1]

    def init(key: Array, scale: float = 1.5) -> dict:
        """Draw `table` [L, (V + 1,) * order, V], `features` [L, contexts, D - 5]."""
        keys = jax.random.split(key)
        shape = (config.n_layers, *(vocab + 1,) * order, vocab)
        free = (config.n_layers, config.contexts, config.d_model - FREE)
        table = jax.random.normal(keys[0], shape, jnp.float32)
        return {
            "table": table * (scale * config.n_layers**-0.5),
            "features": jax.random.normal(keys[1], free, jnp.float32),
        }

    def init_cache(batch: int, size: int, dtype: Any = None) -> kv_cache.KVCache:
        empty = jnp.full((batch, size), -1, jnp.int32)
        layers = tuple(Tokens(empty, empty) for _ in range(config.n_layers))
        return kv_cache.KVCache(layers, empty, jnp.zeros((batch,), jnp.int32))

    def embed(params: Any, tokens: Array, positions: Array) -> Array:
        """Make x[B, N, D] with the token as a number; unknown ids become V."""
        known = (tokens >= 0) & (tokens < vocab)
        x = jnp.zeros((*tokens.shape, config.d_model), jnp.float32)
        return x.at[..., TOKEN].set(jnp.where(known, tokens, vocab))

    def embed_rows(params: Any, rows: Array, positions: Array) -> Array:
        """Read a mixture of rows as the token nearest to its mean."""
        return rows.at[..., TOKEN].set(jnp.round(rows[..., TOKEN]))

    def token_of(x: Array) -> Array:
        return jnp.clip(x[..., TOKEN], 0, vocab).astype(jnp.int32)

    @jax.jit  # traced once for all layers, and for all programs of a shape
    def layer(features, bit, x, store, slots, positions, seen, cache_pos):
        store = store.append(slots, token_of(x), positions)
        token, pos = store.read()
        at = positions[..., None] - jnp.arange(order)
        hit = seen[:, :, None] & (pos[:, None, None] == at[..., None])
        digits = jnp.where(hit, token[:, None, None], 0).sum(-1)
        digits = jnp.where(at < 0, vocab, jnp.clip(digits, 0, vocab))
        code = (digits * powers).sum(-1)
        # Sums over the slots that a node sees, in one pass: programs stay small.
        hashes = mix(jnp.stack([pos, pos * (vocab + 1) + token]).astype(jnp.uint32))
        ones, stale = jnp.ones_like(pos), pos != cache_pos
        terms = jnp.stack([ones, stale]).astype(jnp.uint32)
        terms = jnp.concatenate([terms, hashes])[:, :, None]
        sums = jnp.where(seen, terms, 0).sum(-1, dtype=jnp.uint32)
        count, stale, place, content = sums
        complete = _complete(count, place, positions, pos.shape[1])
        fault = (stale > 0) | ~complete
        content = (content % LIMIT).astype(x.dtype)
        fault |= (x[..., RAN] > 0) & (x[..., HASH] != content)
        fault = jnp.maximum(x[..., FAULT], fault)
        values = (x[..., TOKEN], x[..., RAN] + bit, code, fault, content)
        checked = jnp.stack([value.astype(x.dtype) for value in values], -1)
        free = features[code] + jnp.roll(x[..., FREE:], 1, -1)
        return jnp.concatenate([checked, free], -1), store

    def layers(params, cache, x, block, lo, hi, taps=()):
        seen = base.dense_mask(block.visibility, cache.size)
        stores = list(cache.layers)
        hidden: dict[base.Tap, Array] = {}
        for i in range(lo, hi):
            if i in taps:
                hidden[i] = x
            own = (params["features"][i], np.float32(2**i))
            at = (base.layer_slots(block, i, cache.pos.shape[1]), block.positions)
            after, store = layer(*own, x, stores[i], *at, seen, cache.pos)
            if block.gate is not None:
                after = jnp.where(block.gate[i][..., None], x, after)
            if block.run is not None:
                keep = block.run[i, 0]
                pick = lambda a, b, keep=keep: jnp.where(keep, a, b)
                after, store = jax.tree.map(pick, (after, store), (x, stores[i]))
            x, stores[i] = after, store
        if hi in taps:
            hidden[hi] = x
        if base.FFN_INPUT in taps and hi == config.n_layers:
            hidden[base.FFN_INPUT] = x  # its layers have no feed-forward
        return x, cache.replace(layers=tuple(stores)), hidden

    def fill(params, cache, x, block, lo, hi):
        stores = list(cache.layers)
        for i in range(lo, hi):
            stores[i] = stores[i].append(block.slots, token_of(x), block.positions)
        return cache.replace(layers=tuple(stores))

    @jax.jit
    def head(params: Any, x: Array) -> Array:
        code = jnp.clip(x[..., CODE], 0, config.contexts - 1).astype(jnp.int32)
        ran = x[..., RAN].astype(jnp.int32)
        table = params["table"].reshape(config.n_layers, -1, vocab)
        logits = jnp.zeros((*x.shape[:-1], vocab), jnp.float32)
        for i in range(config.n_layers):
            on = ((ran >> i) & 1)[..., None] == 1
            logits = logits + jnp.where(on, table[i, code], 0.0)
        return jnp.where(x[..., FAULT, None] > 0, jnp.roll(logits, 1, -1), logits)

    def logits_of(params: Any, x: Array, ids: Array) -> Array:
        return jnp.take_along_axis(head(params, x), ids, -1)

    norm = lambda params, x: x
    return base.LanguageModel(
        *(config, init, init_cache, embed, layers, fill, norm, head, logits_of),
        token_rows=lambda params, tokens: embed(params, tokens, tokens),
        embed_rows=embed_rows,
    )


def model(
    vocab: int = 5,
    order: int = 2,
    seed: int = 0,
    scale: float = 1.5,
    n_layers: int = 2,
    d_model: int = 8,
    eos: tuple[int, ...] = (),
) -> tuple[base.LanguageModel, dict]:
    """Make a toy model and its params; `scale` is the deviation of the logits."""
    lm = language_model(Config(vocab, order, n_layers, d_model, eos=tuple(eos)))
    return lm, lm.init(jax.random.key(seed), scale)


def logits(params: dict, context: Sequence[int]) -> np.ndarray:
    """Compute logits float32[V] after the tokens `context`, bitwise the model's."""
    table = np.asarray(params["table"])
    vocab, order = table.shape[-1], table.ndim - 2
    last = [vocab] * order + [int(t) for t in context]
    at = tuple(reversed(last[len(last) - order :]))  # the newest token leads
    out = np.zeros(vocab, np.float32)
    for layer in table:
        out = out + layer[at]
    return out


def law(params: dict, context: Sequence[int]) -> np.ndarray:
    """Compute the law of the token after `context`, float64[V]."""
    return _softmax(logits(params, context).astype(np.float64))


def _softmax(x: np.ndarray) -> np.ndarray:
    p = np.exp(x - x.max())
    return p / p.sum()


def sequence_law(
    params: dict,
    prompt: Sequence[int],
    length: int,
    warp: Callable[[np.ndarray, list[int]], np.ndarray] | None = None,
) -> np.ndarray:
    """Compute the law of the next `length` tokens by enumeration.

    An end-of-text token does not end the sequence here.

    Args:
        params: the toy model's params.
        prompt: token ids.
        length: the number of tokens.
        warp: a transform `(logits float64[V], context) -> logits`; `context` is the
            prompt and the generated tokens.

    Returns:
        float64[V, ..., V] with `length` axes.
    """
    vocab = params["table"].shape[-1]
    out = np.ones((vocab,) * length)
    for depth in range(length):
        for path in itertools.product(range(vocab), repeat=depth):
            context = [*prompt, *path]
            raw = logits(params, context).astype(np.float64)
            p = _softmax(raw if warp is None else warp(raw, context))
            out[path] *= p.reshape((vocab, *(1,) * (length - depth - 1)))
    return out
