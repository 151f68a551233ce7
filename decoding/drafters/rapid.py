"""RAPID: a draft model as able as the target, which reads only the chunks of a long
prompt that resemble its end.

Chen, Feng, Ni, Li, Shieh, *Long-Context Inference with Retrieval-Augmented
Speculative Decoding*, 2025, arXiv 2502.20330, its RAG drafter. The prompt is cut into
chunks c_1 .. c_n; with e an embedding and t the prompt's tail,

    short  = the chunks of greatest cos(e(c_i), e(t)), of `threshold` at least, as many
             as fit, in the prompt's order, and then the tail
    x_i    ~ q(. | short, generated text, x_<i)      while the target reads everything

q → `draft` and its topology, most usefully the target's own weights. The draft model's
keys are at the positions of the shortened text. A prompt of at most `kept` tokens is
read whole.

This is the paper's drafter with its exact verification (eta = 0). The paper's target
that leans towards q (eta > 0) changes the law and is not part of this file.

Deviations from the paper: e is the bag of a chunk's tokens, weighed by their rarity
among the chunks and hashed to FEATURES numbers; the paper runs an embedding model
(BGE-M3). Chunks are cut at a fixed number of tokens, not at sentences; the
question is taken to be the tail, one to two chunks long. The draft model reads the
short prompt in the first round, `chunk` tokens a call.

Cost per call: that of `drafters/model` on a shorter text; once a request the embedding
of all chunks. Memory: 4 kept bytes a row and the draft model's cache; the index of
chunks lives while a request begins, 4 FEATURES bytes a chunk (4 MB for 128k tokens).
"""

import functools
from dataclasses import replace

import jax
import jax.numpy as jnp
from flax import struct
from jax import Array

from decoding import base
from decoding.catalogue import Card
from decoding.drafters import model
from decoding.tree_building import draft_model
from models.errors import MethodError

CARD = Card(
    paper="RAPID, arXiv 2502.20330",
    guarantee=base.LAW,
    family="draft model",
    data=("threshold",),
    needs=("draft", "topology"),
    trained=True,
    examples={"chunk": 4, "kept": 12},
    sources=("chen2025long",),
)

FEATURES = 1024


@struct.dataclass
class Row:
    """The shortened prompt of one request, and the draft model's state."""

    short: Array  # int32[B, P]; the first `size` are valid
    size: Array  # int32[B]
    left_out: Array  # int32[B]: tokens of the prompt that the draft does not read
    written: tuple  # the row state of `drafters/model`: its cache comes first


def drafter(
    draft,
    topology: base.Topology,
    chunk: int = 128,
    kept: int = 4096,
    threshold: float = 0.1,
) -> base.Drafter:
    """Draft with `draft` on prompts shortened to `kept` tokens.

    Args:
        draft: a `LanguageModel` whose params are `params["draft"]`.
        topology: of the trees.
        chunk: tokens of a chunk.
        kept: most tokens of a shortened prompt.
        threshold: least cosine similarity of a chunk and the tail.
    """
    if chunk < 1:
        raise MethodError(f"chunk={chunk}: use at least 1 token")
    if kept < 2 * chunk:
        raise MethodError(
            f"kept={kept}: keep two chunks or more, of which the tail takes up to two"
        )
    writer = model.drafter(draft, topology)

    def init(ctx: base.Context) -> base.State:
        room = min(kept, ctx.tokens.shape[1])
        arguments = (ctx.tokens, ctx.length, chunk, room, threshold)
        short, size = _shorten_rows(*arguments)
        inner = model.first_state(draft, topology, ctx, max(chunk, 2))
        row = Row(short, size, ctx.length - size, inner.row)
        return base.State(row, inner.shared)

    def draft_tree(keys, ctx: base.Context, state: base.State):
        row = state.row
        view = _view(ctx, row)
        cache, *rest = row.written
        cache, calls = draft_model.catch_up(
            draft, ctx.params["draft"], cache, view, max(chunk, 2)
        )
        inner = base.State((cache, *rest), state.shared)
        nodes, inner, _ = writer.draft(keys, view, inner)
        nodes = replace(nodes, calls=calls + nodes.calls)
        row = replace(row, written=inner.row)
        return nodes, base.State(row, inner.shared), ctx.cache

    def observe(ctx: base.Context, state: base.State, outcome: base.Outcome):
        if outcome.is_prompt:
            return state  # the draft model reads the short prompt when it first drafts
        inner = base.State(state.row.written, state.shared)
        inner = writer.observe(ctx, inner, outcome)
        return base.State(replace(state.row, written=inner.row), inner.shared)

    return writer._replace(init=init, draft=draft_tree, observe=observe)


