"""SentenceKV: read whole sentences, found by their mean keys.

Zhu, Falahati, Yang, Mohammadi Amiri, *SentenceKV: Efficient LLM Inference via
Sentence-Level Semantic KV Caching*, 2025, arXiv 2504.00970, section 3. A sentence ends
with a token of `ends`. With mu_z the mean key of sentence z and q the mean query since
the last sentence ended, sentences are ranked by

    s_z = q mu_z

and read in that order, each with all its tokens but the last, which is cut where the
budget ends. The first `sinks` tokens and the last `recent` are always read. Of the
prompt, only the `factor` · `budget` tokens take part to which its last `window` queries
attended most, after a maximum over `kernel` neighbours.

Deviations: a KV head's score is the largest of its query heads', where the official
code repeats keys for every query head; `recent` tokens are counted back from where the
sentence began, and a sentence has at most `longest` tokens, so that a text does not
depend on rounds; at most `sentences` are told apart, the rest being one; all slots stay
in fast memory. The first query behind the prompt is averaged with the prompt's last.
`refresh` > 1 is not in the paper. Cost: a mean key a sentence, and as many products;
`keys_read` leaves them out.
"""

from collections.abc import Sequence

import jax.numpy as jnp
from jax import lax

from decoding import base
from decoding.cache_eviction import budgets
from decoding.cache_reading import selected
from decoding.catalogue import Card
from models.errors import MethodError

MARKS = (b".", b"!", b"?", b"\n\n", "。".encode(), "！".encode(), "？".encode())

CARD = Card(
    paper="arXiv 2504.00970",
    guarantee=base.LOSSY,
    family="sparse reads",
    needs=("tokenizer",),
    sources=("zhu2025sentencekv",),
    examples={
        "budget": 16,
        "sinks": 2,
        "recent": 4,
        "window": 4,
        "ends": (1, 4),
        "longest": 8,
        "sentences": 32,
    },
)


