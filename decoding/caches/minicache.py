"""MiniCache: adjacent layers share the directions of their keys and values.

Liu, Liu, Pan, He, Haffari, Zhuang, *MiniCache: KV Cache Compression in Depth Dimension
for Large Language Models*, 2024, arXiv 2405.14366.

Layers l - 1 and l are pairs, from the middle of the model up. For the key x of a token
in both, and likewise its value, with x̂ = x / |x| and the angle Ω between the two x̂,

    e = sin((1 - t) Ω) / sin Ω · x̂_{l-1} + sin(t Ω) / sin Ω · x̂_l

is stored once with both lengths; layer l reads |x_l| · e. Tokens of the largest angles
are retained: both layers keep them as they are. t → `weight`, the retained share γ →
`retained`.

Deviations: a token has one direction over all KV heads, and its angle is the sum of
those of keys and values. Of the tokens that are merged at once a fixed share is
retained, not those within γ of the largest angle: arrays have fixed sizes. Tokens are
merged when the prompt is read and at every `every`th token then; newer ones are exact.
There is no official code.

Cost: a merge reads what it merges; calls read as many slots as without.

Merging alone saves half of the pairs' slots, so a quarter at most where pairs begin in
the middle. The paper's factor 5.02 is that of 4 bits too, 1.53 that of merging; what is
saved here is `out.stats.kv_bytes`, without quantisation.
"""

import functools
from dataclasses import replace
from typing import Any

import jax.numpy as jnp
from jax import Array

from decoding import base
from decoding.cache_eviction import scored
from decoding.caches import dense
from decoding.catalogue import Card
from models.cache_layouts import held, kept, paired
from models.cache_layouts.kv_cache import DenseLayer, KVCache
from models.cache_layouts.paired import PairedLayer
from models.distributed import sharding
from models.errors import MethodError

CARD = Card(
    paper="arXiv 2405.14366",
    guarantee=base.LOSSY,
    family="merging",
    sources=("liu2024minicache",),
    examples={"retained": 0.25, "every": 8, "start": 0},
)
LEAST = 1e-6  # of sin Ω, below which directions are averaged; of a length
RETAINED = "retained"  # int32[B, G]: tokens that past merges kept


