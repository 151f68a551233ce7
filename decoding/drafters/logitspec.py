"""LogitSpec: the logits that chose a token also guess the one after it; look both up.

Liu, Lv, Li, Gao, Sun, *LogitSpec: Accelerating Retrieval-based Speculative Decoding via
Next Next Token Speculation*, 2025, arXiv 2507.01449. The root x was chosen from logits
l, whose other likely tokens are guesses of the token after x. With continuation(y) what
followed the last n <= n_max tokens of the text with y behind it, the greatest n that
occurs and of its places the last with most tokens behind it,

    first branch      the continuation of the text, `first` tokens at most
    branch of rank r  g_r, then its continuation: 4 tokens for r <= 8, 3 for r <= 32,
                      else 1;  g_r is the r-th token of l, from 0, x itself left out

until there are `nodes` nodes, the root among them. l → `State.row`, its best ids;
n_max, first → the arguments.

Deviations from the paper: a guess that begins the first branch is left out, since a
second child with its token is never reached. Texts before their first round have no
logits, and draft the first branch alone.

Cost per call: a top-k over V, and for each of the guesses a search of the text, [B, k,
T] integers; no model call."""

import jax.numpy as jnp
import numpy as np
from jax import Array

from decoding import base, tree, vocab
from decoding.catalogue import Card
from decoding.text_lookup import suffix_match
from models.errors import MethodError

CARD = Card(
    paper="LogitSpec, arXiv 2507.01449",
    guarantee=base.LAW,
    family="training-free",
    needs=("vocab_size",),
    examples={"nodes": 12, "first": 4},
    sources=("liu2025logitspec",),
)

LENGTHS = ((8, 4), (32, 3))  # up to a rank, tokens of its branch; 1 beyond


def drafter(
    vocab_size: int, nodes: int = 64, first: int = 20, n_max: int = 3
) -> base.Drafter:
    """Look up the text and what its last logits guess.

    Args:
        vocab_size: V of the target; filled in.
        nodes: of a round, root included.
        first: tokens of the first branch at most.
        n_max: last tokens that are looked up at most.
    """
    if min(first, n_max) < 1 or nodes < 2:
        raise MethodError(
            f"nodes={nodes}, first={first}, n_max={n_max}: use at least 2 nodes, and 1 "
            "of the others"
        )
    guesses = min(nodes, vocab_size)
    lengths = [
        next((size for most, size in LENGTHS if r <= most), 1) for r in range(guesses)
    ]
    deep = max(first, *lengths)
    shape = _Star(first, lengths)

    def init(ctx: base.Context) -> base.State:
        none = jnp.full((ctx.tokens.shape[0], guesses), -1, jnp.int32)
        return base.State(none)

    def draft(keys, ctx: base.Context, state: base.State):
        ids: Array = state.row
        own, more = continued(ctx, ctx.root[:, None], n_max, first, False)
        rest, behind = continued(ctx, ids, n_max, first, True)
        rest = rest[..., : max(lengths)]
        begins = (own[:, :, :1] == ids[:, None]) & (more[:, :, None] > 0)
        live = (ids >= 0) & (ids != ctx.root[:, None]) & ~begins[:, 0]
        branches = jnp.concatenate([ids[..., None], rest[..., :-1]], -1)
        most = jnp.minimum(behind + 1, jnp.asarray(lengths, jnp.int32))
        whole = shape.tree(
            ctx.root, own[:, 0], more[:, 0], branches, jnp.where(live, most, 0), deep
        )
        there = whole.kind == base.CANDIDATE
        order = jnp.cumsum(there, 1) - 1
        rows = jnp.arange(there.shape[0])[:, None]
        kept = jnp.full((there.shape[0], nodes), -1, jnp.int32)
        place = jnp.where(there & (order < nodes), order, nodes)
        index = jnp.broadcast_to(
            jnp.arange(there.shape[1], dtype=jnp.int32), there.shape
        )
        kept = kept.at[rows, place].set(index, mode="drop")
        return tree.select(whole, kept), state, ctx.cache

    def observe(ctx: base.Context, state: base.State, outcome: base.Outcome):
        if outcome.target.logits is None:
            return state
        at = tree.last_node(outcome.verdict)
        ids = vocab.top_k(tree.pick(outcome.target.logits, at), guesses)[1]
        moved = outcome.active & (outcome.verdict.count >= 0)
        return base.State(jnp.where(moved[:, None], ids, state.row))

    return base.Drafter(
        init,
        draft,
        observe,
        nodes,
        deep,
        prompt_logits=True,
        pauses=True,
        reads_text=True,
        reads_parts=True,
    )


