"""REST: draft a weighted trie of the last tokens' continuations in stored texts.

He, Zhong, Cai, Lee, He, *REST: Retrieval-Based Speculative Decoding*, 2024, arXiv
2311.08252, section 3. For spans s = `longest`, .., `shortest` until one is found,

    hits   = places of the datastore where the last s tokens stand  (`hits` at most)
    C(N)   = number of hits whose continuation begins with the path to N
    draft  = the `choices` nodes of greatest C of the trie of `length` tokens after each

The suffix array is searched for all spans at once. Its order makes equal beginnings
neighbours, so that a node of the trie is a run of hits and C its length. C never grows
along a path: the greatest are closed under parents.

`datastore` is a directory that `python -m experiments.datastore` makes of text. It is
put on the device once a request, as `Shared`: 8 bytes a token.

Deviations from the paper: where more than `hits` places match, evenly spaced ones are
taken (the code takes the first of each shard, that is the lexicographically least). No
draft where nothing matches; the code drafts placeholders. At temperature > 0 the code
samples the target once a candidate row, which prefers popular drafts; here the verifier
decides.

Cost per call: 2 log2(M) steps of binary search for the spans; a gather of [B, hits,
length] tokens and a top-k of as many, with FEW in the place of `hits` where no row has
more hits; no model call.
"""

import functools
from collections.abc import Callable

import jax
import jax.numpy as jnp
import numpy as np
from flax import struct
from jax import Array, lax

from decoding import base
from decoding.catalogue import Card
from decoding.text_lookup import suffix_array, suffix_match
from models.errors import MethodError

CARD = Card(
    paper="REST, arXiv 2311.08252",
    guarantee=base.LAW,
    family="training-free",
    data=("datastore",),
    examples={"choices": 8, "hits": 20, "length": 4},
    sources=("he2024rest",),
)

FEW = 256


@struct.dataclass
class Shared:
    """The datastore on the device; see `decoding/text_lookup/suffix_array.py`."""

    tokens: Array  # int32[M]
    order: Array  # int32[M]


def drafter(
    datastore: str,
    choices: int = 64,
    longest: int = 16,
    shortest: int = 2,
    hits: int = 5000,
    length: int = 10,
) -> base.Drafter:
    """Draft `choices` nodes from the datastore in the directory `datastore`.

    Spans of `longest` down to `shortest` tokens are searched, and `hits` places of the
    first found are read, `length` tokens each.
    """
    if not 1 <= shortest <= longest:
        raise MethodError(
            f"shortest={shortest}, longest={longest}: spans run from longest down to "
            "shortest, which is at least 1"
        )
    for name, value in (("choices", choices), ("hits", hits), ("length", length)):
        if value < 1:
            raise MethodError(f"{name}={value}: use at least 1")
    if longest + length > suffix_array.DEPTH:
        raise MethodError(
            f"longest={longest}, length={length}: a datastore is sorted by "
            f"{suffix_array.DEPTH} tokens, so let their sum be no more"
        )
    choices = min(choices, hits * length)
    store = suffix_array.load(datastore)

    def init(ctx: base.Context) -> base.State:
        tables = [jnp.asarray(np.asarray(x)) for x in store]
        return base.State((), Shared(*tables))

    def draft(keys, ctx: base.Context, state: base.State):
        device_store = suffix_array.Datastore(state.shared.tokens, state.shared.order)
        last = suffix_match.last_tokens(ctx.tokens, ctx.length, longest)

        # most spans stand in few places, and a trie of those takes a tenth of the time
        few = min(hits, max(FEW, choices))
        sizes = (longest, shortest, few, hits, length, choices)
        tokens, parents, there = _drafts(device_store, last[:, ::-1], sizes)
        tokens = jnp.concatenate([ctx.root[:, None], tokens], 1)
        roots = jnp.full_like(ctx.root, -1)[:, None]
        kind = jnp.pad(there, ((0, 0), (1, 0)), constant_values=True)
        nodes = base.TokenTree(
            tokens,
            jnp.concatenate([roots, parents], 1),
            jnp.where(kind, base.CANDIDATE, base.PAD).astype(jnp.int32),
            depth=length,
        )
        return nodes, state, ctx.cache

    def observe(ctx: base.Context, state: base.State, outcome: base.Outcome):
        return state

    return base.Drafter(
        init, draft, observe, choices + 1, length, pauses=True, reads_text=True
    )


