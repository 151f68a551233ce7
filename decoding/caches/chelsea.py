"""Chelsea: merge similar slots of a stretch of the cache into their mean.

Hu, Wang, He, Gong, Yi, Zhang, Bai, Chen, Zhang, Li, Yuan, *Efficient Long-Context LLM
Inference via KV Cache Clustering*, 2025, arXiv 2506.11418.

The cache is cut into chunks of c slots (`chunk`). In a chunk the slots at even places
are matched with those at odd ones, each even slot a with the odd slot b of the highest
cosine of their keys. The r best pairs are merged, several a into one b if so matched:

    k_b' = Σ n_i k_i / Σ n_i,    v_b' = Σ n_i v_i / Σ n_i,    n_b' = Σ n_i

over b and its a's, where n_i counts the tokens of slot i. A query's score of a slot
gets ln n added, which makes the merge of equal keys exact. Neither the first `sinks`
tokens nor the newest, `recent` · k of a budget of k slots, are merged.

Deviations: r is the number of slots above the budget, and the best pairs of all chunks
are taken. The counts in the scores, `sinks`, `recent` and `chunk` are of this
implementation: it follows the paper's abstract and overviews of it, and there is no
official code. Keys are merged as they are stored, after rotation, which a small chunk
keeps harmless. A merged slot has the token number of b. Slots are merged every `every`
tokens.

Cost: between merges none. A merge of n slots takes n · c · d / 2 products a head, as
often as halving leads to the budget.
"""

import functools
from dataclasses import replace

import jax.numpy as jnp
from jax import Array, lax

from decoding import base
from decoding.cache_eviction import budgets, scored
from decoding.catalogue import Card
from models.cache_layouts.kept import KeptLayer
from models.errors import MethodError

CARD = Card(
    paper="arXiv 2506.11418",
    guarantee=base.LOSSY,
    family="merging",
    sources=("hu2025chelsea",),
    examples={"budget": 12, "chunk": 4, "sinks": 2, "every": 8, "prompt_every": 16},
)
LEAST = 1e-12  # norm of a key


def policy(
    budget: budgets.Budget = 0.2,
    chunk: int = 64,
    sinks: int = 4,
    recent: float = 0.25,
    layers: budgets.Layers = budgets.UNIFORM,
    every: int = 32,
    prompt_every: int = 128,
) -> base.CachePolicy:
    """Merge slots within chunks, until the budget is met.

    Args:
        budget: slots of a KV head, or a share of the prompt (0.2: the abstract's 80 %
            less memory).
        chunk: slots of a chunk; even.
        sinks: first tokens that are not merged, as far as the budget goes.
        recent: share of the budget for the newest tokens, which are not merged.
        layers: "uniform", "pyramid", or each layer's weight.
        every: tokens between merges while decoding.
        prompt_every: tokens between those in the prompt.

    Raises:
        MethodError: a number out of range.
    """
    if chunk < 2 or chunk % 2:
        raise MethodError(f"chunk={chunk}: use an even number of at least 2")
    if sinks < 0:
        raise MethodError(f"sinks={sinks}: use at least 0")
    if not 0 <= recent < 1:
        raise MethodError(f"recent={recent}: use a share of the budget, in [0, 1)")
    change = functools.partial(merged, chunk=chunk, sinks=sinks, recent=recent)
    rule = scored.Rule(change=change, biased=True)
    return scored.policy(
        rule,
        budget,
        layers=layers,
        online=True,
        decode=True,
        every=every,
        prompt_every=prompt_every,
    )


def merged(
    layer: KeptLayer,
    due: Array,
    about: scored.About,
    *,
    chunk: int,
    sinks: int,
    recent: float,
) -> KeptLayer:
    """Merge slots of the rows that are `due`, until they meet their budget.

    Each round merges half of the slots that may be, or all those above the budget.
    """
    # The rows' first slots and their last ones are apart. Of what remains, a budget has
    # one slot at least, so that a round always finds a pair.
    first = jnp.clip(about.keep - 2, 0, sinks)
    newest = jnp.clip(jnp.floor(recent * about.keep).astype(jnp.int32), 1)
    newest = jnp.clip(jnp.minimum(newest, about.keep - first - 1), 0)

    def over(layer: KeptLayer) -> Array:
        used = about.length - layer.shift
        return jnp.where(due, jnp.maximum(used - about.keep, 0), 0)

    def body(layer: KeptLayer) -> KeptLayer:
        inside = about.length - layer.shift - first - newest
        return _once(layer, about.length, first, inside, over(layer), chunk)

    return lax.while_loop(lambda layer: (over(layer) > 0).any(), body, layer)