def policy(
    retained: float = 0.05, weight: float = 0.6, start: int = -1, every: int = 32
) -> base.CachePolicy:
    """Merge pairs of layers from `start` up.

    Args:
        retained: share of the tokens that stay apart in both layers (the paper's γ,
            which bounds angles, is 0.05).
        weight: t, the upper layer's share of a direction (the paper's: 0.6).
        start: the lowest layer of the first pair; -1: the middle one.
        every: tokens between merges of a row while decoding.

    Raises:
        MethodError: a number out of range, or a model that it does not serve.
    """
    for name, share in (("retained", retained), ("weight", weight)):
        if not 0 <= share <= 1:
            raise MethodError(f"{name}={share}: use a share, in [0, 1]")
    if every < 1:
        raise MethodError(f"every={every}: use at least 1")
    if start < -1:
        raise MethodError(f"start={start}: use a layer, or -1 for the middle one")

    def make(model: Any, sizes: base.Sizes, length: Array) -> KVCache:
        config = model.config
        scored.check_model(model)
        first = config.n_layers // 2 if start < 0 else start
        if any(held.windows_of(config)) or first + 2 > config.n_layers:
            raise MethodError(
                f"start={first} of {config.n_layers} layers, windows="
                f"{tuple(held.windows_of(config))}: minicache needs two layers from "
                "start up, and full attention"
            )
        step = lambda slots: -(-min(slots, sizes.slots) // kept.STEP) * kept.STEP
        stays = lambda tokens: int(-(-retained * tokens // 1)) + 1
        events = sizes.new // every + 2
        own = stays(sizes.prompt) + events * stays(every) + every + sizes.block
        places = kept.LayerSizes(step(sizes.prompt), step(own))
        places_of_pair = step(sizes.slots) if retained < 1 else kept.STEP

        def layer(slots: int) -> DenseLayer:
            store = model.init_layer(sizes.batch, slots, sizes.dtype)
            if type(store) is not DenseLayer:
                raise MethodError(
                    f"minicache over {type(store).__name__}: use the dense layout, and "
                    "a model with keys and values of its heads"
                )
            return store

        none = jnp.zeros_like(length)
        groups, dim = held.full_heads(config)
        heads = (config.n_heads // groups, dim)
        extra = {RETAINED: (jnp.int32, ())}
        new = lambda: kept.layer(
            *(layer(places.slots), places, sizes.slots, heads, none, {}, extra),
            (jnp.array(length), jnp.array(length)),
        )
        stores: list[Any] = [layer(sizes.slots) for _ in range(first)]
        while len(stores) + 2 <= config.n_layers:
            stores += paired.pair(new(), new(), places_of_pair)
        stores += [layer(sizes.slots) for _ in range(config.n_layers - len(stores))]
        pos = jnp.full((sizes.batch, sizes.slots), -1, jnp.int32)
        return KVCache(tuple(stores), pos, jnp.zeros((sizes.batch,), jnp.int32))

    def changed(cache: KVCache, due: Array, act: Any) -> KVCache:
        """Let `act(two, due, length, groups)` change the pairs."""
        axes = lambda two: tuple(layer.axes() for layer in two)
        stores = list(cache.layers)
        for i, lower in enumerate(stores):
            if isinstance(lower, PairedLayer) and lower.is_lower:
                two = lower, stores[i + 1]
                own = functools.partial(act, groups=lower.pos.shape[1])
                arrays = (two, due, cache.length)
                names = (axes(two), "batch", "batch")
                stores[i : i + 2] = sharding.by_shard(own, arrays, names, axes)
        return replace(cache, layers=tuple(stores))

    def is_read(cache: KVCache) -> bool:
        return any(isinstance(x, PairedLayer) and x.is_read for x in cache.layers)

    def retain(state: Any, cache: KVCache, outcome: base.Outcome):
        before = cache.length
        cache, _ = full.retain((), cache, outcome)
        if is_read(cache):
            due = cache.length // every > before // every

            def act(two: Any, due: Array, length: Array, groups: int) -> Any:
                def change(two: Any, due: Array) -> Any:
                    lower, upper = two
                    return merged(lower, upper, due, length, retained, weight, groups)

                return kept.once(change, two, due)

            cache = changed(cache, due, act)
        return cache, state

    def room(state: Any, cache: KVCache, tokens: Array) -> Array:
        if not is_read(cache):
            return jnp.full_like(cache.length, tokens.shape[1] + 1)
        return every - cache.length % every

    def finish(state: Any, cache: KVCache):
        due = jnp.ones_like(cache.length, bool)

        def act(two: Any, due: Array, length: Array, groups: int) -> Any:
            lower, upper = map(paired.opened, two)
            two = merged(lower, upper, due, length, retained, weight, groups)
            return tuple(x.resized(length) for x in two)

        return changed(cache, due, act), state

    full = dense.policy()
    parts = (full.init, full.place, retain, room, make, finish)
    return base.CachePolicy(*parts, joint=True)


def merged(
    lower: PairedLayer,
    upper: PairedLayer,
    due: Array,
    length: Array,
    retained: float,
    weight: float,
    groups: int,
) -> tuple[PairedLayer, PairedLayer]:
    """Merge what the pair keeps beyond its retained tokens, in rows that are `due`.

    `groups` is the number of KV heads, of which a device may have some.
    """
    assert lower.ways is not None and lower.lengths is not None
    assert upper.lengths is not None
    slots, size = lower.capacity, lower.merged
    used, old = length - lower.shift, lower.extra[RETAINED][:, 0]
    new = used - old
    stay = jnp.ceil(retained * new - 1e-4).astype(jnp.int32)
    count = jnp.where(due, old + stay, used)
    directions, lengths, angle = [], [], jnp.zeros((len(length), slots))
    for x, y in zip(lower.store.read(), upper.store.read()):
        way, of_both, between = slerp(x, y, weight, groups)
        directions.append(way)
        lengths.append(of_both)
        angle = angle + between
    place = jnp.arange(slots, dtype=jnp.int32)
    worth = jnp.where(place < old[:, None], jnp.inf, angle).astype(jnp.bfloat16)
    in_use = (place < used[:, None])[:, None]
    index = scored.chosen(worth[:, None], in_use, count)  # [B, 1, C]

    # Those that do not stay lie behind the others, in the order of their tokens.
    source = jnp.take_along_axis(index[:, 0], count[:, None] + place, 1, mode="clip")
    goes = place < (used - count)[:, None]
    target = jnp.where(goes, lower.shift[:, None] + place, size + place)
    rows = jnp.arange(len(length))[:, None]
    pairs = [jnp.stack(both, -1) for both in zip(*lengths)]  # of each layer: [B, C, 2]
    put: dict[str, Any] = {"mode": "drop", "unique_indices": True}

    def kept_of(layer: PairedLayer, of: Array) -> PairedLayer:
        assert layer.lengths is not None
        new = layer.lengths.at[rows, target].set(of[rows, source], **put)
        wide = jnp.broadcast_to(index, (*layer.pos.shape[:2], slots))
        stays = jnp.where(due, count, old)[:, None]
        extra = {RETAINED: jnp.broadcast_to(stays, layer.extra[RETAINED].shape)}
        changed: Any = replace(layer, lengths=new, extra=extra)
        return changed.keep(wide, count, length)

    ways = lower.ways.append(
        target, *(x.swapaxes(1, 2)[rows, source] for x in directions)
    )
    lower = replace(lower, ways=ways)
    return kept_of(lower, pairs[0]), kept_of(upper, pairs[1])


def slerp(x: Array, y: Array, weight: float, groups: int) -> tuple[Array, tuple, Array]:
    """Interpolate the directions of a token's heads in two layers, [B, G, C, d] each.

    `groups` is the number of KV heads, of which a device may have some.

    Returns:
        The direction float32[B, G, C, d]; both lengths float32[B, C]; the angle
        float32[B, C]. Lengths and angles are over all heads.
    """
    x, y = x.astype(jnp.float32), y.astype(jnp.float32)
    over = lambda x, y: sharding.total((x * y).sum((1, 3)), groups, "kv_heads")
    lengths = tuple(jnp.maximum(jnp.sqrt(over(z, z)), LEAST) for z in (x, y))
    x, y = (z / n[:, None, :, None] for z, n in zip((x, y), lengths))
    # From the chord: the inverse cosine loses half the digits of a small angle.
    chord = jnp.sqrt(over(x - y, x - y))
    angle = 2 * jnp.arcsin(jnp.clip(chord / 2, 0, 1))
    sine = jnp.sin(angle)
    flat = sine < LEAST
    parts = [
        jnp.sin(share * angle) / jnp.where(flat, 1.0, sine)
        for share in (1 - weight, weight)
    ]
    parts = [
        jnp.where(flat, share, part) for share, part in zip((1 - weight, weight), parts)
    ]
    a, b = (part[:, None, :, None] for part in parts)
    return a * x + b * y, lengths, angle
