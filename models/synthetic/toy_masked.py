"""An exact tiny masked diffusion model: tables of logits, with checks of what is seen.

Layer l stores a number v_l for each position that it runs, and looks at those of the
places `NEAR` around it, as they lie in its cache:

    c_l(p) = (sum_j v_l(p + NEAR[j]) (V + 1)^j) 3 + (e mod 3)
    v_0(p) = the token, the mask id at an open position
    v_{l+1}(p) = (v_0(p) + c_l(p)) mod V
    logits(p) = sum_l table[l, c_l(p)]

A position that is not seen has the filler V; e is the number of positions seen. So the
numbers of deeper layers go stale as a transformer's keys do. A node must see each of
the positions 0..e-1 exactly once, its own among them. Otherwise it is *faulty* and its
logits are rolled by one. All arithmetic is on integers but for one fixed sum, so the
logits are bitwise the same for every block width and batch. `Reference` is the same in
plain Python.

With `alignment="shifted"` the output of position p is of position p + 1: the places are
those around p + 1.
"""

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array

from models import base
from models.cache_layouts import kv_cache
from models.synthetic.toy import Tokens, mix, places

NEAR = (-2, -1, 1, 2)
TOKEN, STORED, FAULT, CODE = range(4)  # features; of the codes one a layer


@dataclass(frozen=True)
class Config:
    """The shape of the toy, and the fields that the loop reads."""

    vocab_size: int  # the mask id is the last one
    n_layers: int = 2
    visibility: tuple[str, ...] = ("bidirectional", "block_causal")
    alignment: str = "same"
    block_size: int = 4
    max_positions: int = 1 << 20
    bos: int | None = None
    eos: tuple[int, ...] = ()

    @property
    def mask_token(self) -> int:
        return self.vocab_size - 1

    @property
    def d_model(self) -> int:
        return CODE + self.n_layers

    @property
    def contexts(self) -> int:
        return 3 * (self.vocab_size + 1) ** len(NEAR)


def language_model(config: Config) -> base.LanguageModel:
    """Build the pure functions of a toy."""
    vocab, ahead = config.vocab_size, int(config.alignment == "shifted")
    powers = (vocab + 1) ** np.arange(len(NEAR), dtype=np.int32)

    def init(key: Array, scale: float = 1.5) -> dict:
        """Draw `table` [L, contexts, V]."""
        shape = (config.n_layers, config.contexts, vocab)
        table = jax.random.normal(key, shape, jnp.float32)
        return {"table": table * (scale * config.n_layers**-0.5)}

    def init_cache(batch: int, size: int, dtype: Any = None) -> kv_cache.KVCache:
        empty = jnp.full((batch, size), -1, jnp.int32)
        layers = tuple(Tokens(empty, empty) for _ in range(config.n_layers))
        return kv_cache.KVCache(layers, empty, jnp.zeros((batch,), jnp.int32))

    def embed(params: Any, tokens: Array, positions: Array) -> Array:
        x = jnp.zeros((*tokens.shape, config.d_model), jnp.float32)
        return x.at[..., TOKEN].set(tokens).at[..., STORED].set(tokens)

    def look(x: Array, store: Tokens, positions: Array, seen: Array, i: int) -> Array:
        stored, pos = store.read()
        near = positions[..., None] + ahead + np.asarray(NEAR)
        hit = seen[:, :, None] & (pos[:, None, None] == near[..., None])
        found = jnp.where(hit, stored[:, None, None], 0).sum(-1)
        digits = jnp.where(hit.any(-1), found, vocab)
        count = seen.sum(-1, dtype=jnp.int32)
        code = (digits * powers).sum(-1) * 3 + count % 3
        code = jnp.clip(code, 0, config.contexts - 1)
        place = jnp.where(seen, mix(pos.astype(jnp.uint32))[:, None], 0)
        place = place.sum(-1, dtype=jnp.uint32)
        expected = jnp.asarray(places(pos.shape[1]))[jnp.maximum(count - 1, 0)]
        own = (seen & (pos[:, None] == positions[..., None])).any(-1)
        fault = (place != expected) | ~own | (x[..., FAULT] > 0)
        after = (x[..., TOKEN].astype(jnp.int32) + code) % vocab
        x = x.at[..., STORED].set(after).at[..., CODE + i].set(code)
        return x.at[..., FAULT].set(fault)

    def layers(params, cache, x, block, lo, hi, taps=()):
        seen = base.dense_mask(block.visibility, cache.size)
        stores = list(cache.layers)
        for i in range(lo, hi):
            stored = x[..., STORED].astype(jnp.int32)
            stores[i] = stores[i].append(block.slots, stored, block.positions)
            x = look(x, stores[i], block.positions, seen, i)
        return x, cache.replace(layers=tuple(stores)), {}

    def head(params: Any, x: Array) -> Array:
        logits = jnp.zeros((*x.shape[:-1], vocab), jnp.float32)
        for i, table in enumerate(params["table"]):
            logits = logits + table[x[..., CODE + i].astype(jnp.int32)]
        return jnp.where(x[..., FAULT, None] > 0, jnp.roll(logits, 1, -1), logits)

    def fill(params, cache, x, block, lo, hi):
        raise NotImplementedError("no layer of a canvas is left out")

    def logits_of(params: Any, x: Array, ids: Array) -> Array:
        return jnp.take_along_axis(head(params, x), ids, -1)

    return base.LanguageModel(
        *(config, init, init_cache, embed, layers, fill),
        *(lambda params, x: x, head, logits_of),
    )


def model(
    vocab: int = 6, seed: int = 0, scale: float = 1.5, **fields: Any
) -> tuple[base.LanguageModel, dict]:
    """Make a toy and its params; `scale` is the deviation of the logits."""
    lm = language_model(Config(vocab, **fields))
    return lm, lm.init(jax.random.key(seed), scale)


class Reference:
    """The toy's cache and forward for one row, in plain Python."""

    def __init__(self, config: Config, params: dict):
        self.config, self.table = config, np.asarray(params["table"])
        self.stored: list[dict[int, int]] = [{} for _ in range(config.n_layers)]

    def run(
        self,
        tokens: Sequence[int],
        positions: Iterable[int],
        sees: Callable[[int], int],
    ) -> dict[int, np.ndarray]:
        """Run positions; return the logits float32[V] that each of them has.

        Args:
            tokens: of all positions, the mask id where one is open.
            positions: to run.
            sees: position -> e, how many positions it sees.
        """
        vocab, at = self.config.vocab_size, sorted(positions)
        ahead = int(self.config.alignment == "shifted")
        value = {p: int(tokens[p]) for p in at}
        out = {p: np.zeros(vocab, np.float32) for p in at}
        for stored, table in zip(self.stored, self.table):
            stored.update(value)
            for p in at:
                near = [p + ahead + step for step in NEAR]
                seen = [stored[q] if 0 <= q < sees(p) else vocab for q in near]
                code = sum(v * (vocab + 1) ** j for j, v in enumerate(seen))
                code = code * 3 + sees(p) % 3
                out[p] = out[p] + table[code]
                value[p] = (int(tokens[p]) + code) % vocab
        return out
