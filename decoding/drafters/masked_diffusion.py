"""A masked diffusion model drafts: it fills masks behind the text, several a forward.

Christopher et al., *Speculative Diffusion Decoding: Accelerating Language Generation
through Diffusion*, 2025, arXiv 2408.05636. With q the diffusion model, g
masks behind the text x, and r forwards of which the j-th begins at position a_j =
floor(j g / r),

    x_i ~ q(. | x, x_<a_j)      a_j < i <= a_{j+1},  j = 0 .. r - 1

g -> the topology's depth; r -> `forwards`. With r = 1 the laws of all depths are there
at once, and any topology grows a tree of them; with more, a chain.

Attention is block-causal in blocks of W positions, counted from position 0. So the keys
of a block that the text has filled never change, and are kept. A forward runs the block
in which the text ends and the masks; a round's first one also the blocks that the last
round filled.

Deviations: positions are filled from the left, where a sampler of diffusion models may
fill them in any order. A token that was drawn after one on its right is no sample of a
law given its left, which rejection needs to be exact.

Cost per call: r draft calls of g + W nodes, the first of 2 g + W + 1 if W tokens of the
text are new; (r + 1) g / 2 products with the head.
"""

from dataclasses import replace
from typing import Any

import jax
import jax.numpy as jnp
from flax import struct
from jax import Array, lax

from decoding import base
from decoding.caches import block_causal
from decoding.catalogue import Card
from decoding.denoising import forward
from decoding.denoising.canvas_policy import BLOCK_CAUSAL, SHIFTED
from decoding.denoising.schedule import Canvas, fresh
from decoding.tree_building import grow
from models.base import Block, LanguageModel
from models.errors import MethodError

CARD = Card(
    paper="SpecDiff, arXiv 2408.05636",
    guarantee=base.LAW,
    family="masked draft",
    needs=("draft", "topology", "vocab_size"),
    trained=True,
    sources=("christopher2025speculative",),
)

CHUNK = 64  # tokens of text that a forward reads, rounded down to whole blocks


@struct.dataclass
class Row:
    """One row's state."""

    cache: Any  # the draft model's; slots are positions
    clean: Array  # int32[B]: slots below hold keys of whole blocks of the text
    grown: Any  # the topology's


@struct.dataclass
class Work:
    """A round's drafts under construction; g masks, a buffer of S positions."""

    cache: Any
    clean: Array  # int32[B]
    tokens: Array  # int32[B, S]: the text, and the drafts behind it
    laws: Array  # float32[B, g, V]: raw
    calls: Array  # int32[]


