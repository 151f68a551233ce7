"""RASD: a draft model's tree joined with continuations of the text's earlier matches.

Quan, Feng, Hao, Jiang, Zhang, Wang, *RASD: Retrieval-Augmented Speculative Decoding*,
2025, arXiv 2503.03434. With T_d the draft model's tree and R the retrieved
continuations,

    T_r = the continuations of R that the draft model finds plausible
    T   = T_d, and for each path of T_r its longest prefix in T_d, carried on

T_d → `drafters/model` and its topology, whose nodes come first in the block; R → the
`places` longest matches of the last tokens in the text (of equals the latest), as in
prompt lookup.

Reconstructed from the abstract: no code was released, and the full text
(arxiv.org/html/2503.03434v1) was not compared. Its pruning rule, its retrieved paths
and its sizes are not known here. Plausible means that the first token is one of the
draft law's `width` best at the root; of these the `branches` of most probable first
tokens are kept, the longer match first among equals; this rule and all numbers are
ours.

Deviations from the paper: only the text itself is searched, where the paper also keeps
a datastore; nodes of T_d are never given up, so that T accepts no less than T_d.
Sampled and retrieved siblings together follow no one law: draws that need one (`iid`,
`no_replace`) are refused.

Cost per call: that of the draft model, plus one reading of the retrieved tokens that
were accepted; as many comparisons of [B, T] as the longest match is long.
"""

from dataclasses import replace

import jax
import jax.numpy as jnp
from jax import Array, lax

from decoding import base, vocab
from decoding.catalogue import Card
from decoding.drafters import model
from decoding.text_lookup import suffix_match
from decoding.tree_building import draft_model, grow
from models.errors import MethodError

CARD = Card(
    paper="RASD, arXiv 2503.03434",
    guarantee=base.LAW,
    family="draft model",
    needs=("draft", "topology"),
    trained=True,
    examples={"branches": 2, "length": 4, "places": 4},
    sources=("quan2025rasd",),
)


def drafter(
    draft,
    topology: base.Topology,
    width: int = 8,
    branches: int = 4,
    length: int = 8,
    longest: int = 16,
    places: int = 16,
) -> base.Drafter:
    """Join at most `branches` retrieved paths of `length` tokens to the tree.

    State: that of `drafters/model`.

    Args:
        draft: a `LanguageModel` whose params are `params["draft"]`.
        topology: of T_d.
        width: best tokens of the root's law that a retrieved path may begin with.
        branches: most retrieved paths.
        length: most tokens of a path.
        longest: most tokens of a match.
        places: matches that are looked at.
    """
    for name, value in (
        ("width", width),
        ("branches", branches),
        ("length", length),
        ("longest", longest),
    ):
        if value < 1:
            raise MethodError(f"{name}={value}: use at least 1")
    if places < branches:
        raise MethodError(
            f"places={places}: look at no fewer places than branches={branches}"
        )
    if topology.draw in (base.IID, base.NO_REPLACE):
        raise MethodError(
            f"a topology that draws {topology.draw!r} cannot be joined with retrieved "
            "tokens: use the default verifier, or verifiers/sample_then_match"
        )
    writer = model.drafter(draft, topology)

    def init(ctx: base.Context) -> base.State:
        return model.first_state(draft, topology, ctx, length + 2)

    def draft_tree(keys, ctx: base.Context, state: base.State):
        cache, row = state.row
        params = ctx.params["draft"]
        cache, calls = draft_model.catch_up(draft, params, cache, ctx, length + 2)
        taps = draft_model.taps(topology)
        logits, states, cache = draft_model.root(draft, params, cache, ctx, taps)
        nodes, grown, cache = grow.grow(
            draft,
            params,
            cache,
            ctx,
            topology,
            keys,
            base.State(row, state.shared),
            logits,
            states,
        )
        texts, ends = ctx.tokens[:, None], ctx.length[:, None]
        pattern = suffix_match.last_tokens(ctx.tokens, ctx.length, longest)
        lengths = suffix_match.matches(texts, ends, pattern)
        _, after, count = suffix_match.best_places(lengths, texts, ends, places, length)
        prune = jax.vmap(_prune, in_axes=(0, 0, 0, None, None))
        after, count = prune(ctx.warp(logits), after, count, width, branches)
        nodes = join(nodes, after, count)
        nodes = replace(nodes, calls=calls + 1 + nodes.calls)
        return nodes, base.State((cache, grown.row), grown.shared), ctx.cache

    def observe(ctx: base.Context, state: base.State, outcome: base.Outcome):
        seen = outcome
        if outcome.is_round:
            verdict = outcome.verdict
            index = jnp.arange(verdict.path.shape[1], dtype=jnp.int32)
            grown = (verdict.path < topology.nodes) & (index < verdict.count[:, None])
            num_accepted = jnp.cumprod(grown, 1).sum(1).astype(jnp.int32)
            num_accepted = jnp.where(verdict.count < 0, -1, num_accepted)
            seen = draft_model.part(outcome, topology, num_accepted, outcome.active)
        return writer.observe(ctx, state, seen)

    size = topology.nodes + branches * length
    return base.Drafter(
        init,
        draft_tree,
        observe,
        size,
        max(topology.depth, length),
        pauses=True,
    )


