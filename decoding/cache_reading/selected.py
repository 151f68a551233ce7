"""Policies that keep every slot and read few: a rule scores slots, the rest is here.

Prompts are read whole. Behind them, with `refresh=1` every node reads the slots that
its own query scores highest, as in the papers. With `refresh=E` the last committed
query selects, whenever a row has seen a multiple of E tokens: all nodes read that list,
and what follows it, up to the next multiple. Rounds are cut there, so texts do not
depend on drafts (`CachePolicy.room`). That is a deviation from every paper, with the
cost of selection divided by E.

A rule that scores units of slots (pages) selects among complete ones of committed
tokens; the newest `newest` are always read. Rounds are then cut at the ends of units,
`newest` of them ahead.
"""

import functools
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from types import MappingProxyType
from typing import Any, NamedTuple

import jax.numpy as jnp
from jax import Array

from decoding import base
from decoding.cache_eviction import budgets
from decoding.cache_eviction.scored import check_model
from decoding.caches import dense
from models.base import pack_bits
from models.cache_layouts import held, kept, sparse
from models.cache_layouts.kv_cache import DenseLayer, KVCache
from models.cache_layouts.sparse import Asked, SparseLayer
from models.distributed import sharding
from models.errors import MethodError


class About(NamedTuple):
    """What a rule may read besides its layer, after a commit."""

    before: Array  # int32[B]: tokens seen before the commit
    length: Array  # int32[B]: and now
    tokens: Array  # int32[B, M]: what was committed, and others behind it
    root: Array  # int32[B]: the token that follows, if anything was committed


class Rule(NamedTuple):
    """How a policy scores slots, or units of slots.

    - `score(layer, asked) -> float32[B, G, N, U]`: see `sparse.Reader`.
    - `notes`, `extra`: see `sparse.make`; an entry may be a function of (slots, (query
      heads per KV head, their dimension)).
    - `given(i) -> {name: [B, G, ...]}` (B or G may be 1): what layer i has besides.
    - `mark(layer, k)`: notes of new slots; see `sparse.Reader`.
    - `learn(layer, about) -> layer`: updates `notes` and `extra` after every commit.
    - `ended(layer, length) -> layer`: once the prompt is read.
    - `unit`: slots of a unit. `newest`: units that are always read.
    - `begin(layer, prefix) -> int32[B]`: the first of the slots that are always read,
      of which there are at most `span(sizes)`, up to `prefix`. None: see `newest`.
    - `reserved`: slots of the budget that are always read.
    - `queries`: how many of the last committed queries select a list together.
      `prompt_queries`: those that a prompt keeps, at least as many; 0: as many.
    - `query(layer) -> [B, 1, G, H / G, d]`: what selects a list instead. `learn` then
      reads the queries of the committed tokens, which `selected` drops afterwards.
    - `room(layer, cache, tokens)`: see `base.CachePolicy`; the bound at refresh=1.
    - `cost`: slots' worth of numbers that scoring reads, by token in the cache.
    """

    score: Callable[[SparseLayer, Asked], Array]
    notes: Mapping[str, Any] = MappingProxyType({})
    extra: Mapping[str, Any] = MappingProxyType({})
    given: Callable[[int], dict[str, Any]] = lambda i: {}
    mark: Callable[[SparseLayer, Array], dict[str, Array]] | None = None
    learn: Callable[[SparseLayer, About], SparseLayer] | None = None
    ended: Callable[[SparseLayer, Array], SparseLayer] | None = None
    unit: int = 1
    newest: int = 1
    begin: Callable[[SparseLayer, Array], Array] | None = None
    span: Callable[[base.Sizes], int] | None = None
    reserved: int = 0
    queries: int = 1
    prompt_queries: int = 0
    query: Callable[[SparseLayer], Array] | None = None
    room: Callable[[SparseLayer, KVCache, Array], Array] | None = None
    cost: float = 0.0


def own(full: int) -> Callable[[int], list[str]]:
    """Give layers' roles: the first `full` read all slots, the others their own."""
    return lambda layers: (
        [sparse.WHOLE] * min(full, layers) + [sparse.OWN] * max(layers - full, 0)
    )