def drafter(
    draft: LanguageModel,
    topology: base.Topology,
    vocab_size: int,
    forwards: int = 1,
    block: int = 0,
) -> base.Drafter:
    """Draft with `draft`, a diffusion model whose params are `params["draft"]`.

    Args:
        draft: filled in; its vocabulary is the target's, or that and the mask.
        topology: of the drafts; a chain unless `forwards` is 1.
        vocab_size: V of the target; filled in.
        forwards: r, from 1 to the topology's depth.
        block: W; 0: the draft model's `block_size`.

    Raises:
        MethodError: another model than a diffusion model, or numbers that do not fit.
    """
    config, depth = draft.config, topology.depth
    width = _checked(config, topology, forwards, block)
    shifted = int(config.alignment == SHIFTED)
    policy = block_causal.canvas_policy((BLOCK_CAUSAL,), width)
    starts = [j * depth // forwards for j in range(forwards)]
    most = 2 * depth + width + 1  # nodes of a forward: a round commits depth + 1
    chunk = max(CHUNK // width, 1) * width

    def fresh(length: Array) -> Array:
        """Return where the block begins that the text does not fill, int32[B]."""
        return jnp.maximum(length - shifted, 0) // width * width

    def run(params, cache, canvas: Canvas, begin, end, at: Array, widths) -> tuple:
        """Run positions [begin, end) int32[B]; return cache, logits at [B, M]."""
        place = jnp.arange(canvas.tokens.shape[-1], dtype=jnp.int32)
        runs = (place >= begin[:, None]) & (place < end[:, None])
        todo = forward.Plan(canvas, runs[:, None], at[:, None])
        cache, laws = forward.forward(draft, policy, params, cache, todo, widths)
        return cache, laws.logits[:, 0]

    def read(ctx: base.Context, cache, clean: Array, least: Array) -> tuple:
        """Read whole blocks of the text, at least its first `least` int32[B] tokens."""
        tokens = jnp.pad(ctx.tokens, ((0, 0), (0, depth)))
        end = fresh(ctx.length)
        nowhere = jnp.zeros((len(end), 1), jnp.int32)

        def body(carry: tuple) -> tuple:
            cache, clean, calls = carry
            stop = jnp.maximum(jnp.minimum(clean + chunk, end), clean)
            canvas = _canvas(tokens, ctx.length, end, clean)
            cache, _ = run(
                ctx.params["draft"], cache, canvas, clean, stop, nowhere, [chunk]
            )
            return cache, stop, calls + 1

        more = lambda carry: (carry[1] < least).any()
        return lax.while_loop(more, body, (cache, clean, jnp.int32(0)))

    def filled(ctx: base.Context, work: Work, level: int) -> Work:
        """Compute the laws of the depths from `level` on, given the drafts above."""
        end = ctx.length + depth
        canvas = _canvas(work.tokens, ctx.length + level, end, ctx.length)
        index = jnp.arange(level, depth, dtype=jnp.int32)
        at = jnp.maximum(ctx.length[:, None] + index - shifted, 0)
        widths = [depth + width] if level else [depth + width, most]
        cache, logits = run(
            ctx.params["draft"], work.cache, canvas, work.clean, end, at, widths
        )
        if config.mask_token < vocab_size:
            logits = logits.at[..., config.mask_token].set(-jnp.inf)
        return replace(
            work,
            cache=cache,
            clean=fresh(ctx.length),
            laws=work.laws.at[:, level:].set(logits[..., :vocab_size]),
            calls=work.calls + 1,
        )

    def init(ctx: base.Context) -> base.State:
        batch, size = ctx.tokens.shape
        dtype = jax.tree.leaves(ctx.params["draft"])[0].dtype
        cache = draft.init_cache(batch, size + depth, dtype)
        grown = topology.init(batch)
        row = Row(cache, jnp.zeros((batch,), jnp.int32), grown.row)
        return base.State(row, grown.shared)

    def draft_tree(keys, ctx: base.Context, state: base.State):
        row, batch = state.row, ctx.length.shape[0]
        own = base.State(row.grown, state.shared)

        def begin(work: Work) -> Work:
            least = ctx.length + depth - most
            cache, clean, calls = read(ctx, work.cache, work.clean, least)
            work = replace(work, cache=cache, clean=clean, calls=calls)
            return filled(ctx, work, 0)

        def call(work: Work, above: Any, nodes: Block, level: int) -> tuple:
            if forwards > 1:
                at = ctx.length + level - 1
                tokens = work.tokens.at[jnp.arange(batch), at].set(nodes.tokens[:, 0])
                work = replace(work, tokens=tokens)
            if level in starts:
                work = filled(ctx, work, level)
            shape = (*nodes.tokens.shape, vocab_size)
            return jnp.broadcast_to(work.laws[:, level, None], shape), (), work

        work = Work(
            row.cache,
            row.clean,
            jnp.pad(ctx.tokens, ((0, 0), (0, depth))),
            jnp.zeros((batch, depth, vocab_size), jnp.float32),
            jnp.int32(0),
        )
        if topology.more is None:
            work = begin(work)
        else:
            work = lax.cond(grow.grows(topology, own), begin, lambda w: w, work)
        nodes, grown, work = grow.sprout(
            call, work, ctx.length, ctx, topology, keys, own, work.laws[:, 0]
        )
        nodes = replace(nodes, calls=work.calls, slots=None)
        row = Row(work.cache, work.clean, grown.row)
        return nodes, base.State(row, grown.shared), ctx.cache

    def observe(ctx: base.Context, state: base.State, outcome: base.Outcome):
        row = state.row
        if outcome.is_prompt:
            cache, clean, _ = read(ctx, row.cache, row.clean, fresh(ctx.length))
            return base.State(Row(cache, clean, row.grown), state.shared)
        if outcome.is_pause:
            return state  # the next draft reads what was missed
        grown = topology.adapt(base.State(row.grown, state.shared), outcome)
        return base.State(replace(row, grown=grown.row), grown.shared)

    return base.Drafter(
        init,
        draft_tree,
        observe,
        topology.nodes,
        depth,
        blocks=topology.blocks,
        pauses=True,
    )


def _canvas(tokens: Array, known: Array, limit: Array, lo: Array) -> Canvas:
    """Make the canvas of one state a row, of which the first `known` are known."""
    size = tokens.shape[1]
    is_known = jnp.arange(size, dtype=jnp.int32) < known[:, None]
    canvas = fresh(tokens, is_known, lo, limit, (lo, limit), size)
    return jax.tree.map(lambda x: x[:, None], canvas)


def _checked(config: Any, topology: base.Topology, forwards: int, block: int) -> int:
    """Refuse what does not fit; return the block's positions."""
    if getattr(config, "mask_token", None) is None:
        raise MethodError(
            "the draft model has no mask_token, so it fills no masks: give a diffusion "
            "model, or draft with drafters/model"
        )
    if any(getattr(config, "windows", ())):
        raise MethodError(
            "the draft model has sliding windows, which are of causal attention: give "
            "a diffusion model with full attention"
        )
    if not 1 <= forwards <= topology.depth:
        raise MethodError(
            f"forwards={forwards} for {topology.depth} depths: use 1 to "
            f"{topology.depth}, or a deeper topology"
        )
    if forwards > 1 and (not topology.linear or topology.prune is not None):
        raise MethodError(
            f"forwards={forwards} see the drafts before them, and a tree has several "
            "at each depth: use a chain, or forwards=1"
        )
    width = block or config.block_size
    if block < 0 or width < 1:
        raise MethodError(
            f"block={block}, and the draft model's block_size is {config.block_size}: "
            "give block=, 1 or more"
        )
    return width