def _prune(
    law: Array, after: Array, count: Array, width: int, branches: int
) -> tuple[Array, Array]:
    """★ Keep the continuations whose first tokens are likeliest in the draft law.

    `law` float32[V]; `after` int32[P, D], of which `count` int32[P] tokens are valid.
    """
    best = vocab.top_k(law, min(width, law.shape[0]))[0][-1]
    score = law[after[:, 0]]
    score = jnp.where((count > 0) & (score >= best), score, -jnp.inf)
    score, at = lax.top_k(score, branches)
    return after[at], jnp.where(score > -jnp.inf, count[at], 0)


def join(nodes: base.TokenTree, after: Array, count: Array) -> base.TokenTree:
    """Join paths `after` int32[B, K, D] of `count` int32[B, K] tokens to the tree."""
    tokens, parents, kind = jax.vmap(_join)(
        nodes.tokens, nodes.parents, nodes.kind, after, count
    )
    more = ((0, 0), (0, tokens.shape[1] - nodes.tokens.shape[1]))
    slots = nodes.slots
    return replace(
        nodes,
        tokens=tokens,
        parents=parents,
        kind=kind,
        slots=None if slots is None else jnp.pad(slots, more, constant_values=-1),
        depth=max(nodes.depth, after.shape[2]),
        linear=False,
    )


def _join(tokens, parents, kind, after, count) -> tuple[Array, Array, Array]:
    """★ Append node (k, d) of the paths as node N + k D + d, unless it exists already.

    It may exist in the tree, or as a node of an earlier path.
    """
    size, (paths, length) = tokens.shape[0], after.shape
    slots = size + jnp.arange(paths * length, dtype=jnp.int32).reshape(after.shape)
    same = suffix_match.shared_prefixes(after, count)
    first = jnp.argmax(same, 0)  # [K, D]: the first path with the node
    place = slots[first, jnp.arange(length)]
    fresh = first == jnp.arange(paths)[:, None]

    def step(at: Array, token: Array) -> tuple[Array, Array]:
        """Follow the paths one level; `at` [K]: their nodes in the tree, or -1."""
        child = (parents == at[:, None]) & (tokens == token[:, None])
        child &= (kind == base.CANDIDATE) & (at >= 0)[:, None]
        at = jnp.where(child.any(1), jnp.argmax(child, 1), -1).astype(jnp.int32)
        return at, at

    start = jnp.zeros((paths,), jnp.int32)
    known = lax.scan(step, start, after.T)[1].T  # [K, D]
    place = jnp.where(known >= 0, known, place)
    above = jnp.pad(place[:, :-1], ((0, 0), (1, 0)))  # the first hang on the root
    there = (jnp.arange(length) < count[:, None]) & (known < 0) & fresh
    there = jnp.where(there, base.CANDIDATE, base.PAD)
    return (
        jnp.concatenate([tokens, after.reshape(-1)]),
        jnp.concatenate([parents, above.reshape(-1)]).astype(jnp.int32),
        jnp.concatenate([kind, there.reshape(-1)]).astype(jnp.int32),
    )
