"""SWIFT: the target drafts with some of its sublayers left out, found on the fly.

Xia, Li, Zhang, Du, Li, *SWIFT: On-the-Fly Self-Speculative Decoding for LLM Inference
Acceleration*, 2025, arXiv 2410.06916, section 4. A set z of sublayers to skip has one
gene each for attention and MLP of every layer but the first and the last. A share r of
the genes is set. While z is being optimised, each round tries one set:

    z'        random; every 25th one by Bayesian optimisation
    m(z')   = share of the text's first tokens that are the best token of the model
              without z', given the text before them ("matchness")
    z       = z' where m(z') > m(z)

until m(z) > `enough`, `tolerance` trials in a row have failed, or `trials` were made.
The draft is a chain of the model without z, up to and with the first token whose law
has a top probability below `stop`; each of its tokens has siblings, the more the less
sure its law is. For top probabilities above .95, .8, .5 and below, a level has 3, 5, 8,
10 tokens in greedy calls, and 1, 3, 5, 10 where a row samples (`siblings`).

z → `skip`; r → `ratio`; m → `score`; the first tokens → `context`. The Bayesian
proposal maximises, among 64 random sets, mean + 2.5 deviations of a Gaussian process of
the last trials. Its kernel is Matérn 5/2 over the share of genes that differ, its noise
0.01.

Deviations from the paper: the tree is cut at `nodes` = 64, from its end; the official
tree is whole, at most 251 nodes. Above temperature 0 the official confidence, which
ends a chain and chooses siblings, is the drawn token's unwarped probability; here it is
the law's largest. The score is pooled over the live rows that are long enough; skipped
layers read the exact keys of the text, in the draft and in the trial, where the
official trial computes the keys of its text without z; the process keeps the last 32
trials at a fixed length scale; the official bonus token at temperature > 0, drawn from
unwarped logits, is the verifier's. A model of two layers has no genes: it drafts whole.

Cost per call: a share of about 1 - r of a target call a draft, and one such call of
`context` nodes a round while z is being optimised.
"""

from dataclasses import replace

import jax
import jax.numpy as jnp
from flax import struct
from jax import Array, lax

from decoding import base, vocab
from decoding.catalogue import Card
from decoding.tree_building import adaptive_chain
from models.base import ALL, causal_block
from models.errors import MethodError

CARD = Card(
    paper="SWIFT, arXiv 2410.06916",
    guarantee=base.LAW,
    family="self-speculative",
    data=("ratio", "stop", "enough"),
    needs=("model", "draw", "greedy"),
    examples={"length": 4, "siblings": (1, 2, 2, 3), "nodes": 9, "context": 6},
    sources=("xia2025swift",),
)

SURE = (0.95, 0.8, 0.5)
SIBLINGS = {True: (3, 5, 8, 10), False: (1, 3, 5, 10)}  # by whether all is greedy
KEPT, TRIED = 32, 64  # trials the process remembers, sets a proposal chooses from


@struct.dataclass
class Search:
    """The search for a set to skip, shared by all rows."""

    skip: Array  # bool[G]: the best set so far
    size: Array  # int32[]: genes of a set
    score: Array  # float32[]: its matchness; -1 before the first trial
    made: Array  # int32[]: number of trials
    failed: Array  # int32[]: trials since the last success
    sets: Array  # bool[KEPT, G]: the last trials; trial i stands at i % KEPT
    scores: Array  # float32[KEPT]
    stop: Array  # float32[]: drafts end below this confidence
    enough: Array  # float32[]


@struct.dataclass
class Row:
    """One request's part of a trial, pooled after the round over the live rows."""

    start: Array  # int32[B]: length of the prompt
    live: Array  # bool[B]: rows that were not done a round ago
    hits: Array  # int32[B]: matches in this round's trial; -1: not tried
    trial: Array  # bool[B, G]: the set that was tried, the same in all rows


