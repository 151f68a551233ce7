"""The controller against the best fixed width, on recorded acceptance: no clock."""

import functools
from dataclasses import replace

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array, lax

from decoding import base, tree
from decoding.block_width import controller
from decoding.tree_design import tree_shape
from models.base import ModelOutput

CHAIN = tree_shape.Shape(tree_shape.path_choices(7))
TREE = tree_shape.Shape(
    ((0,), (1,), (2,), (0, 0), (0, 1), (1, 0), (0, 0, 0), (0, 0, 1), (0, 0, 0, 0))
)
RANKED = np.array([1.0, 0.3, 0.12, 0.05])  # of a first child's rate


@functools.cache
def program(shape: tree_shape.Shape, batch: int, pauses: bool, obeys: bool):
    """Compile rounds of a drafter of `shape`; one that obeys drafts no deeper."""
    widths = controller.ladder(shape.nodes)
    policy = controller.policy(widths, pauses)
    depths, ranks = jnp.asarray(shape.depths), jnp.asarray(shape.ranks)
    shares = jnp.cumsum(RANKED)

    def walked(coins: Array, rate: Array, nodes: base.TokenTree) -> base.Verdict:
        """Accept the child in whose part of [0, 1) the coin of its depth falls."""
        taken = (coins[:, None] >= rate[:, None] * shares).sum(1)
        return tree.walk(nodes, lambda node, depth: taken[depth])

    def round_(costs, state, inputs):
        rate, coins = inputs
        limit = policy.plan(state)
        # The token of a node is its rank among its siblings.
        nodes = shape.tree(jnp.broadcast_to(ranks, (batch, shape.nodes)), base.POINT)
        deepest = limit if obeys else jnp.where(limit > 0, shape.depth, 0)
        kind = jnp.where(depths <= deepest, base.CANDIDATE, base.PAD)
        kind = jnp.broadcast_to(kind, nodes.kind.shape).astype(jnp.int32)
        calls = jnp.zeros((batch,), jnp.int32)
        nodes = replace(nodes, kind=kind, calls=calls, linear=shape.width == 1)
        active = jnp.ones(batch, bool)
        live, least, state = policy.keep(state, nodes, widths, active)
        count = jnp.maximum(live.sum(1).max(), least)
        index = (count > jnp.asarray(widths[:-1])).sum()

        def run(width):
            def rest(state):
                part, _ = tree.part(nodes, live, width)
                verdict = jax.vmap(walked, in_axes=(0, None, 0))(coins, rate, part)
                logits = jnp.zeros((batch, width, 1))
                target = ModelOutput(logits, {})
                outcome = base.Outcome(part, verdict, target, logits, active)
                return policy.observe(state, outcome), verdict.count.mean() + 1.0

            return rest

        state, tokens = lax.switch(index, [*map(run, widths)], state)
        spared = shape.depth - limit if obeys else 0
        spent = costs.block[index] - costs.level * spared
        return state, (tokens, jnp.where(limit > 0, spent, costs.plain))

    def run(costs, forced, inputs):
        state = controller.with_costs(policy.init(batch, shape.depth), costs)
        state = replace(state, shared=replace(state.shared, forced=forced))
        return lax.scan(functools.partial(round_, costs), state, inputs)[1]

    return jax.jit(run)


def simulated(
    shape: tree_shape.Shape,
    rates: np.ndarray,
    costs: controller.Costs,
    fixed: tuple[int, int] = (-1, -1),
    seed: int = 0,
    batch: int = 1,
    pauses: bool = True,
    obeys: bool = True,
) -> tuple[np.ndarray, np.ndarray]:
    """Run rounds whose first children are accepted at `rates` [rounds, D].

    Returns tokens a row and milliseconds of every round. `fixed` forces a width's index
    and a depth.
    """
    rng = np.random.default_rng(seed)
    coins = rng.random((len(rates), batch, shape.depth), np.float32)
    inputs = jnp.asarray(rates, jnp.float32), jnp.asarray(coins)
    run = program(shape, batch, pauses, obeys)
    return tuple(map(np.asarray, run(costs, jnp.asarray(fixed, jnp.int32), inputs)))
