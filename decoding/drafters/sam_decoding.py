"""SAM-Decoding: copy after a long match of the text's end, else draft otherwise.

Hu, Wang, Zhang, Zhang, Li, Chen, Zhang, *SAM Decoding: Speculative Decoding via Suffix
Automaton*, 2025, arXiv 2411.10666. With m(p) the number of the text's last tokens that
also end at place p, of the text before its end or of a corpus,

    match(source) = max_p m(p)
    p(source)     = the first place of the greatest m of those with more than `size`
                    tokens of the source after them; of none, the first with m >= 1
    source        = the corpus,  if match(corpus) - bias > match(text)
                    the text     else
    draft         = the `size` tokens after p(source),      if its match >= least
                    the tree of `inner`                     else

match(corpus) counts less `bias` there, too. `inner` is Token Recycling, or any drafter
that may miss rounds: in the paper heads of EAGLE or EAGLE-2 (`drafters/eagle` under a
topology), here also a draft model. It runs unless all rows copy.

The paper walks two suffix automata to the same places: a state keeps the first end of
its suffixes, and gives way to its link, a shorter suffix, while too few tokens follow.
Here m is compared with the text anew each round, and the corpus is searched in its
suffix array, on the device. size, least, bias → the arguments, 40, 5 and 5 in the
authors' code, whose draft counts the root.

The corpus is `datastore`, a directory as `drafters/rest` has (python -m
experiments.datastore). It is put on the device once a request, as `Shared.corpus`: 8
bytes a token. In it the authors' code keeps to the longest match, whatever follows;
places differ in its last `size` tokens alone.

Deviations from the paper: matches beyond `longest` tokens are alike. A draft from the
corpus ends with its stored text, and a match that nothing follows there is none; the
code goes on with the end-of-text token and the next text. Rows of a batch choose for
themselves. A copy has one-hot laws, so that rejection schemes accept its tokens with
probability p.

Cost per call: a comparison of [B, T] integers for each token of the longest match;
where a row does not copy, that of `inner` (of Token Recycling no model call). With a
corpus of M tokens 2 log2(longest) searches, each of 2 log2(M) steps and of the least of
2 BLOCK + M / BLOCK integers.
"""

import functools
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from flax import struct
from jax import Array

from decoding import base, tree
from decoding.catalogue import Card
from decoding.drafters import token_recycling
from decoding.text_lookup import suffix_array, suffix_match
from decoding.tree_building import lookup_or_model, replaced_drafts
from models.errors import MethodError

CARD = Card(
    paper="SAM-Decoding, arXiv 2411.10666",
    guarantee=base.LAW,
    family="training-free",
    data=("datastore",),
    parts=("inner",),
    needs=("vocab_size",),
    examples={"size": 5, "least": 2, "bias": 1, "choices": ((0,), (1,), (0, 0))},
    sources=("hu2025sam",),
)


@struct.dataclass
class Row:
    """The inner drafter's state, and whether the draft is a copy."""

    inner: Any
    copied: Array  # bool[B]


@struct.dataclass
class Shared:
    """The inner drafter's shared state, and the corpus."""

    inner: Any
    corpus: Any  # `suffix_array.FirstPlaces`; (): none


class Match(NamedTuple):
    """The longest match of a source, and what follows the place that is copied."""

    length: Array  # int32[B]; 0: none
    tokens: Array  # int32[B, size]
    num: Array  # int32[B]: valid tokens