def _view(ctx: base.Context, row: Row) -> base.Context:
    """Return the draft model's context; its noise is that of the true position."""
    index = jnp.arange(ctx.tokens.shape[1], dtype=jnp.int32)
    at = index + row.left_out[:, None]
    text = jnp.take_along_axis(ctx.tokens, at, 1, mode="clip")
    short = jnp.pad(row.short, ((0, 0), (0, text.shape[1] - row.short.shape[1])))
    return replace(
        ctx,
        tokens=jnp.where(index < row.size[:, None], short, text),
        length=ctx.length - row.left_out,
        noise=lambda position, *ids: ctx.noise(position + row.left_out, *ids),
    )


@functools.partial(jax.jit, static_argnames=("chunk", "room"))
def _shorten_rows(texts, lengths, chunk, room, threshold):
    """Shorten the prompts of all rows, in one program."""
    rows = jax.vmap(_shorten, in_axes=(0, 0, None, None, None))
    return rows(texts, lengths, chunk, room, threshold)


def _shorten(
    text: Array, length: Array, chunk: int, room: int, threshold: float
) -> tuple[Array, Array]:
    """★ Shorten a prompt to at most `room` tokens; return them and their number."""
    count = jnp.maximum(length // chunk - 1, 0)  # whole chunks before the tail
    start = count * chunk
    chunks = max(text.shape[0] // chunk, 1)
    numbers = jnp.arange(text.shape[0], dtype=jnp.int32)
    chunk_of = jnp.where(numbers < start, jnp.minimum(numbers // chunk, chunks), chunks)
    valid = numbers < length
    bags = jnp.zeros((chunks + 1, FEATURES), jnp.float32)
    bags = bags.at[jnp.where(valid, chunk_of, chunks + 1), text % FEATURES].add(
        1.0, mode="drop"
    )
    rarity = jnp.log((count + 2) / (1 + (bags > 0).sum(0)))
    bags = bags * jnp.maximum(rarity, 0)
    tail, bags = bags[-1], bags[:-1]
    norms = jnp.linalg.norm(bags, axis=1) * jnp.linalg.norm(tail)
    likeness = bags @ tail / jnp.maximum(norms, 1e-9)
    index = jnp.arange(chunks, dtype=jnp.int32)
    likeness = jnp.where(index < count, likeness, -jnp.inf)
    order = jnp.argsort(-likeness, stable=True)
    rank = jnp.zeros((chunks,), jnp.int32).at[order].set(index)
    fits = (room - (length - start)) // chunk
    whole = length <= room
    taken = (likeness >= threshold) & (rank < fits)
    taken = jnp.where(whole, index < count, taken)
    chosen = jnp.sort(jnp.where(taken, index, chunks))
    num_taken = taken.sum(dtype=jnp.int32)
    at = jnp.arange(room, dtype=jnp.int32)
    inside = chosen[jnp.minimum(at // chunk, chunks - 1)] * chunk + at % chunk
    source = jnp.where(at < num_taken * chunk, inside, start + at - num_taken * chunk)
    short = text.at[source].get(mode="clip")
    return short, num_taken * chunk + length - start
