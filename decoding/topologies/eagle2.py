"""EAGLE-2's dynamic tree: expand the most confident nodes, then verify the best.

Li, Wei, Zhang, Zhang, *EAGLE-2: Faster Inference of Language Models with Dynamic Draft
Trees*, 2024, arXiv 2406.16858, sections 4.1 (expansion) and 4.2 (reranking). With the
confidence of a node

    V = product over the nodes of its path of q(token | path before it)

Expand: the draft model runs the k nodes of greatest V in every level, and each proposes
its k likeliest tokens. Rerank: of all proposed nodes, the N - 1 of greatest V are
verified. V → `confidence`, as a logarithm; k → `top_k`; N → `nodes`, root included. V
falls along a path, so the verified nodes form a tree. Drafts are the likeliest tokens,
not samples. A verifier that samples accepts them with p(x), as one-hot drafts.

Deviations from the paper: none. Under the coupled verifier q comes from the perturbed
logits, so the confidence is that of the token which this noise chooses.

Cost per level: one top-k over V a node, one over k^2.
"""

import jax.numpy as jnp
from jax import Array

from decoding import base, vocab
from decoding.catalogue import Card
from decoding.tree_building import child_sampling, grow, node_ranking
from models.errors import MethodError

CARD = Card(
    paper="EAGLE-2, arXiv 2406.16858",
    guarantee=base.LAW,
    family="dynamic tree",
    needs=("draw",),
    draws=(base.POINT, base.COUPLED),
    examples={"nodes": 7, "depth": 3, "top_k": 2},
    sources=("li2024eagle2",),
)


def topology(
    nodes: int = 60, depth: int = 6, top_k: int = 10, draw: str = base.POINT
) -> base.Topology:
    """Grow a tree and keep its best nodes; defaults are the paper's for a 7B model.

    Args:
        nodes: nodes to verify, root included.
        depth: depth of the deepest draft.
        top_k: nodes run per level, and children proposed by each.
        draw: one of `CARD.draws`.
    """
    room = 1 + top_k + (depth - 1) * top_k * top_k
    if min(depth, top_k) < 1 or not 2 <= nodes <= room:
        raise MethodError(
            f"nodes={nodes}: with depth={depth} and top_k={top_k} use 2 to {room}"
        )
    child_sampling.check(draw, CARD.draws)
    widths = (1, top_k, *(top_k * top_k,) * (depth - 1))

    def init(batch: int) -> base.State:
        return base.State(jnp.zeros((batch, sum(widths)), jnp.float32))

    def expand(keys, state, tree: base.TokenTree, logits, noise, level: int):
        here = sum(widths[:level])
        confidence: Array = state.row
        above = confidence[:, here : here + logits.shape[1], None]
        logq = vocab.log_softmax(
            child_sampling.perturbed(draw, keys, logits, noise(level))
        )
        logprobs, tokens = node_ranking.children(logq, top_k)
        local, rank, best = node_ranking.best(above + logprobs, widths[level + 1])
        rows = jnp.arange(tokens.shape[0])[:, None]
        below = here + widths[level]
        confidence = confidence.at[:, below : below + best.shape[1]].set(best)
        tokens = tokens[rows, local, rank]
        live = best > -jnp.inf
        tree = grow.put(tree, widths, level, tokens, local, live, logits)
        return tree, base.State(confidence)

    def prune(state: base.State, tree: base.TokenTree) -> Array:
        return node_ranking.best_nodes(state.row, nodes)

    def adapt(state: base.State, outcome: base.Outcome) -> base.State:
        return state

    return base.Topology(
        init, expand, adapt, widths, draw, beam=top_k, prune=prune, kept=nodes
    )