def policy(
    rule: Rule,
    budget: budgets.Budget,
    roles: Callable[[int], Sequence[str]],
    refresh: int = 1,
) -> base.CachePolicy:
    """Build a policy from the rule by which it scores slots.

    Args:
        rule: the rule.
        budget: slots that a node reads of a KV head, or a share of the prompt. A part
            of a unit counts as a unit.
        roles: number of layers -> each layer's role; see `sparse`.
        refresh: 1: every node selects; more: tokens that a list serves.

    Raises:
        MethodError: a number that means nothing.
    """
    budgets.check(budget, budgets.UNIFORM)
    if refresh < 1:
        raise MethodError(f"refresh={refresh}: use at least 1")
    listed, unit, newest = refresh > 1, rule.unit, rule.newest
    reserved = rule.reserved + (newest * unit if unit > 1 else 0)
    has_start = listed or unit > 1 or rule.begin is not None

    def count(layer: SparseLayer) -> Array:
        return jnp.maximum(-(-layer.budget // unit) - -(-reserved // unit), 0)

    def begin(layer: SparseLayer, prefix: Array) -> Array:
        if rule.begin is not None:
            return rule.begin(layer, prefix)
        if unit == 1:
            return prefix
        return jnp.maximum((prefix // unit + 1 - newest) * unit, 0)

    def reader(role: str, sizes: base.Sizes) -> sparse.Reader:
        (most,) = budgets.most(budget, sizes.prompt, budgets.shares("uniform", 1))
        span = newest * unit if unit > 1 else 0
        span = span if rule.span is None else rule.span(sizes)
        return sparse.Reader(
            role,
            max(-(-most // unit) - -(-reserved // unit), 1),
            rule.score,
            count,
            begin if has_start else None,
            unit,
            span + sizes.block + (refresh if listed else 0),
            listed,
            rule.mark if role in _SCORES else None,
        )

    def places(sizes: base.Sizes) -> tuple[int, int]:
        """Return the places for queries, in the prompt and afterwards."""
        if not listed and rule.query is None:
            return (rule.prompt_queries, 0)
        behind = rule.queries - 1 + refresh + sizes.block
        return (max(rule.queries, rule.prompt_queries), behind)

    def make(model: Any, sizes: base.Sizes, length: Array) -> KVCache:
        config = model.config
        check_model(model)
        if config.sinks:
            raise MethodError(
                "a policy that reads a few keys of a model with attention sinks, which "
                "add to the sum of every head: use caches/dense"
            )
        windows = held.windows_of(config) or (0,) * config.n_layers
        groups, dim = held.full_heads(config)
        heads = (config.n_heads // groups, dim)
        new = functools.partial(model.init_layer, sizes.batch, dtype=sizes.dtype)
        sized = functools.partial(_sized, slots=sizes.slots, heads=heads)
        kept_queries = places(sizes)
        first = jnp.maximum(length - 1 - kept_queries[0], 0)
        keep = budgets.of_row(budget, length)
        made: list[Any] = []
        for i, (window, role) in enumerate(zip(windows, roles(config.n_layers))):
            if window:
                slots = min(held.capacity(window, sizes.block), sizes.slots)
                made.append(held.layer(new(slots, layer=i), sizes.slots, window))
                continue
            store = new(sizes.slots, layer=i)
            _check_layout(store)
            scores = role in _SCORES
            layer = sparse.make(
                store,
                reader(role, sizes),
                sizes.slots,
                heads,
                jnp.array(first),
                kept_queries if scores else (0, 0),
                sized(rule.notes) if scores else {},
                sized(rule.extra) if scores else {},
                rule.given(i) if scores else {},
                (jnp.array(keep), jnp.array(length)),
                config.attention_softcap,
            )
            made.append(layer)
        _check_roles(made)
        pos = jnp.full((sizes.batch, sizes.slots), -1, jnp.int32)
        return KVCache(tuple(made), pos, jnp.zeros((sizes.batch,), jnp.int32))

    def changed(cache: KVCache, act: Callable, *rows: Array) -> KVCache:
        """Let `act(layer, *rows)` change each layer that scores slots."""
        stores = list(cache.layers)
        for i, layer in enumerate(stores):
            if _scores(layer):
                axes = (layer.axes(), *("batch" for _ in rows))
                stores[i] = sharding.by_shard(act, (layer, *rows), axes)
        return replace(cache, layers=tuple(stores))

    def renew(layer: SparseLayer, due: Array, length: Array) -> SparseLayer:
        """Let the last committed queries select the list of the rows that are `due`."""

        def change(layer: Any, due: Array) -> Any:
            q, tokens = _last(layer, length, rule.queries)
            if rule.query is not None:
                q = rule.query(layer)
                tokens = length[:, None] - 1
            slots = jnp.arange(layer.capacity, dtype=jnp.int32)
            seen = slots <= tokens[..., None]  # none for a query that is not there
            bits = pack_bits(jnp.eye(q.shape[1], dtype=bool))
            bits = jnp.broadcast_to(bits, (q.shape[0], *bits.shape))
            chosen = layer.choose(Asked(q, seen, length, bits))
            after = layer.renewed(chosen, begin(layer, length), due)
            if rule.query is not None:
                return after
            first = jnp.maximum(length - (rule.queries - 1), layer.queries.first)
            return after.forget(jnp.where(due, first, layer.queries.first))

        return kept.once(change, layer, due)

    def relisted(cache: KVCache, due: Array) -> KVCache:
        """Renew the lists of the rows that are `due`, of layers that follow too."""
        cache = changed(cache, renew, due, cache.length)
        stores, last = list(cache.layers), None
        for i, layer in enumerate(stores):
            if isinstance(layer, SparseLayer) and layer.reader.role == sparse.SELECT:
                last = layer
            if isinstance(layer, SparseLayer) and layer.reader.role == sparse.FOLLOW:
                assert last is not None
                same = {n: last.extra[n] for n in ("index", "chosen", "since")}
                stores[i] = replace(layer, extra={**layer.extra, **same})
        return replace(cache, layers=tuple(stores))

    def learn(layer: SparseLayer, *rows: Array) -> SparseLayer:
        assert rule.learn is not None
        about = About(*rows)
        layer = rule.learn(layer, about)
        reads = rule.query is not None and layer.is_read
        return layer.forget(about.length) if reads else layer  # type: ignore[return-value]

    def retain(state: Any, cache: KVCache, outcome: base.Outcome):
        before = cache.length
        cache, _ = full.retain((), cache, outcome)
        if rule.learn is not None:
            path = jnp.pad(outcome.verdict.path, ((0, 0), (1, 0)))
            tokens = jnp.take_along_axis(outcome.tree.tokens, path, 1)
            rows = (before, cache.length, tokens, outcome.verdict.token)
            cache = changed(cache, learn, *rows)
        if listed and _is_read(cache):
            cache = relisted(cache, cache.length // refresh > before // refresh)
        return cache, state

    def room(state: Any, cache: KVCache, tokens: Array, *_: Any) -> Array:
        if not _is_read(cache):
            return jnp.full_like(cache.length, tokens.shape[1] + 1)
        if listed:
            return refresh - cache.length % refresh
        if rule.room is not None:
            layer = next(x for x in cache.layers if _scores(x))
            return rule.room(layer, cache, tokens)
        return (cache.length // unit + newest) * unit - cache.length

    def finish(state: Any, cache: KVCache):
        length = cache.length
        if rule.ended is not None:
            cache = changed(cache, rule.ended, length)
        if listed:
            cache = relisted(cache, jnp.ones_like(length, bool))
        if rule.query is not None:
            drop = lambda layer, length: layer.forget(length)
            cache = changed(cache, drop, length)
        read = lambda x: x.resized(length) if isinstance(x, SparseLayer) else x
        return replace(cache, layers=tuple(map(read, cache.layers))), state

    def reads(state: Any, cache: KVCache) -> Array:
        length, found = cache.length, []
        source: Any = None
        for layer in cache.layers:
            slots = length - getattr(layer, "shift", 0)
            source = layer if _scores(layer) else source
            if isinstance(layer, SparseLayer) and layer.reader.role in _FEW:
                if listed:
                    few = layer.extra["chosen"].max(1)
                    start = layer.extra["since"][:, 0]
                else:
                    start = begin(source, length)
                    few = jnp.minimum(count(layer) * unit, start)
                slots = jnp.minimum(length, few + length - start)
            cost = rule.cost / refresh if _scores(layer) else 0.0
            found.append(slots + cost * length)
        return jnp.stack(found).astype(jnp.float32).mean(0)

    full = dense.policy()
    bound = room if listed or unit > 1 or rule.room is not None else None
    return base.CachePolicy(full.init, full.place, retain, bound, make, finish, reads)


_SCORES = (sparse.OWN, sparse.SELECT)
_FEW = (sparse.OWN, sparse.FOLLOW)


def _scores(layer: Any) -> bool:
    return isinstance(layer, SparseLayer) and layer.reader.role in _SCORES


def _last(layer: SparseLayer, length: Array, count: int) -> tuple[Array, Array]:
    """Return the last `count` committed queries [B, M, G, R, d], and their tokens.

    A token is -1 where there is no query.
    """
    q, tokens = layer.asked(length)
    q = q.reshape(*q.shape[:2], layer.store.k.shape[1], -1, q.shape[-1])
    if count == 1:
        last = jnp.argmax(tokens, 1)[:, None]
        q = q[jnp.arange(q.shape[0])[:, None], last]
        return q, jnp.take_along_axis(tokens, last, 1)
    return q, jnp.where(tokens >= (length - count)[:, None], tokens, -1)


def _is_read(cache: KVCache) -> bool:
    return any(isinstance(x, SparseLayer) and x.is_read for x in cache.layers)


def _sized(about: Mapping[str, Any], slots: int, heads: tuple) -> dict[str, Any]:
    """Return notes or extras, some of which are functions of (slots, heads)."""
    return {name: x(slots, heads) if callable(x) else x for name, x in about.items()}


def _check_layout(store: Any) -> None:
    if not isinstance(store, DenseLayer):
        raise MethodError(
            f"sparse reads of {type(store).__name__}: load the model with the dense "
            "layout, or use a policy that evicts"
        )


def _check_roles(layers: Sequence[Any]) -> None:
    selects = False
    for i, layer in enumerate(layers):
        role = layer.reader.role if isinstance(layer, SparseLayer) else ""
        selects = selects or role == sparse.SELECT
        if role == sparse.FOLLOW and not selects:
            raise MethodError(
                f"layer {i} reads what a layer before it selects, and none does: a "
                "layer with a window cannot select; name another"
            )
