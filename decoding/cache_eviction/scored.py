"""Policies that value slots and keep the best: one rule each, the rest is here.

A policy of this kind evicts once, when the prompt is read; or whenever a row has seen a
multiple of `every` tokens, and of `prompt_every` within the prompt. In between nothing
changes that a node sees, and rounds and chunks are cut there (`CachePolicy.room`): the
text depends neither on drafts nor on chunks. The papers' form evicts at every token,
which is `every=1`, and ends speculation.

Values are compared in bfloat16, unless they are exact, and of equal ones the older
token is kept: blocks of other widths round otherwise.
"""

import functools
from collections.abc import Callable, Mapping
from dataclasses import replace
from types import MappingProxyType
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jax import Array

from decoding import base
from decoding.cache_eviction import budgets
from decoding.caches import dense
from models.cache_layouts import held, kept
from models.cache_layouts.kept import KeptLayer
from models.cache_layouts.kv_cache import KVCache
from models.distributed import sharding
from models.errors import MethodError


class About(NamedTuple):
    """What a rule may read besides its layer."""

    length: Array  # int32[B]: tokens seen
    keep: Array  # int32[B]: the layer's budget
    layer: int


class Rule(NamedTuple):
    """How a policy values slots.

    - `value(layer, about) -> float32[B, G, C], layer` may update the layer's notes. A
      value of +inf keeps a slot, as far as the budget goes. Slots that are not in use
      are left out afterwards.
    - `queries`: the last queries that `value` reads; `ALL`: those since the last
      eviction; 0: none.
    - `notes`, `extra`: see `kept.layer`.
    - `place(layer, about) -> layer` edits what was kept.
    - `exact`: values are compared as they are, not in bfloat16.
    """

    value: Callable[[KeptLayer, About], tuple[Array, KeptLayer]]
    queries: int = 0
    notes: Mapping[str, Any] = MappingProxyType({})
    extra: Mapping[str, Any] = MappingProxyType({})
    place: Callable[[KeptLayer, About], KeptLayer] = lambda layer, about: layer
    exact: bool = False


ALL = -1


