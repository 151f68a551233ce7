"""Token Recycling: the target's runner-up tokens become the drafts of later rounds.

Luo, Wang, Zhu, Zhang, Zhang, Yang, Xu, *Turning Trash into Treasure: Accelerating
Inference of Large Language Models with Token Recycling*, 2025, arXiv 2408.08696,
section 3. An adjacency matrix M holds, for every token, the k candidates that the
target ranked first when it last saw that token:

    draft    x_i = M[x_parent(i), rank(i)]   level by level through a static tree
    update   M[x_i] = k best ids of the target's raw logits at node i, accepted or not

M → `Shared.successors`; x → `tree.tokens`; parent, rank → `shape`. Token a, whose best
successors were b and c, gives the root a the children b, c.

M is `State.shared`: all rows read and write it, and it outlives a request through
`memory`. It changes how many drafts are accepted, never the text.

M starts from zeros, as in the official code: a token not seen yet proposes token 0, so
the row of token 0 is learned in the first round.

Deviations from the paper: where nodes of a round bear the same token, the deepest wins,
then that of the last row (there the order is undefined). The last round of a text
updates M too (the official code leaves it out). As in the official code, prompts do
not, unless `learn_prompt`.

Cost per call: one gather of [B, w] a level and a top-k of the [B, N, V] logits; no
model call. M takes 4 V k bytes: 1 MB at V = 32,000.
"""

from collections.abc import Sequence
from dataclasses import replace

import jax.numpy as jnp
from flax import struct
from jax import Array

from decoding import base, vocab
from decoding.catalogue import Card
from decoding.tree_design import tree_shape
from models.errors import MethodError

CARD = Card(
    paper="Token Recycling, arXiv 2408.08696",
    guarantee=base.LAW,
    family="training-free",
    needs=("vocab_size",),
    sources=("luo2025turning",),
)

# The paper's tree (figure 3; "2.2.2" of the official code): the number of children
# of each node, level by level. It has 80 nodes: 8, 21, 25, 15, 8 and 3 a level.
CHILDREN = (
    (8,),
    (8, 4, 3, 2, 1, 1, 1, 1),
    (8, 3, 2, 1, 1, 1, 1, 1, 2, 1, 0, 0, 1, 0, 0, 1, 0, 1, 1, 0, 0),
    (5, 2, 1, 1, 1, 0, 0, 0, 1, 0, 0, 1, 0, 0, 0, 0, 0, 0, 1, 0, 0, 1, 1, 0, 0),
    (3, 1, 1, 0, 0, 1, 0, 0, 0, 0, 1, 0, 1, 0, 0),
    (2, 0, 0, 1, 0, 0, 0, 0),
)


def _choices() -> tuple[tuple[int, ...], ...]:
    """List the paths of the paper's tree, by ranks from the root."""
    paths: list[tuple[int, ...]] = []
    level: list[tuple[int, ...]] = [()]
    for counts in CHILDREN:
        level = [(*path, r) for path, n in zip(level, counts) for r in range(n)]
        paths += level
    return tuple(paths)


CHOICES = _choices()


@struct.dataclass
class Shared:
    """The matrix that all rows share, and that outlives a request as `memory`."""

    successors: Array  # int32[V, k]: candidates after a token, best first; -1: none


def drafter(
    vocab_size: int,
    k: int = 8,
    choices: Sequence[Sequence[int]] = CHOICES,
    learn_prompt: bool = False,
) -> base.Drafter:
    """Recycle `k` candidates a token through the tree `choices` (Medusa's notation).

    `learn_prompt` fills the matrix from prompts too; their logits must then be
    computed.
    """
    shape = tree_shape.Shape(choices)
    if not 1 <= shape.width <= k:
        raise MethodError(
            f"the tree has {shape.width} siblings and k={k}: k candidates are kept a "
            "token, so give the tree 1 to k siblings"
        )
    num_best = min(k, vocab_size)

    def init(ctx: base.Context) -> base.State:
        return base.State((), Shared(jnp.zeros((vocab_size, k), jnp.int32)))

    def draft(keys, ctx: base.Context, state: base.State):
        levels = [ctx.root[:, None]]
        for above, level in zip(shape.levels, shape.levels[1:]):
            parent = levels[-1][:, shape.parents[level] - above[0]]
            following = state.shared.successors[parent, shape.ranks[level]]
            levels.append(jnp.where(parent < 0, -1, following))
        tokens = jnp.concatenate(levels, 1)
        nodes = shape.tree(jnp.maximum(tokens, 0), base.POINT)
        kind = jnp.where(tokens < 0, base.PAD, base.CANDIDATE).astype(jnp.int32)
        return replace(nodes, kind=kind), state, ctx.cache

    def observe(ctx: base.Context, state: base.State, outcome: base.Outcome):
        if outcome.target.logits is None:
            return state
        best = vocab.top_k(outcome.target.logits, num_best)[1]
        best = jnp.pad(best, ((0, 0), (0, 0), (0, k - num_best)), constant_values=-1)
        valid = (outcome.tree.kind == base.CANDIDATE) & outcome.active[:, None]
        updated = _write(state.shared.successors, outcome.tree.tokens, best, valid)
        return base.State(state.row, Shared(updated))

    return base.Drafter(
        init,
        draft,
        observe,
        shape.nodes,
        shape.depth,
        prompt_logits=learn_prompt,
        pauses=True,
        reads_text=True,
        reads_parts=True,
    )


def _write(successors: Array, tokens: Array, best: Array, valid: Array) -> Array:
    """Set rows `tokens` [B, N] to `best` [B, N, k]; of equal tokens the last wins."""
    batch, size = tokens.shape
    order = jnp.arange(size)[None] * batch + jnp.arange(batch)[:, None]  # by node, row
    none = successors.shape[0]
    at = jnp.where(valid, tokens, none)
    last = jnp.full((none,), -1, order.dtype).at[at].max(order, mode="drop")
    wins = valid & (last[tokens] == order)
    at = jnp.where(wins, tokens, none)
    return successors.at[at].set(best, mode="drop")