def policy(
    tokenizer=None,
    budget: budgets.Budget = 1024,
    factor: float = 3.0,
    sinks: int = 32,
    recent: int = 32,
    window: int = 32,
    kernel: int = 7,
    ends: Sequence[int] | None = None,
    longest: int = 128,
    sentences: int = 512,
    full: int = 0,
    refresh: int = 1,
) -> base.CachePolicy:
    """Read the sentences whose mean keys fit the mean query best.

    Args:
        tokenizer: the target's.
        budget: slots that a KV head reads, or a share of the prompt.
        factor: how many times the budget of the prompt's tokens take part.
        sinks: first tokens, which are always read.
        recent: tokens before the sentence in progress, which are always read.
        window: the prompt's last queries, which choose what takes part.
        kernel: neighbours of a token whose maximum counts; odd.
        ends: tokens that end a sentence. None: those with punctuation in them.
        longest: tokens after which a sentence ends in any case.
        sentences: sentences that are told apart.
        full: the first layers, which read all slots.
        refresh: 1: every node selects; more: tokens that a list serves.

    Raises:
        MethodError: a number out of range, or neither `ends` nor a tokenizer.
    """
    least = {"sinks": sinks, "recent": recent, "full": full}
    positive = {"window": window, "longest": longest, "sentences": sentences}
    if min(least.values()) < 0 or min(positive.values()) < 1 or kernel % 2 == 0:
        raise MethodError(
            f"{least | positive}, kernel={kernel}: use at least 0 and 1, an odd kernel"
        )
    if factor < 1:
        raise MethodError(f"factor={factor}: use at least 1")
    if isinstance(budget, int) and budget <= sinks + recent:
        raise MethodError(
            f"budget={budget}: use more than the {sinks + recent} slots of sinks and "
            "recent tokens"
        )
    if ends is None:
        if tokenizer is None:
            raise MethodError("ends: name the tokens that end a sentence")
        pieces = enumerate(tokenizer.token_bytes())
        ends = [i for i, piece in pieces if any(mark in piece for mark in MARKS)]
    stops = jnp.asarray(sorted(ends), jnp.int32)

    def begin(layer, prefix):
        return jnp.maximum(layer.extra["opened"][:, 0] - recent, 0)

    def mean_query(layer, asked):
        """Return the mean query of every node's sentence, float32[B, N, G, R, d]."""
        held = layer.queries
        places = jnp.arange(held.pos.shape[1], dtype=jnp.int32)
        at = (asked.prefix[:, None] + places)[:, None]
        seen = jnp.take_along_axis(asked.seen, at, 2, mode="fill", fill_value=False)
        weight = seen.astype(jnp.float32)
        new = jnp.einsum("bnp,bpgrd->bngrd", weight, held.q.astype(jnp.float32))
        count = weight.sum(-1)[:, :, None] + layer.extra["count"][:, None]
        return (new + layer.extra["sum"][:, None]) / count[..., None, None]

    def score(layer, asked):
        q = asked.q if refresh > 1 else mean_query(layer, asked)
        counts = layer.extra["tokens"]
        means = layer.extra["keys"] / jnp.maximum(counts, 1)[..., None]
        s = jnp.einsum("bngrd,bgzd->bgrnz", q, means).max(2)
        order = jnp.arange(sentences, dtype=jnp.int32)
        last = order == sentences - 1  # all that are not told apart
        complete = ((order < layer.extra["current"][..., None]) | last) & (counts > 0)
        s = jnp.where(complete[:, :, None], s, -jnp.inf)
        # Sentences are compared as rounded, so that those of equal value stay whole.
        s = s.astype(jnp.bfloat16).astype(jnp.float32)
        which = layer.notes["sentence"][:, :, None]
        of_slot = jnp.take_along_axis(s, which, axis=3, mode="clip")
        slots = jnp.arange(layer.capacity, dtype=jnp.int32)
        takes_part = layer.notes["takes_part"][:, :, None]
        of_slot = jnp.where(takes_part, of_slot, -jnp.inf)
        of_slot = jnp.where(slots < sinks, jnp.inf, of_slot)
        old = slots < begin(layer, asked.prefix)[:, None]
        old = (old[:, None] & asked.seen)[:, None]
        return jnp.where(old, of_slot, -jnp.inf)

    def learn(layer, about):
        """Number the committed tokens' sentences, and add up keys and queries."""
        extra = layer.extra
        index = jnp.arange(about.tokens.shape[1], dtype=jnp.int32)
        slots = about.before[:, None] + index
        new = slots < about.length[:, None]
        is_end = new & (about.tokens[..., None] == stops).any(-1)

        def step(carry, x):
            current, opened, kept = carry
            slot, new, is_end, i = x
            ends = is_end | (new & (slot + 1 - opened >= longest))
            after = jnp.where(ends, slot + 1, opened)
            number = jnp.minimum(current + ends, sentences - 1)
            return (number, after, jnp.where(ends, i + 1, kept)), current

        opened, current = extra["opened"][:, 0], extra["current"][:, 0]
        rows = (slots.T, new.T, is_end.T, index)
        start = (current, opened, jnp.zeros_like(opened))
        (current, opened, since), which = lax.scan(step, start, rows)
        which = jnp.broadcast_to(
            which.T[:, None], (*extra["current"].shape, len(index))
        )
        batch, groups = (jnp.arange(n) for n in which.shape[:2])
        at = batch[:, None, None], groups[None, :, None]
        to = jnp.where(new, slots, layer.capacity + index)[:, None]
        put = {"mode": "drop", "unique_indices": True}
        notes = {
            "sentence": layer.notes["sentence"].at[(*at, to)].set(which, **put),
            "takes_part": layer.notes["takes_part"].at[(*at, to)].set(True, **put),
        }
        spread = lambda x: jnp.broadcast_to(x[:, None], extra["current"].shape)
        closes = (about.root[:, None] == stops).any(-1)
        closes = jnp.where(new.any(1), closes, extra["closes"][:, 0])
        state = {"current": current, "opened": opened, "closes": closes}
        extra = {**extra, **{name: spread(x) for name, x in state.items()}}
        layer = layer.replace(notes=notes, extra=extra)
        if not layer.is_read:
            return layer
        k = layer.store.read()[0].at[(*at, slots[:, None])].get(mode="clip")
        layer = _added(layer, which, k, jnp.broadcast_to(new[:, None], which.shape))
        # The queries behind the last end.
        q = layer.queries.q[:, : len(index)].astype(jnp.float32)
        short = q.shape[1]
        counts = (new & (index >= since[:, None]))[:, :short].astype(jnp.float32)
        ended = (since > 0)[:, None]
        sums = jnp.einsum("bp,bpgrd->bgrd", counts, q)
        total = jnp.where(ended[..., None, None], 0.0, extra["sum"]) + sums
        number = jnp.where(ended, 0.0, extra["count"]) + counts.sum(1)[:, None]
        return layer.replace(extra={**layer.extra, "sum": total, "count": number})

    def ended(layer, length):
        """Let a part of the prompt take part, and add up its keys by sentence."""
        q, tokens = layer.asked(length)
        k, held = layer.store.read()[0], layer.tokens(length)
        sums = layer.received(q, jnp.where(tokens < 0, 0.0, 1.0), tokens, held)
        shape = (1, 1, kernel)
        sums = lax.reduce_window(sums, -jnp.inf, lax.max, shape, (1, 1, 1), "SAME")
        newest = held >= (length - window)[:, None, None]
        sums = jnp.where(newest, jnp.inf, sums.astype(jnp.bfloat16).astype(jnp.float32))
        sums = jnp.where(held >= 0, sums, -jnp.inf)
        rank = jnp.argsort(jnp.argsort(-sums, axis=-1, stable=True), axis=-1)
        most = jnp.floor(factor * layer.budget).astype(jnp.int32)
        takes_part = (held >= 0) & (rank < most[:, None, None])
        layer = layer.replace(notes={**layer.notes, "takes_part": takes_part})
        layer = _added(layer, layer.notes["sentence"], k, takes_part)
        last = jnp.argmax(tokens, 1)[:, None, None, None]
        q = jnp.take_along_axis(q, last, 1)[:, 0].astype(jnp.float32)
        any_ = (tokens >= 0).any(1)
        shape = layer.extra["sum"].shape
        total = jnp.where(any_[:, None, None, None], q.reshape(shape), 0.0)
        count = jnp.broadcast_to(any_[:, None], layer.extra["count"].shape)
        more = {"sum": total, "count": count.astype(jnp.float32)}
        return layer.replace(extra={**layer.extra, **more})

    def query(layer):
        count = jnp.maximum(layer.extra["count"], 1.0)[..., None, None]
        return (layer.extra["sum"] / count)[:, None]

    def room(layer, cache, tokens):
        """Return the tokens up to the end of the sentence: nodes behind it differ."""
        # The root is committed first, and the last of `tokens` not yet.
        is_end = (tokens[..., None] == stops).any(-1)
        first = jnp.where(is_end.any(1), jnp.argmax(is_end, 1), tokens.shape[1]) + 2
        first = jnp.where(layer.extra["closes"][:, 0], 1, first)
        left = layer.extra["opened"][:, 0] + longest - cache.length
        most = layer.queries.pos.shape[1] - 1
        return jnp.maximum(jnp.minimum(jnp.minimum(first, left), most), 1)

    heads = lambda slots, heads: (jnp.float32, heads)
    keys = lambda slots, heads: (jnp.float32, (sentences, heads[1]))
    rule = selected.Rule(
        score,
        notes={"sentence": (jnp.int32, ()), "takes_part": (bool, ())},
        extra={
            "keys": keys,
            "tokens": (jnp.float32, (sentences,)),
            "sum": heads,
            "count": (jnp.float32, ()),
            "current": (jnp.int32, ()),
            "opened": (jnp.int32, ()),
            "closes": (bool, ()),  # the next token to be committed ends a sentence
        },
        learn=learn,
        ended=ended,
        begin=begin,
        span=lambda sizes: recent + longest,
        reserved=recent,
        prompt_queries=window,
        query=query,
        room=room,
    )
    return selected.policy(rule, budget, selected.own(full), refresh)


def _added(layer, which, k, counts):
    """Add keys k [B, G, M, d] to the sums of their sentences int32[B, G, M]."""
    batch, groups = (jnp.arange(n) for n in which.shape[:2])
    at = batch[:, None, None], groups[None, :, None], which
    weight = counts.astype(jnp.float32)
    sums = layer.extra["keys"].at[at].add(weight[..., None] * k.astype(jnp.float32))
    tokens = layer.extra["tokens"].at[at].add(weight)
    return layer.replace(extra={**layer.extra, "keys": sums, "tokens": tokens})