def _once(
    layer: KeptLayer,
    length: Array,
    first: Array,
    inside: Array,
    most: Array,
    chunk: int,
) -> KeptLayer:
    """Merge the best pairs of each KV head, `most` int32[B] if there are so many.

    The `inside` int32[B] slots from `first` on are cut into chunks.
    """
    batch, groups, slots = layer.pos.shape
    chunks = -(-slots // chunk)
    place = jnp.arange(chunks * chunk, dtype=jnp.int32)
    valid = (place < inside[:, None])[:, None]  # [B, 1, chunks * chunk]
    at = (first[:, None] + place)[:, None]
    at = jnp.where(valid, at, slots + place)  # distinct, so that writes may be dropped
    rows, heads = jnp.arange(batch)[:, None, None], jnp.arange(groups)[None, :, None]
    index = (rows, heads, at)

    def cut(x: Array) -> tuple[Array, Array]:
        """Return the even and the odd places [B, *, chunks, chunk / 2, ...]."""
        x = x.reshape(*x.shape[:2], chunks, chunk // 2, 2, *x.shape[3:])
        return x[:, :, :, :, 0], x[:, :, :, :, 1]

    def taken(x: Array) -> Array:
        return x.at[index].get(mode="clip").astype(jnp.float32)

    k, v = (taken(x) for x in (layer.store.k, layer.store.v))
    assert layer.bias is not None
    count = jnp.round(jnp.exp(taken(layer.bias)))
    unit = k / jnp.maximum(jnp.linalg.norm(k, axis=-1, keepdims=True), LEAST)
    alike = jnp.einsum("bgnid,bgnjd->bgnij", *cut(unit), precision="highest")
    is_even, is_odd = cut(valid)
    # As in `scored`: blocks of other widths round otherwise.
    alike = jnp.where(is_odd[:, :, :, None], alike.astype(jnp.bfloat16), -jnp.inf)
    pair = alike.argmax(-1)
    may = is_even & is_odd.any(-1, keepdims=True)  # [B, 1, chunks, chunk / 2]
    pairs = jnp.minimum(most, may.sum((1, 2, 3), dtype=jnp.int32))
    best = jnp.where(may, alike.max(-1), -jnp.inf).reshape(batch, groups, -1)
    rank = jnp.argsort(jnp.argsort(-best, axis=-1, stable=True), axis=-1)
    goes = (rank < pairs[:, None, None]).reshape(pair.shape)

    # [B, G, chunks, i, j]: whether even place i goes into odd place j.
    into = (pair[..., None] == jnp.arange(chunk // 2)) & goes[..., None]
    from_, to = cut(count)
    total = to + jnp.einsum("bgnij,bgni->bgnj", into.astype(jnp.float32), from_)
    gains = into.any(3)

    def mean(x: Array) -> Array:
        even, odd = cut(x)
        weights = into * from_[..., None]
        more = jnp.einsum("bgnij,bgnid->bgnjd", weights, even, precision="highest")
        return (odd * to[..., None] + more) / total[..., None]

    odd_at = cut(jnp.broadcast_to(at, (batch, groups, at.shape[-1])))[1]
    odd_at = jnp.where(gains, odd_at, slots + odd_at).reshape(batch, groups, -1)

    def put(x: Array, new: Array) -> Array:
        new = new.reshape(batch, groups, -1, *new.shape[4:]).astype(x.dtype)
        return x.at[rows, heads, odd_at].set(new, mode="drop")

    store = replace(
        layer.store, k=put(layer.store.k, mean(k)), v=put(layer.store.v, mean(v))
    )
    bias = put(layer.bias, jnp.log(total))
    gone = jnp.stack([goes, jnp.zeros_like(goes)], -1).reshape(batch, groups, -1)
    is_gone = jnp.zeros(layer.pos.shape, bool).at[index].set(gone, mode="drop")
    order = jnp.argsort(is_gone, axis=-1, stable=True).astype(jnp.int32)
    used = length - layer.shift
    return replace(layer, store=store, bias=bias).keep(order, used - pairs, length)
