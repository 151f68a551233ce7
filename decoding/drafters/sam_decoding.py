"""SAM-Decoding: copy after a long match of the text's end, else Token Recycling's tree.

Hu, Wang, Zhang, Zhang, Li, Chen, Zhang, *SAM Decoding: Speculative Decoding via Suffix
Automaton*, 2025, arXiv 2411.10666. With m(p) the number of the text's last tokens that
also end at an earlier place p,

    match  = max_p m(p)
    p      = the first place of the greatest m of those with more than `size` tokens
             between them and the root; of none, the first with m >= 1
    draft  = the `size` tokens after p,              if match >= least
             the tree of `drafters/token_recycling`  else

The paper walks a suffix automaton to the same places: a state keeps the first end of
its suffixes, and gives way to its link, a shorter suffix, while too few tokens follow.
Here m is compared anew each round, on the device. size, least → the arguments, 40 and 5
in the authors' code, whose draft counts the root.

Deviations from the paper: matches beyond `longest` tokens are alike; no automaton of a
corpus (`drafters/rest` looks one up). Its fallbacks EAGLE and EAGLE-2 are not offered.

Cost per call: a comparison of [B, T] integers for each token of the longest match, and
Token Recycling's draft; no model call.
"""

import jax.numpy as jnp

from decoding import base, tree
from decoding.catalogue import Card
from decoding.drafters import token_recycling
from decoding.text_lookup import suffix_match
from decoding.tree_building import lookup_or_model
from models.errors import MethodError

CARD = Card(
    paper="SAM-Decoding, arXiv 2411.10666",
    guarantee=base.LAW,
    family="training-free",
    needs=("vocab_size",),
    examples={"size": 5, "least": 2, "choices": ((0,), (1,), (0, 0))},
    sources=("hu2025sam",),
)


def drafter(
    vocab_size: int,
    size: int = 39,
    least: int = 5,
    longest: int = 64,
    k: int = 8,
    choices: tuple[tuple[int, ...], ...] = token_recycling.CHOICES,
) -> base.Drafter:
    """Copy at most `size` tokens after a match of `least` or more.

    Args:
        vocab_size: V of the target; filled in.
        size: tokens to copy.
        least: of a match.
        longest: tokens that are compared at most.
        k, choices: of `drafters/token_recycling`.
    """
    if size < 1 or not 1 <= least <= longest:
        raise MethodError(
            f"size={size}, least={least}, longest={longest}: copy at least 1 token "
            "after a match of 1 to `longest` tokens"
        )
    other = token_recycling.drafter(vocab_size, k, choices)
    nodes, depth = max(size + 1, other.nodes), max(size, other.depth)

    def draft(keys, ctx: base.Context, state: base.State):
        grown, state, cache = other.draft(keys, ctx, state)
        last = suffix_match.last_tokens(ctx.tokens, ctx.length, longest)
        found = suffix_match.matches(ctx.tokens[:, None], ctx.length[:, None], last)
        found = found[:, 0]
        index = jnp.arange(found.shape[1], dtype=jnp.int32)
        behind = ctx.length[:, None] - 2 - index  # the root is not counted
        early = jnp.where(behind > size, found, 0)
        first = jnp.argmax(found > 0, 1)
        end = jnp.where(early.max(1) > 0, jnp.argmax(early, 1), first)
        tokens, count = suffix_match.continuation(ctx.tokens, ctx.length, end, size)
        copied = found.max(1) >= least
        copies = tree.chain(ctx.root, tokens, jnp.where(copied, count, 0))
        fused = lookup_or_model.either(
            copied,
            lookup_or_model.wider(copies, nodes),
            lookup_or_model.wider(grown, nodes),
            depth,
        )
        return fused, state, cache

    return other._replace(draft=draft, nodes=nodes, depth=depth)
