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
from models.cache_layouts import held, kept, own_pages
from models.cache_layouts.kept import KeptLayer
from models.cache_layouts.kv_cache import DenseLayer, KVCache
from models.distributed import sharding
from models.errors import MethodError


class About(NamedTuple):
    """What a rule may read besides its layer."""

    length: Array  # int32[B]: tokens seen
    keep: Array  # int32[B]: the layer's budget
    prompt: Array  # int32[B]: tokens of the prompt
    layer: int


class Rule(NamedTuple):
    """How a policy values slots.

    - `value(layer, about) -> float32[B, G, C], layer` may update the layer's notes. A
      value of +inf keeps a slot, as far as the budget goes. Slots that are not in use
      are left out afterwards.
    - `queries`: the last queries that `value` reads; `ALL`: those since the last
      eviction; 0: none.
    - `ahead`: places for the nodes of a lookahead, whose keys and queries `value` finds
      behind `about.length`; see `CachePolicy.lookahead`.
    - `notes`, `extra`: see `kept.layer`.
    - `fold(layer, about) -> layer` takes the queries since the last call into `extra`,
      at every `prompt_every` tokens of the prompt; then they are dropped.
    - `place(layer, about) -> layer` edits what was kept.
    - `exact`: values are compared as they are, not in bfloat16.
    - `change(layer, due, about) -> layer`, where given, takes the place of eviction by
      value: it leaves the rows that are `due` bool[B] with `about.keep` slots at most,
      and the others as they are. Keys and values may change (a merge), so that the
      layers must be dense.
    - `biased`: slots have a bias, see `kept.layer`.
    - `heads(values, held, about) -> int32[B, G]`: how many slots each KV head keeps of
      `chosen`'s values and slots, at most G times the budget in all; when the prompt is
      read, heads get pages of `page` slots of their own. None: as many each.
    """

    value: Callable[[KeptLayer, About], tuple[Array, KeptLayer]] | None = None
    queries: int = 0
    notes: Mapping[str, Any] = MappingProxyType({})
    extra: Mapping[str, Any] = MappingProxyType({})
    fold: Callable[[KeptLayer, About], KeptLayer] | None = None
    place: Callable[[KeptLayer, About], KeptLayer] = lambda layer, about: layer
    exact: bool = False
    change: Callable[[KeptLayer, Array, About], KeptLayer] | None = None
    biased: bool = False
    heads: Callable[[Array, Array, About], Array] | None = None
    page: int = own_pages.PAGE
    ahead: int = 0


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
    each: int = 0,
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
        each: slots of the budget that are not divided over the layers.

    Raises:
        MethodError: a number that means nothing.
    """
    budgets.check(budget, layers)
    for name, value in (("every", every), ("prompt_every", prompt_every)):
        if value < 1:
            raise MethodError(f"{name}={value}: use at least 1")

    def make(model: Any, sizes: base.Sizes, length: Array) -> KVCache:
        config = model.config
        check_model(model)
        windows = held.windows_of(config) or (0,) * config.n_layers
        ours = [i for i, window in enumerate(windows) if not window]
        parts = budgets.shares(layers, len(ours))
        most = budgets.most(budget, sizes.prompt, parts, each)
        row = budgets.of_row(budget, length)
        keep = budgets.of_layers(row, parts, each)
        groups, dim = held.full_heads(config)
        heads = (config.n_heads // groups, dim)
        new = functools.partial(model.init_layer, sizes.batch, dtype=sizes.dtype)
        like = jax.eval_shape(lambda: new(1))
        # The prompt's last token is not in the cache when the prompt is read.
        first = jnp.maximum(length - 1 - rule.queries, 0)
        first = jnp.zeros_like(length) if online or rule.queries == ALL else first
        made = []
        for i, window in enumerate(windows):
            if window and not isinstance(like, DenseLayer):
                made.append(new(sizes.slots, layer=i))
                continue
            if window:
                slots = min(held.capacity(window, sizes.block), sizes.slots)
                made.append(held.layer(new(slots, layer=i), sizes.slots, window))
                continue
            places = _places(most[ours.index(i)], sizes)
            rows = (keep[:, ours.index(i)], jnp.array(length))
            about = (places, sizes.slots, heads, jnp.array(first))
            own = (rule.notes, rule.extra, rows, rule.biased)
            scores = (config.attention_softcap, config.sinks)
            store = new(places.slots, layer=i)
            if rule.change is not None and type(store) is not DenseLayer:
                name = type(store).__name__
                raise MethodError(
                    f"a policy that changes keys and values over {name}: use the dense "
                    "layout, and a model with keys and values of its heads"
                )
            made.append(kept.layer(store, *about, *own, *scores))
        pos = jnp.full((sizes.batch, sizes.slots), -1, jnp.int32)
        return KVCache(tuple(made), pos, jnp.zeros((sizes.batch,), jnp.int32))

    def _places(most: int, sizes: base.Sizes) -> kept.LayerSizes:
        step = lambda slots: -(-min(slots, sizes.slots) // kept.STEP) * kept.STEP
        since = 0 if rule.queries == ALL else rule.queries
        grows = every if decode else sizes.new
        after = step(most + grows + sizes.block)
        queries = since + (prompt_every if online else 0) if rule.queries else 0
        if rule.fold is not None:
            queries = prompt_every
        elif rule.queries == ALL and not online:
            queries = sizes.prompt
        queries += rule.ahead
        recent = since + every + sizes.block if rule.queries and decode else 0
        whole = sizes.prompt + rule.ahead
        slots = step(most + prompt_every) if online else step(whole)
        return kept.LayerSizes(slots, after, queries, recent)

    def changed(cache: KVCache, due: Array, act: Callable) -> KVCache:
        """Let `act(layer, due, about)` change each layer in the rows that are due."""
        stores = list(cache.layers)
        for i, layer in enumerate(stores):
            if not isinstance(layer, KeptLayer):
                continue

            def of_layer(layer, due, length, i=i):
                return act(layer, due, About(length, layer.budget, layer.prompt, i))

            axes = (layer.axes(), "batch", "batch")
            arrays = (layer, due, cache.length)
            after = lambda changed: changed.axes()
            stores[i] = sharding.by_shard(of_layer, arrays, axes, after)
        return replace(cache, layers=tuple(stores))

    def evict(layer: KeptLayer, due: Array, about: About) -> KeptLayer:
        change = functools.partial(_evicted, rule, about=about)
        return kept.once(change, layer, due)

    def fold(layer: KeptLayer, due: Array, about: About) -> KeptLayer:
        return kept.once(functools.partial(_folded, rule, about=about), layer, due)

    def ended(layer: KeptLayer, due: Array, about: About) -> Any:
        layer = _folded(rule, layer, due, about)
        if rule.heads is not None:
            return _by_head(rule, layer, about)
        return _evicted(rule, layer, due, about).resized(about.length)

    def step_of(cache: KVCache) -> int:
        """Return the tokens between evictions in this phase; 0: there are none."""
        if any(_is_read(layer) for layer in cache.layers):
            return every if decode else 0
        return prompt_every if online or rule.fold is not None else 0

    def retain(state: Any, cache: KVCache, outcome: base.Outcome):
        before, step = cache.length, step_of(cache)
        cache, _ = full.retain((), cache, outcome)
        if step:
            due = cache.length // step > before // step
            reading = not any(_is_read(layer) for layer in cache.layers)
            act = fold if reading and not online else evict
            cache = changed(cache, due, act)
        return cache, state

    def room(state: Any, cache: KVCache, tokens: Array) -> Array:
        step = step_of(cache)
        if not step:
            return jnp.full_like(cache.length, tokens.shape[1] + 1)
        return step - cache.length % step

    def finish(state: Any, cache: KVCache):
        every_row = jnp.ones_like(cache.length, bool)
        return changed(cache, every_row, ended), state

    def reads(state: Any, cache: KVCache) -> Array:
        evicted = [
            layer.shift.reshape(len(layer.shift), -1).astype(jnp.float32).mean(1)
            if isinstance(layer, held.HeldLayer)
            else jnp.zeros_like(cache.length, jnp.float32)
            for layer in cache.layers
        ]
        return cache.length - jnp.stack(evicted).mean(0)

    full = dense.policy()
    bound = room if online or decode or rule.fold is not None else None
    return base.CachePolicy(full.init, full.place, retain, bound, make, finish, reads)


def check_model(model: Any) -> None:
    """Raise MethodError for a model whose layers no policy can keep a part of."""
    if model.init_layer is None:
        raise MethodError(
            f"a cache policy for {model.config}, whose layers cannot be made one by "
            "one: use a transformer, or caches/dense"
        )
    if getattr(model.config, "kv_rank", 0):
        raise MethodError(
            "a cache policy for a model with latent heads, whose keys exist when they "
            "are read alone: use caches/dense"
        )
    if getattr(model.config, "position", "") == "alibi":
        raise MethodError(
            "a cache policy for a model with ALiBi, which reads a bias for every slot "
            "of the whole cache: use caches/dense"
        )
    layer = jax.eval_shape(lambda: model.init_layer(1, 1))
    if not hasattr(layer, "take"):
        raise MethodError(
            f"a cache policy over slots of the layout {type(layer).__name__}, which "
            "gives up none: use the dense, 8-bit or 4-bit cache"
        )


def _is_read(layer: Any) -> bool:
    return isinstance(layer, KeptLayer) and layer.is_read


def _in_due_rows(due: Array, new: Any, old: Any) -> Any:
    def pick(new: Array, old: Array) -> Array:
        return jnp.where(due.reshape(-1, *(1,) * (new.ndim - 1)), new, old)

    return jax.tree.map(pick, new, old)


def _folded(rule: Rule, layer: KeptLayer, due: Array, about: About) -> KeptLayer:
    """Fold the queries of the rows that are `due`; see `Rule.fold`."""
    if rule.fold is None or layer.is_read:
        return layer
    assert layer.queries is not None
    extra = _in_due_rows(due, rule.fold(layer, about).extra, layer.extra)
    first = jnp.where(due, about.length, layer.queries.first)
    return replace(layer, extra=extra).forget(first)


def _evicted(rule: Rule, layer: KeptLayer, due: Array, about: About) -> KeptLayer:
    """Evict in the rows that are `due`; see `policy`."""
    length = about.length
    if rule.change is not None:
        return rule.change(layer, due, about)
    assert rule.value is not None
    values, noted = rule.value(layer, about)
    if not rule.exact:
        values = values.astype(jnp.bfloat16)
    noted = replace(
        layer,
        notes=_in_due_rows(due, noted.notes, layer.notes),
        extra=_in_due_rows(due, noted.extra, layer.extra),
    )
    used = length - layer.shift
    count = jnp.where(due, jnp.minimum(used, about.keep), used)
    held = layer.tokens(length) >= 0
    after = rule.place(noted.keep(chosen(values, held, count), count, length), about)
    if after.queries is None:
        return after
    since = 0 if rule.queries == ALL else rule.queries
    first = jnp.maximum(length - since, after.queries.first)
    return after.forget(jnp.where(due, first, after.queries.first))


def _by_head(rule: Rule, layer: KeptLayer, about: About) -> own_pages.HeadPages:
    """Give each head what `rule.heads` grants it, in pages of its own."""
    assert rule.value is not None
    assert rule.heads is not None
    values, layer = rule.value(layer, about)
    held = layer.tokens(about.length) >= 0
    if not rule.exact:
        values = values.astype(jnp.bfloat16)
    count = rule.heads(values, held, about)
    index = chosen(values, held, count)
    rest = (count, about.length, about.keep, rule.page)
    return own_pages.of_layer(layer, index, *rest)


def chosen(values: Array, held: Array, count: Array) -> Array:
    """Return the slots to keep in the order of their tokens, the others behind them.

    Args:
        values: float32[B, G, C].
        held: bool[B, G, C]: slots in use.
        count: int32[B] or int32[B, G]: how many of them to keep.

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
    most = count.reshape(*count.shape, *(1,) * (3 - count.ndim))
    best = jnp.argsort(order, axis=-1) < most
    return jnp.argsort(~best, axis=-1, stable=True).astype(jnp.int32)
