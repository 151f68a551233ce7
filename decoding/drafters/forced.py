"""Jump-forward: text that the grammar determines is drafted at once, beside a drafter.

Zheng et al., *SGLang: Efficient Execution of Structured Language Model Programs*, 2024,
arXiv 2312.07104, section 4, whose compressed automaton appends such text unverified.
Here it is a draft. In a grammar's state behind which the bytes b_1 .. b_n must follow,
with c(.) the tokenizer's own spelling (`automata/forced_text.py`),

    chain = the first `tokens` of c(b_1 .. b_n)

before the tree of `inner`, whose nodes it shares where they agree: a block that is cut
to fewer nodes keeps first siblings longest. Where `inner` drafts
a chain, or by samples whose law counts, a row with forced text has that alone. The
verifier decides: a model may spell the text otherwise, and the law stays that of plain
decoding under the grammar. Without a grammar this is `inner`.

The tokens lie in tables by state: nothing runs on the host.

Cost per call: that of `inner`, and a block wider by `tokens` nodes in rounds with
forced text. What `inner` missed in these it reads like a pause's tokens.
"""

from dataclasses import replace
from typing import Any

import jax
import jax.numpy as jnp
from flax import struct
from jax import Array, lax

from decoding import base, tree
from decoding.catalogue import Card
from decoding.drafters import plain, rasd
from decoding.tree_building import lookup_or_model, replaced_drafts
from models.errors import MethodError

CARD = Card(
    paper="SGLang, arXiv 2312.07104",
    guarantee=base.LAW,
    family="training-free",
    parts=("inner",),
    sources=("zheng2024sglang",),
)


@struct.dataclass
class Row:
    """The inner drafter's state, and where the last draft had forced text."""

    inner: Any
    forced: Array  # bool[B]


def drafter(inner: base.Drafter | None = None, tokens: int = 8) -> base.Drafter:
    """Draft forced text beside `inner`; None: beside plain decoding.

    Args:
        inner: drafts the rest; it must be able to miss rounds (`Drafter.pauses`).
        tokens: of forced text that are drafted at once, at most.

    Raises:
        MethodError: `tokens` below 1, or an `inner` that may not miss rounds.
    """
    if tokens < 1:
        raise MethodError(f"tokens={tokens}: draft at least 1 token")
    if inner is None:
        inner = plain.drafter()._replace(reads_text=True)
    if not (inner.pauses or inner.reads_text):
        raise MethodError(
            "forced text would stand in the place of drafts that this inner drafter "
            "must see verified: use drafters/token_recycling, a head, or a draft model"
        )
    writer = inner

    def draft(keys, ctx: base.Context, state: base.State):
        seen = replaced_drafts.behind(writer, ctx)
        grown, after, cache = writer.draft(keys, seen, _inner(writer, state))
        values, count = _suggested(ctx, tokens)
        nodes = _beside(grown, ctx.root, values, count, size, depth)
        return nodes, _outer(writer, after, count > 0), cache

    def init(ctx: base.Context) -> base.State:
        none = jnp.zeros(ctx.length.shape, bool)
        return _outer(writer, writer.init(ctx), none)

    def observe(ctx: base.Context, state: base.State, outcome: base.Outcome):
        if writer.reads_text:
            return writer.observe(ctx, state, outcome)
        own, forced = _inner(writer, state), state.row.forced
        own = replaced_drafts.observe(writer, ctx, own, outcome, forced)
        return _outer(writer, own, forced)

    depth = max(writer.depth, tokens)
    is_chain = writer.nodes == writer.depth + 1
    size = depth + 1 if is_chain else writer.nodes + tokens
    return writer._replace(
        init=init,
        draft=draft,
        observe=observe,
        nodes=size,
        depth=depth,
        blocks=(*writer.blocks, writer.nodes),
        reads_parts=writer.reads_parts and writer.reads_text,
    )


def _inner(writer: base.Drafter, state: base.State) -> base.State:
    """Return the inner drafter's state; one that reads texts alone has no other."""
    return state if writer.reads_text else base.State(state.row.inner, state.shared)


def _outer(writer: base.Drafter, state: base.State, forced: Array) -> base.State:
    if writer.reads_text:
        return state
    return base.State(Row(state.row, forced), state.shared)


def _suggested(ctx: base.Context, most: int) -> tuple[Array, Array]:
    """Return the grammar's tokens int32[B, most], and their count int32[B]."""
    rows = ctx.length.shape[0]
    if ctx.law.forced is None:
        return jnp.zeros((rows, most), jnp.int32), jnp.zeros(rows, jnp.int32)
    values, count = jax.vmap(ctx.law.forced, in_axes=(base.ROWS,))(ctx.transform)
    return jnp.pad(values, ((0, 0), (0, most)))[:, :most], jnp.minimum(count, most)


def _beside(
    grown: base.TokenTree,
    root: Array,
    values: Array,
    count: Array,
    size: int,
    depth: int,
) -> base.TokenTree:
    """Put forced text beside a tree, or in its place, in `size` nodes."""
    sampled = grown.draw in (base.IID, base.NO_REPLACE)
    if not (sampled or grown.linear):
        nodes = rasd.join(grown, values[:, None], count[:, None])
        there = nodes.kind == base.CANDIDATE
        about = nodes.tokens, nodes.parents, there, values, count
        order = jax.vmap(_path_first)(*about)
        return replace(tree.select(nodes, order), depth=depth)
    chain = tree.chain(root, values, count)
    jump, rest = (lookup_or_model.wider(nodes, size) for nodes in (chain, grown))
    return lookup_or_model.either(count > 0, jump, rest, depth)


def _path_first(tokens, parents, there, values, count) -> Array:
    """★ Order nodes so that a path of theirs comes first, behind the root, int32[N]."""

    def step(at: Array, step: tuple[Array, Array]) -> tuple[Array, Array]:
        token, live = step
        child = there & (parents == at) & (tokens == token)
        at = jnp.where(live, jnp.argmax(child), at).astype(jnp.int32)
        return at, at

    live = jnp.arange(values.shape[0]) < count
    path = lax.scan(step, jnp.int32(0), (values, live))[1]
    off = jnp.ones(there.shape, bool).at[path].set(False).at[0].set(False)
    return jnp.argsort(off, stable=True).astype(jnp.int32)