def drafter(
    model,
    ratio: float = 0.45,
    length: int = 25,
    siblings: tuple[int, ...] = (),
    nodes: int = 64,
    stop: float = 0.8,
    context: int = 32,
    enough: float = 0.95,
    trials: int = 1000,
    tolerance: int = 300,
    bayes: int = 25,
    draw: str = base.POINT,
    greedy: bool = True,
) -> base.Drafter:
    """Draft with the target less a set of sublayers, and search for a better set.

    Args:
        model: the target.
        ratio: r, share of the genes that a set skips.
        length: most drafts of a chain.
        siblings: children of a node, by falling certainty of its law; none: those of
            the authors' code.
        nodes: size of the verified tree; nodes that do not fit are cut from its end.
        stop: a chain ends below this top probability.
        context: tokens of the text that score a set.
        enough: score at which the search ends.
        trials: most trials.
        tolerance: failed trials in a row that end the search.
        bayes: every `bayes`th trial is a Bayesian proposal.
        draw: one of `base.DRAWS`.
        greedy: no row samples.
    """
    siblings = siblings or SIBLINGS[greedy]
    depth, width = model.config.n_layers, max(siblings)
    genes = 2 * max(depth - 2, 0)
    if not 0 <= ratio < 1:
        raise MethodError(f"ratio={ratio}: skip a share in [0, 1) of the sublayers")
    if len(siblings) != 4 or min(siblings) < 1 or width > model.config.vocab_size:
        raise MethodError(
            f"siblings={siblings}: give 4 numbers from 1 to the vocabulary's size, "
            f"{model.config.vocab_size}"
        )
    if min(length, context, bayes) < 1 or nodes < 2:
        raise MethodError(
            f"length={length}, context={context}, bayes={bayes}, nodes={nodes}: use at "
            "least 1 of each, and at least 2 nodes"
        )

    def init(ctx: base.Context) -> base.State:
        odd = jnp.arange(genes) // 2 % 2 == 0  # layers 1, 3, ... first
        size = jnp.int32(genes * ratio)
        skip = _first(jnp.argsort(~odd, stable=True), size)
        zero = jnp.int32(0)
        sets, scores = jnp.zeros((KEPT, genes), bool), jnp.zeros((KEPT,), jnp.float32)
        numbers = (jnp.float32(stop), jnp.float32(enough))
        none = jnp.float32(-1)
        search = Search(skip, size, none, zero, zero, sets, scores, *numbers)
        live = jnp.ones(ctx.length.shape, bool)
        trial = jnp.zeros((*live.shape, genes), bool)
        return base.State(Row(ctx.length, live, -live.astype(jnp.int32), trial), search)

    def running(skip: Array) -> Array:
        """Mark the sublayers that run without the set, bool[L, 2]."""
        ends = jnp.ones((min(depth, 2), 2), bool)
        return jnp.concatenate([ends[:1], ~skip.reshape(-1, 2), ends[1:]])

    def try_set(key, ctx: base.Context, state: base.State, cache):
        """Try a set, if a trial is due; return rows with its hits, and the cache."""
        search, row = state.shared, state.row
        ready = row.live & (ctx.length >= row.start + context)
        due = ready.any() & (search.score <= search.enough)
        due = due & (search.made < trials) & (search.failed < tolerance)
        guided = (search.made + 1) % bayes == 0
        chosen = lax.cond(guided, _bayesian, _random_set, key, search)

        def trial(cache):
            at = row.start[:, None] - 1 + jnp.arange(context, dtype=jnp.int32)
            tokens = jnp.take_along_axis(ctx.tokens, at, 1, mode="clip")
            truth = jnp.take_along_axis(ctx.tokens, at + 1, 1, mode="clip")
            # Nothing is written: the keys of these tokens are in the cache already.
            block = causal_block(tokens, row.start - 1, ready * 0, cache.size, ALL)
            block = replace(block, run=running(chosen))
            out, cache = model(ctx.params["target"], cache, block)
            return (vocab.argmax(out.logits) == truth).sum(1, dtype=jnp.int32), cache

        none = jnp.zeros(ready.shape, jnp.int32)
        hits, cache = lax.cond(due, trial, lambda cache: (none, cache), cache)
        hits = jnp.where(due & ready, hits, -1)
        return replace(row, hits=hits, trial=row.trial.at[:].set(chosen)), cache

    def update_search(row: Row, search: Search, active: Array) -> Search:
        """Update the search with this round's trial in the `active` rows."""
        counted = active & (row.hits >= 0)
        some = counted.any()
        share = jnp.where(counted, row.hits, 0).sum() / (counted.sum() * context)
        share = jnp.where(some, share, -1.0).astype(jnp.float32)
        better, trial = share > search.score, row.trial[0]
        at = jnp.where(some, search.made % KEPT, KEPT)
        return replace(
            search,
            skip=jnp.where(better, trial, search.skip),
            score=jnp.where(better, share, search.score),
            made=search.made + some,
            failed=jnp.where(better, 0, search.failed + some),
            sets=search.sets.at[at].set(trial, mode="drop"),
            scores=search.scores.at[at].set(share, mode="drop"),
        )

    def draft(keys, ctx: base.Context, state: base.State):
        params, search, cache = ctx.params["target"], state.shared, ctx.cache
        row, run = state.row, None
        if genes:
            key = jax.random.fold_in(keys[0], search.made)
            row, cache = try_set(key, ctx, state, cache)
            run = running(search.skip)

        def rule(wide: Array, step: adaptive_chain.Step):
            best = vocab.maximum(step.raw) - vocab.logsumexp(step.raw)
            unsure = (best[:, None] <= jnp.log(jnp.array(SURE))).sum(1)
            wide = wide.at[:, step.level].set(jnp.array(siblings)[unsure])
            return wide, step.live, jnp.exp(best) >= search.stop

        none = jnp.zeros((ctx.length.shape[0], length), jnp.int32)
        logits, cache = adaptive_chain.root_logits(model, params, cache, ctx.root, run)
        call = adaptive_chain.caller(model, params, run)
        chain = adaptive_chain.drafted(
            call, cache, ctx, keys, draw, logits, length, rule, none, width
        )
        grown = packed(ctx.root, chain, nodes, draw)
        return grown, base.State(row, search), chain.cache

    def observe(ctx: base.Context, state: base.State, outcome: base.Outcome):
        row, search = state.row, state.shared
        if outcome.is_prompt:
            return state
        if genes:
            ran = outcome.active & (outcome.tree.calls > 0)  # no pause
            search = update_search(row, search, ran)
        return base.State(replace(row, live=outcome.active), search)

    return base.Drafter(
        init, draft, observe, nodes, length, scratch=length, pauses=True
    )