@functools.partial(jax.jit, static_argnums=2)
def _drafts(
    store: suffix_array.Datastore, last: Array, sizes: tuple[int, ...]
) -> tuple[Array, ...]:
    """Draft for every row: tokens, parents and presence of nodes, without the root."""
    longest, shortest, few, hits, length, choices = sizes
    low, high, span = jax.vmap(lambda x: _places(store, x, longest, shortest))(last)

    def drafts(hits: int) -> Callable[[], tuple[Array, ...]]:
        def one(low: Array, high: Array, span: Array) -> tuple[Array, ...]:
            after, count = _continuations(store, low, high, span, hits, length)
            return _trie(after, count, choices)

        return lambda: jax.vmap(one)(low, high, span)

    return lax.cond((high - low).max() <= few, drafts(few), drafts(hits))


def _places(store, last: Array, longest: int, shortest: int) -> tuple[Array, ...]:
    """★ Find the longest known span, and the range of `order` that begins with it.

    Returns the range's ends and the span.

    `last` int32[longest]: the last tokens in the order of the text, -1 before it.
    """
    spans = jnp.arange(longest, shortest - 1, -1, dtype=jnp.int32)
    index = jnp.arange(longest, dtype=jnp.int32)

    def one(span: Array) -> tuple[Array, Array]:
        query = last[jnp.minimum(longest - span + index, longest - 1)]
        low, high = suffix_array.find(store, query, span)
        known = last[longest - span] >= 0  # the text is that long
        return low, jnp.where(known, high, low)

    low, high = jax.vmap(one)(spans)
    best = jnp.argmax(high > low)
    return low[best], high[best], spans[best]


def _continuations(store, low, high, span, hits: int, length: int):
    """★ Read tokens int32[hits, length] after the span at evenly spaced hits."""
    num_found = high - low
    num_read = jnp.minimum(num_found, hits)
    index = jnp.arange(hits, dtype=jnp.int32)
    # floor(index found / hits) in int32, which the product could exceed
    whole, rest = num_found // hits, num_found % hits
    step = index * whole + (index * rest) // hits
    at = low + jnp.where(num_found > hits, step, index)
    begin = store.order[jnp.minimum(at, store.order.shape[0] - 1)] + span
    at = begin[:, None] + jnp.arange(length, dtype=jnp.int32)
    tokens = store.tokens.at[at].get(mode="fill", fill_value=suffix_array.END)
    count = jnp.cumprod(tokens != suffix_array.END, 1).sum(1)
    return tokens, jnp.where(index < num_read, count, 0)


def _trie(tokens: Array, count: Array, choices: int) -> tuple[Array, Array, Array]:
    """★ Choose the most frequent nodes of sorted continuations.

    Returns tokens, parents and presence. The node (h, d) is that of hit h, d + 1 tokens
    deep; it represents a run of hits if h is the first of it. Numbered by depth first,
    a parent precedes its children among equals.
    """
    hits, length = tokens.shape
    index = jnp.arange(hits, dtype=jnp.int32)
    there = jnp.arange(length) < count[:, None]
    differs = tokens[1:] != tokens[:-1]
    changed = jnp.cumsum(differs | ~there[1:] | ~there[:-1], 1) > 0
    first = jnp.concatenate([jnp.ones((1, length), bool), changed])
    run = lax.cummax(jnp.where(first, index[:, None], 0), axis=0)  # whose run h is in
    after = jnp.where(first[1:], index[1:, None], hits)
    after = jnp.pad(after, ((0, 1), (0, 0)), constant_values=hits)
    ends = lax.cummin(after, axis=0, reverse=True)
    weight = jnp.where(first & there, ends - index[:, None], 0)
    weight, at = suffix_match.greatest(weight.T.reshape(-1), choices)
    level, hit = at // hits, at % hits
    above = (level - 1) * hits + run[hit, jnp.maximum(level - 1, 0)]
    match = at[:, None] == above[None]
    parents = jnp.where(level == 0, 0, 1 + jnp.argmax(match, 0))
    parents = jnp.minimum(parents, jnp.arange(choices)).astype(jnp.int32)
    return jnp.maximum(tokens[hit, level], 0), parents, weight > 0