def policy(
    rule: Rule,
    budget: budgets.Budget,
    *,
    layers: budgets.Layers = budgets.UNIFORM,
    online: bool = False,
    decode: bool = False,
    every: int = 32,
    prompt_every: int = 128,
) -> base.CachePolicy:
    """Build a policy from the rule by which it values slots.

    Args:
        rule: the rule.
        budget: slots of a KV head and layer on average, or a share of the prompt.
        layers: "uniform", "pyramid", or each layer's weight.
        online: evict within the prompt too.
        decode: evict while decoding. Else what follows the prompt stays.
        every: tokens between evictions of a row while decoding.
        prompt_every: tokens between those in the prompt.

    Raises:
        MethodError: a number that means nothing.
    """
    budgets.check(budget, layers)
    for name, value in (("every", every), ("prompt_every", prompt_every)):
        if value < 1:
            raise MethodError(f"{name}={value}: use at least 1")

    def make(model: Any, sizes: base.Sizes, length: Array) -> KVCache:
        config = model.config
        _check_model(model)
        windows = held.windows_of(config) or (0,) * config.n_layers
        ours = [i for i, window in enumerate(windows) if not window]
        most = budgets.most(budget, sizes.prompt, budgets.shares(layers, len(ours)))
        heads = (config.n_heads // config.n_kv_heads, config.head_dim)
        new = functools.partial(model.init_layer, sizes.batch, dtype=sizes.dtype)
        # The prompt's last token is not in the cache when the prompt is read.
        first = jnp.maximum(length - 1 - rule.queries, 0)
        first = jnp.zeros_like(length) if online or rule.queries == ALL else first
        made = []
        for i, window in enumerate(windows):
            if window:
                slots = min(held.capacity(window, sizes.block), sizes.slots)
                made.append(held.layer(new(slots), sizes.slots, window))
                continue
            places = _places(most[ours.index(i)], sizes)
            about = (places, sizes.slots, heads, first, rule.notes, rule.extra)
            made.append(kept.layer(new(places.slots), *about))
        pos = jnp.full((sizes.batch, sizes.slots), -1, jnp.int32)
        return KVCache(tuple(made), pos, jnp.zeros((sizes.batch,), jnp.int32))

    def _places(most: int, sizes: base.Sizes) -> kept.LayerSizes:
        step = lambda slots: -(-min(slots, sizes.slots) // kept.STEP) * kept.STEP
        since = 0 if rule.queries == ALL else rule.queries
        grows = every if decode else sizes.new
        after = step(most + grows + sizes.block)
        queries = since + (prompt_every if online else 0) if rule.queries else 0
        if rule.queries == ALL and not online:
            queries = sizes.prompt
        recent = since + every + sizes.block if rule.queries and decode else 0
        slots = step(most + prompt_every) if online else step(sizes.prompt)
        return kept.LayerSizes(slots, after, queries, recent)

    def init(cache: KVCache, length: Array) -> Array:
        """Return each layer's budget, int32[B, L]."""
        ours = sum(isinstance(layer, KeptLayer) for layer in cache.layers)
        row = budgets.of_row(budget, length)
        return budgets.of_layers(row, budgets.shares(layers, ours))

    def evicted(state: Array, cache: KVCache, due: Array, resize: bool) -> KVCache:
        stores, at = list(cache.layers), 0
        for i, layer in enumerate(stores):
            if not isinstance(layer, KeptLayer):
                continue
            since = 0 if rule.queries == ALL else rule.queries
            change = functools.partial(_evict, rule, since, i, resize)
            arrays = (layer, due, cache.length, state[:, at])
            axes = (layer.axes(), "batch", "batch", "batch")
            stores[i] = sharding.by_shard(change, arrays, axes)
            at += 1
        return replace(cache, layers=tuple(stores))

    def step_of(cache: KVCache) -> int:
        """Return the tokens between evictions in this phase; 0: there are none."""
        kept_ones = [x for x in cache.layers if isinstance(x, KeptLayer)]
        if all(layer.is_read for layer in kept_ones):
            return every if decode else 0
        return prompt_every if online else 0

    def retain(state: Array, cache: KVCache, outcome: base.Outcome):
        before, step = cache.length, step_of(cache)
        cache, _ = full.retain((), cache, outcome)
        if step:
            due = cache.length // step > before // step
            cache = evicted(state, cache, due, False)
        return cache, state

    def room(state: Array, cache: KVCache, tokens: Array) -> Array:
        step = step_of(cache)
        if not step:
            return jnp.full_like(cache.length, tokens.shape[1] + 1)
        return step - cache.length % step

    def finish(state: Array, cache: KVCache):
        return evicted(state, cache, jnp.ones_like(cache.length, bool), True), state

    def reads(state: Array, cache: KVCache) -> Array:
        evicted = [
            layer.shift if isinstance(layer, held.HeldLayer) else 0 * cache.length
            for layer in cache.layers
        ]
        return cache.length - jnp.stack(evicted).astype(jnp.float32).mean(0)

    full = dense.policy()
    bound = room if online or decode else None
    return base.CachePolicy(init, full.place, retain, bound, make, finish, reads)


def _check_model(model: Any) -> None:
    if model.init_layer is None:
        raise MethodError(
            f"a cache policy for {model.config}, whose layers cannot be made one by "
            "one: use a transformer, or caches/dense"
        )
    if getattr(model.config, "position", "") == "alibi":
        raise MethodError(
            "a cache policy for a model with ALiBi, which reads a bias for every slot "
            "of the whole cache: use caches/dense"
        )


def _evict(
    rule: Rule,
    since: int,
    index: int,
    resize: bool,
    layer: KeptLayer,
    due: Array,
    length: Array,
    keep: Array,
) -> KeptLayer:
    """Evict in the rows that are `due`; see `policy`."""

    def change(layer: KeptLayer, due: Array) -> KeptLayer:
        values, noted = rule.value(layer, About(length, keep, index))
        if not rule.exact:
            values = values.astype(jnp.bfloat16)
        by_row = lambda new, old: jnp.where(
            due.reshape(-1, *(1,) * (new.ndim - 1)), new, old
        )
        noted = replace(
            layer,
            notes=jax.tree.map(by_row, noted.notes, layer.notes),
            extra=jax.tree.map(by_row, noted.extra, layer.extra),
        )
        used = length - layer.shift
        count = jnp.where(due, jnp.minimum(used, keep), used)
        held = layer.tokens(length) >= 0
        after = noted.keep(chosen(values, held, count), count, length)
        after = rule.place(after, About(length, keep, index))
        if after.queries is None:
            return after
        first = jnp.maximum(length - since, after.queries.first)
        return after.forget(jnp.where(due, first, after.queries.first))

    if resize:
        return change(layer, due).resized(length)
    return kept.once(change, layer, due)


def chosen(values: Array, held: Array, count: Array) -> Array:
    """Return the slots to keep in the order of their tokens, the others behind them.

    Args:
        values: float32[B, G, C].
        held: bool[B, G, C]: slots in use.
        count: int32[B]: how many of them to keep.

    Returns:
        int32[B, G, C]: the first `count` of a row are those of the highest values, and
        among equal ones the oldest.
    """
    values = jnp.where(held, values.astype(jnp.float32), -jnp.inf)
    order = jnp.argsort(-values, axis=-1, stable=True)
    # Of slots that are in use none is behind one that is not, whatever its value.
    order = jnp.take_along_axis(
        order, jnp.argsort(~jnp.take_along_axis(held, order, -1), -1, stable=True), -1
    )
    best = jnp.argsort(order, axis=-1) < count[:, None, None]
    return jnp.argsort(~best, axis=-1, stable=True).astype(jnp.int32)
