"""The contract of a drafter under a `WidthPolicy`: drafts that are cut or left out.

A policy of random numbers stands for any: each round it drafts to another depth, or not
at all, and keeps other nodes. The text must not change.
"""

from typing import Any

import jax
import jax.numpy as jnp

from decoding import base, tree
from decoding.block_width.policy import WidthPolicy
from decoding.conformance import kit
from decoding.conformance.require import require
from decoding.method import Method

WIDTHS = (1, 3)  # of blocks, beside the whole draft's
CUT = 0.3  # share of the nodes that are left out, each with all below it
SPAN = 3  # rounds of one depth
ALONE = 0.3  # share of the spans in which a draft is made, and its root alone verified


def ragged(deepest: int) -> WidthPolicy:
    """Cut drafts at random, by the number of the round alone; pause in some rounds.

    Where only roots are left, the drafter rests to the end of the span.
    """

    def init(batch: int, depth: int) -> base.State:
        return base.State(shared=(jnp.int32(0), jnp.int32(0)))  # rounds; a rest's end

    def random(seed: int, of: jax.Array) -> jax.Array:
        return jax.random.fold_in(jax.random.key(seed), of)

    def plan(state: base.State) -> jax.Array:
        rounds, end = state.shared
        depth = jax.random.randint(random(1, rounds // SPAN), (), 0, deepest + 1)
        return jnp.where(rounds < end, 0, depth)

    def keep(state: base.State, nodes: base.TokenTree, widths, active):
        rounds, end = state.shared
        key = random(2, rounds)
        coins = jax.random.bernoulli(key, 1 - CUT, nodes.tokens.shape)
        is_alone = jax.random.bernoulli(random(4, rounds // SPAN), ALONE)
        # AUX nodes go with their candidate: they are never cut by themselves.
        live = (coins | (nodes.kind == base.AUX)).at[:, 0].set(True)
        # Of siblings the first stay: they were drawn in this order.
        older = jnp.tril(jnp.ones((live.shape[1],) * 2, bool), -1)
        same = nodes.parents[:, :, None] == nodes.parents[:, None]
        candidate = (nodes.kind == base.CANDIDATE)[:, None]
        live = live & ~(same & older & candidate & ~live[:, None]).any(2)
        for _ in range(nodes.depth):
            above = jnp.take_along_axis(live, jnp.maximum(nodes.parents, 0), 1)
            live = live & above
        live = live & (nodes.kind != base.PAD)
        live = live & ~(is_alone & (jnp.arange(live.shape[1]) > 0))
        last = rounds + SPAN - rounds % SPAN
        end = jnp.where((live.sum(1).max() == 1) & (rounds >= end), last, end)
        return live, jnp.int32(1), base.State(shared=(rounds, end))

    def observe(state: base.State, *round_: Any) -> base.State:
        rounds, end = state.shared
        return base.State(shared=(rounds + round_[-1], end))

    def rest(state: base.State) -> jax.Array:
        return jnp.maximum(state.shared[1] - state.shared[0], 1)

    return WidthPolicy(init, plan, rest, keep, observe)


def cut(run: kit.Run) -> kit.Run:
    """Let `ragged` choose the nodes and depths of the run's drafts."""
    drafter = run.parts.program.drafter
    widths = (*(w for w in WIDTHS if w < drafter.nodes), drafter.nodes)
    return run.alter(width=ragged(max(drafter.depth, 1)), widths=widths)


def text_of_cut_drafts_is_plain(
    method: Method, temperature: float = 0.8, run: kit.Run | None = None
) -> None:
    """Require plain decoding's text from drafts that are cut and left out.

    `run` is a compiled `cut` run of the method.
    """
    run = run or cut(kit.Run(method, temperature))
    for seed in (0, 5):
        texts = run.texts(seed=seed)
        plain = kit.plain(method, temperature, seed=seed)
        require(texts == plain, method, "a cut draft changes the text")


def a_pause_is_its_rounds(
    method: Method, temperature: float = 0.8, run: kit.Run | None = None
) -> None:
    """Require the same drafts after rounds of a pause that were told of together.

    Where the loop returns after every round, the drafter is told of each by itself. Not
    for drafters whose state depends by design on how rounds divide a text. `run` is a
    compiled `cut` run of the method.
    """
    run = run or cut(kit.Run(method, temperature))
    if not run.parts.program.drafter.pauses:
        return
    start = lambda: run.start(new=kit.SIZE - max(map(len, kit.PROMPTS)))
    together, apart = run.advance(start()), start()
    while not bool(apart.done.all()):
        apart = run.advance(apart, 1)
    counted = kit.same(together.counters, apart.counters)
    texts = kit.texts(together) == kit.texts(apart)
    require(counted and texts, method, "a pause changes the drafts after it")


def watching(depth: int) -> WidthPolicy:
    """Draft `depth` levels, verify none, and count nodes that the text tests, takes."""

    def keep(state: base.State, nodes: base.TokenTree, widths, active):
        root = jnp.zeros(nodes.tokens.shape, bool).at[:, 0].set(True)
        return root, jnp.int32(1), state

    def observe(state, nodes, verdict, width, active, rounds) -> base.State:
        tested = (nodes.kind == base.CANDIDATE)[:, 1:].any(1)
        tested = jnp.where(tested, tree.depths(nodes).max(1), 0)
        taken = jnp.where(active, jnp.stack([tested, verdict.count]), 0)
        return base.State(shared=state.shared + taken.sum(1))

    return WidthPolicy(
        lambda batch, depth: base.State(shared=jnp.zeros(2, jnp.int32)),
        lambda state: jnp.int32(depth),
        lambda state: jnp.int32(depth + 1),
        keep,
        observe,
    )


def taken_of_watched(run: kit.Run) -> tuple[int, int]:
    """Return the depth of what the text tested in watched drafts, and how much it took.

    The drafts are a chain, or a tree in which every path is as deep.
    """
    drafter = run.parts.program.drafter
    run.alter(width=watching(drafter.depth), widths=(1, drafter.nodes))
    state = run.advance(run.start(new=kit.SIZE - max(map(len, kit.PROMPTS))))
    tested, taken = state.width.shared
    return int(tested), int(taken)


def perfect_drafts_end_at_a_leaf(run: kit.Run, rounds: int = 8) -> bool:
    """Return whether every accepted path ends where nothing below was verified."""
    state = run.start(new=kit.SIZE - max(map(len, kit.PROMPTS)))
    for _ in range(rounds):
        state, outcome = run.engine.step(run.params, state)
        nodes, last = outcome.tree, tree.last_node(outcome.verdict)
        below = (nodes.parents == last[:, None]) & (nodes.kind == base.CANDIDATE)
        if (below.any(1) & outcome.active & ~state.done).any():
            return False
    return True