def continued(
    ctx: base.Context, last: Array, n_max: int, size: int, beyond: bool
) -> tuple[Array, Array]:
    """Look up the text with each of `last` int32[B, k] at its end.

    Where `beyond`, the tokens of `last` stand behind the text; else they are its last.

    Returns:
        The tokens int32[B, k, size] that followed, and how many there are, int32[B, k].
    """
    tokens, length = ctx.tokens, ctx.length
    width = tokens.shape[1]
    index = jnp.arange(width, dtype=jnp.int32)
    before = suffix_match.suffix_matches(tokens, length, n_max - beyond or 1)
    if beyond:
        # One place later, `last` itself is the last token of a match.
        shifted = jnp.pad(before, ((0, 0), (1, 0)))[:, :width]
        shifted = jnp.where(n_max > 1, shifted, 0)
        inside = (tokens[:, None] == last[..., None]) & (index < length[:, None] - 1)[
            :, None
        ]
        count = jnp.where(inside, shifted[:, None] + 1, 0)
    else:
        count = jnp.broadcast_to(before[:, None], (*last.shape, width))
    follow = jnp.clip(length[:, None] - 1 - index, 0, size)[:, None]
    # By matched tokens, then by what follows, then the latest.
    value = (count * (size + 1) + follow) * width + index
    at = jnp.argmax(jnp.where(count > 0, value, -1), -1).astype(jnp.int32)
    found = jnp.take_along_axis(count, at[..., None], -1)[..., 0] > 0
    after = at[..., None] + 1 + jnp.arange(size, dtype=jnp.int32)
    rows = jnp.arange(tokens.shape[0])[:, None, None]
    following = tokens.at[rows, after].get(mode="clip")
    left = jnp.clip(length[:, None] - 1 - at, 0, size)
    return following, jnp.where(found, left, 0)


class _Star:
    """The tree of all branches: the first, then those of the guesses, each a chain."""

    def __init__(self, first: int, lengths: list[int]):
        self.first, self.lengths = first, lengths
        parents, branch, step = [-1], [-1], [0]
        for number, size in enumerate([first, *lengths]):
            for i in range(size):
                parents.append(len(parents) - 1 if i else 0)
                branch.append(number)
                step.append(i)
        self.parents = np.asarray(parents, np.int32)
        self.branch = np.maximum(np.asarray(branch, np.int32), 0)
        self.step = np.asarray(step, np.int32)

    def tree(self, root, own, more, branches, most, depth: int) -> base.TokenTree:
        """Fill in tokens and lengths int32[B] and int32[B, k] of the branches."""
        size = max(own.shape[-1], branches.shape[-1])
        fit = lambda x: jnp.pad(x, ((0, 0), (0, 0), (0, size - x.shape[-1])))
        every = jnp.concatenate([fit(own[:, None]), fit(branches)], 1)
        count = jnp.concatenate([more[:, None], most], 1)
        tokens = every[:, self.branch, self.step].at[:, 0].set(root)
        there = jnp.asarray(self.step < count[:, self.branch]).at[:, 0].set(True)
        return base.TokenTree(
            tokens,
            jnp.broadcast_to(self.parents, tokens.shape),
            jnp.where(there, base.CANDIDATE, base.PAD).astype(jnp.int32),
            depth=depth,
        )