def packed(
    root: Array, chain: adaptive_chain.Chain, size: int, draw: str
) -> base.TokenTree:
    """Pack the chain and its siblings into a tree of `size` nodes, level by level.

    `chain.memory` int32[B, M]: siblings of each level, the chain's own token included.
    """
    batch, length, width = chain.drawn.shape
    level, rank = jnp.arange(length)[:, None], jnp.arange(width)
    there = (level < chain.count[:, None, None]) & (rank < chain.memory[..., None])
    flat = there.reshape(batch, -1)
    place = jnp.cumsum(flat, 1) * flat
    node = jnp.where(flat, place, size)  # 1 ..; nodes that do not fit are dropped
    first = node.reshape(there.shape)[:, :, 0]
    above = jnp.pad(first[:, :-1], ((0, 0), (1, 0)))  # level 0 hangs on the root
    parent = jnp.broadcast_to(above[..., None], there.shape).reshape(batch, -1)
    rows = jnp.arange(batch)[:, None]

    def put(start: Array, values: Array) -> Array:
        return start.at[rows, node].set(values, mode="drop")

    zero = jnp.zeros((batch, size), jnp.int32)
    tokens = put(zero, chain.drawn.reshape(batch, -1)).at[:, 0].set(root)
    parents = put(zero, parent).at[:, 0].set(-1)
    kind = put(zero, jnp.full(flat.shape, base.CANDIDATE)).at[:, 0].set(base.CANDIDATE)
    laws = chain.laws
    if laws is not None:
        whole = jnp.zeros((batch, size, laws.shape[-1]), jnp.float32)
        laws = whole.at[rows, above].set(laws, mode="drop")
    calls = chain.calls + 1
    return base.TokenTree(tokens, parents, kind, laws, calls, draw=draw, depth=length)


def _first(order: Array, size: Array) -> Array:
    """Set the first `size` genes of `order`, bool[G]."""
    return jnp.argsort(order) < size


def _random_set(key: Array, search: Search) -> Array:
    """Draw a set of `size` genes uniformly, bool[G]."""
    return _first(jax.random.permutation(key, search.skip.shape[0]), search.size)


def _bayesian(key: Array, search: Search) -> Array:
    """Choose the set bool[G] of greatest upper bound among `TRIED` random sets."""
    keys = jax.random.split(key, TRIED)
    sets = jax.vmap(lambda k: _random_set(k, search))(keys)
    known = jnp.arange(KEPT) < search.made
    mean, variance = posterior(search.sets, search.scores, known, sets)
    return sets[jnp.argmax(mean + 2.5 * jnp.sqrt(variance))]


def posterior(sets: Array, scores: Array, known: Array, at: Array) -> tuple:
    """Return the Gaussian process's mean and variance float32[M] at the sets `at`.

    Args:
        sets: bool[N, G], tried sets.
        scores: float32[N].
        known: bool[N], which of them are valid.
        at: bool[M, G].
    """

    def kernel(a: Array, b: Array) -> Array:
        apart = (a[:, None] != b[None]).mean(-1)
        r = jnp.sqrt(5.0 * apart) * 2
        return (1 + r + r * r / 3) * jnp.exp(-r)

    both = known[:, None] & known[None]
    gram = jnp.where(both, kernel(sets, sets), 0.0)
    gram = gram + jnp.diag(jnp.where(known, 0.01, 1.0))
    cross = jnp.where(known[:, None], kernel(sets, at), 0.0)
    centre = jnp.where(known, scores, 0.0).sum() / jnp.maximum(known.sum(), 1)
    weights = jnp.linalg.solve(gram, cross)
    mean = centre + weights.T @ jnp.where(known, scores - centre, 0.0)
    variance = jnp.maximum(1.0 - (cross * weights).sum(0), 0.0)
    return mean, variance