def drafter(
    vocab_size: int,
    size: int = 39,
    least: int = 5,
    longest: int = 64,
    k: int = 8,
    choices: tuple[tuple[int, ...], ...] = token_recycling.CHOICES,
    datastore: str = "",
    bias: int = 5,
    inner: base.Drafter | None = None,
) -> base.Drafter:
    """Copy at most `size` tokens after a match of `least` or more.

    Args:
        vocab_size: V of the target; filled in.
        size: tokens to copy.
        least: of a match.
        longest: tokens that are compared at most.
        k, choices: of `drafters/token_recycling`.
        datastore: directory of the corpus; "": the text alone is searched.
        bias: tokens that a match of the corpus counts less.
        inner: drafts where nothing is copied; it must be able to miss rounds
            (`Drafter.pauses`). None: Token Recycling.

    Raises:
        MethodError: a number out of its range, a datastore that cannot be read, or an
            `inner` that may not miss rounds.
    """
    if size < 1 or not 1 <= least <= longest:
        raise MethodError(
            f"size={size}, least={least}, longest={longest}: copy at least 1 token "
            "after a match of 1 to `longest` tokens"
        )
    if bias < 0:
        raise MethodError(f"bias={bias}: use 0 tokens or more")
    if datastore and longest > suffix_array.DEPTH:
        raise MethodError(
            f"longest={longest}: a datastore is sorted by {suffix_array.DEPTH} tokens, "
            "so compare no more"
        )
    if inner is None:
        inner = token_recycling.drafter(vocab_size, k, choices)
    if not (inner.pauses or inner.reads_text):
        raise MethodError(
            "copies would stand in the place of drafts that this inner drafter must "
            "see verified: use drafters/token_recycling, a head, or a draft model"
        )
    writer = inner
    nodes, depth = max(size + 1, writer.nodes), max(size, writer.depth)
    corpus: Any = ()
    if datastore:
        corpus = suffix_array.first_places(suffix_array.load(datastore))

    def init(ctx: base.Context) -> base.State:
        first, none = writer.init(ctx), jnp.zeros(ctx.length.shape, bool)
        held = jax.tree.map(jnp.array, corpus)  # copied: states are updated in place
        return base.State(Row(first.row, none), Shared(first.shared, held))

    def draft(keys, ctx: base.Context, state: base.State):
        held = state.shared.corpus
        last = suffix_match.last_tokens(ctx.tokens, ctx.length, longest)
        match = _in_text(ctx, last, size)
        if held:
            stored = _in_corpus(held, last, size)
            match = _better(match, stored._replace(length=stored.length - bias))
        copied = match.length >= least
        copies = tree.chain(ctx.root, match.tokens, jnp.where(copied, match.num, 0))
        own = base.State(state.row.inner, state.shared.inner)
        grown, own, cache = replaced_drafts.draft(writer, keys, ctx, own, copied)
        fused = lookup_or_model.either(
            copied,
            lookup_or_model.wider(copies, nodes),
            lookup_or_model.wider(grown, nodes),
            depth,
        )
        return fused, base.State(Row(own.row, copied), Shared(own.shared, held)), cache

    def observe(ctx: base.Context, state: base.State, outcome: base.Outcome):
        row, shared = state.row, state.shared
        own = base.State(row.inner, shared.inner)
        own = replaced_drafts.observe(writer, ctx, own, outcome, row.copied)
        row, shared = row.replace(inner=own.row), shared.replace(inner=own.shared)
        return base.State(row, shared)

    return writer._replace(
        init=init,
        draft=draft,
        observe=observe,
        nodes=nodes,
        depth=depth,
        blocks=(*writer.blocks, writer.nodes, size + 1),
        reads_parts=writer.reads_parts and writer.reads_text,
    )


def _in_text(ctx: base.Context, last: Array, size: int) -> Match:
    """Match the last tokens with the text before them."""
    found = suffix_match.matches(ctx.tokens[:, None], ctx.length[:, None], last)[:, 0]
    index = jnp.arange(found.shape[1], dtype=jnp.int32)
    behind = ctx.length[:, None] - 2 - index  # the root is not counted
    early = jnp.where(behind > size, found, 0)
    first = jnp.argmax(found > 0, 1)
    end = jnp.where(early.max(1) > 0, jnp.argmax(early, 1), first)
    after = suffix_match.continuation(ctx.tokens, ctx.length, end, size)
    return Match(found.max(1), *after)


@functools.partial(jax.jit, static_argnums=2)
def _in_corpus(corpus: suffix_array.FirstPlaces, last: Array, size: int) -> Match:
    """Match the last tokens with the corpus; where nothing follows: no match."""
    tokens = corpus.store.tokens
    end_of_all = tokens.shape[0] - 1
    find = jax.vmap(suffix_array.first_match, in_axes=(None, 0, None))
    length, _ = find(corpus, last, end_of_all)
    early, end = find(corpus, last, end_of_all - 1 - size)
    _, first = find(corpus, last[:, :1], end_of_all)
    end = jnp.where(early > 0, end, first)
    at = end[:, None] + 1 + jnp.arange(size, dtype=jnp.int32)
    after = tokens.at[at].get(mode="fill", fill_value=suffix_array.END)
    count = jnp.cumprod(after != suffix_array.END, 1).sum(1).astype(jnp.int32)
    return Match(jnp.where(count > 0, length, 0), jnp.maximum(after, 0), count)


def _better(text: Match, stored: Match) -> Match:
    """Choose the longer match in each row; the text's own of equals."""
    wins = stored.length > text.length
    length = jnp.where(wins, stored.length, text.length)
    tokens = jnp.where(wins[:, None], stored.tokens, text.tokens)
    return Match(length, tokens, jnp.where(wins, stored.num, text.num))
