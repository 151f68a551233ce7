"""PG-TD: Monte-Carlo tree search over tokens, by the rewards of whole texts.

Zhang, Chen, Shen, Ding, Tenenbaum, Gan, *Planning with Large Language Models for Code
Generation*, 2023, arXiv 2303.05510, section 4. A node's children are its k best tokens
a, with the law P of the model over these. A simulation descends from the prompt by

    argmax_a Q(s, a) + beta(s) P(a | s) sqrt(ln N(s)) / (1 + n(s, a))
    beta(s) = ln((N(s) + b + 1) / b) + c

to the first child without a node, which becomes one. A greedy text from there is valued
by the reward r, and every move on the way keeps the best: Q <- max(Q, r). The result is
the best text of all.

k -> top; c -> explore; b -> growth; r -> generate(reward=...). N counts a node's
visits, one at first; n those of a move. Both of the paper's caches are the tree itself:
a text goes on where an earlier one ended, no node runs twice, no text is valued twice.

Deviations: none. Cost: one node a round; a round that asks the host waits for it.
"""

import functools
import math
from dataclasses import replace

import jax
import jax.numpy as jnp
from flax import struct
from jax import Array, lax

from decoding import base
from decoding.catalogue import Card
from decoding.hypotheses import nodes
from decoding.hypotheses import pool as pools
from decoding.hypotheses.nodes import ALL, Select, Selection, Texts, View
from decoding.hypotheses.pool import NONE, Pool
from models.errors import MethodError

CARD = Card(
    paper="PG-TD, arXiv 2303.05510",
    guarantee=base.LOSSY,
    family="tree search",
    data=("explore", "growth"),
    examples={"simulations": 6, "keep": 2},
    sources=("zhang2023planning",),
)

DESCEND, WRITE, VALUE, RUN = range(4)  # what a simulation does next


@struct.dataclass
class Tree:
    """What is known of every node; a move is the node that it leads to."""

    child: Array  # int32[M, k]: the moves, best first; -1: none, or not known yet
    ended: Array  # bool[M]: a text ends with the node
    prior: Array  # float32[M]: P of the move
    worth: Array  # float32[M]: of the text that ends with the node; NaN: not known
    best: Array  # float32[M]: the best return of the move; 0: none
    total: Array  # float32[M]: the sum of its returns
    moves: Array  # int32[M]: n
    visits: Array  # int32[M]: N
    entered: Array  # bool[M]: nodes of the search; the others are of its texts alone


@struct.dataclass
class Row:
    explore: Array  # float32[]
    growth: Array  # float32[]
    tree: Tree
    node: Array  # int32[]: where the simulation is
    path: Array  # int32[T]: the moves that it made
    depth: Array  # int32[]: how many
    phase: Array  # int32[]
    count: Array  # int32[]: simulations so far


@struct.dataclass
class Place:
    """Where a simulation is; see `Row`."""

    node: Array
    path: Array
    depth: Array
    phase: Array
    entered: Array = struct.field(default_factory=lambda: jnp.int32(-1))


def select(
    simulations: int = 32,
    top: int = 3,
    explore: float = 4.0,
    growth: float = 10.0,
    keep: int = 1,
    backup: str = "max",
) -> Select:
    """Search by simulations.

    Args:
        simulations: texts to try, repetitions included.
        top: moves of a node.
        explore: c, the weight of moves that were tried seldom.
        growth: b; the smaller, the faster that weight rises with the visits.
        keep: texts that are kept.
        backup: "max" or "mean" of a move's returns.
    """
    if simulations < 1 or top < 1 or keep < 1:
        raise MethodError(
            f"simulations={simulations}, top={top}, keep={keep}: use at least 1 of each"
        )
    if not (0 <= explore < math.inf and growth > 0):
        raise MethodError(f"explore={explore}, growth={growth}: use >= 0 and > 0")
    if backup not in ("max", "mean"):
        raise MethodError(f'backup={backup!r}: use "max" or "mean"')

    def rounds(new: int) -> int:
        return 1 + simulations * (new + 1)  # new nodes, and the text's worth

    def init(params: base.Params, size: int) -> base.State:
        most = 1 + top * rounds(size)
        zeros, zero = jnp.zeros(most), jnp.int32(0)
        tree = Tree(
            child=jnp.full((most, top), -1, jnp.int32),
            ended=jnp.zeros(most, bool),
            prior=zeros,
            worth=jnp.full(most, jnp.nan),
            best=zeros,
            total=zeros,
            moves=jnp.zeros(most, jnp.int32),
            visits=jnp.ones(most, jnp.int32),
            entered=jnp.arange(most) == 0,
        )
        numbers = (jnp.float32(explore), jnp.float32(growth))
        path = jnp.zeros(size, jnp.int32)
        return base.State(Row(*numbers, tree, zero, path, zero, jnp.int32(RUN), zero))

    def choose(key: Array, state: base.State, view: View) -> tuple:
        row = state.row
        ran, lane = view.lanes[0], jnp.zeros(top, jnp.int32)
        # The moves of the node that ran.
        best, token = nodes.best(view.logits[0], top)
        there = (best > -jnp.inf) & (ran >= 0)
        moves = view.ids(there)
        size = row.tree.prior.shape[0]
        hung = jnp.where(there, moves, size)
        put = lambda x, values: x.at[hung].set(values, mode="drop")
        tree = replace(
            row.tree,
            child=row.tree.child.at[jnp.where(ran >= 0, ran, size)].set(
                moves, mode="drop"
            ),
            ended=put(row.tree.ended, view.ends(lane, token)),
            prior=put(row.tree.prior, jax.nn.softmax(best)),
        )
        # The worth that was asked for, which ends a simulation.
        worth = view.values[0]
        came = ~jnp.isnan(worth)
        known = jnp.where(came, worth, tree.worth[row.node])
        tree = replace(
            tree,
            worth=tree.worth.at[jnp.where(came, row.node, size)].set(
                worth, mode="drop"
            ),
        )
        text = Pool(
            jnp.where(came, row.node, -1)[None],
            jnp.full(1, -1, jnp.int32),
            jnp.zeros(1),
            jnp.where(came, worth, NONE)[None],
        )
        pool = pools.merged(view.pool, text)
        ends = (row.phase == VALUE) & ~jnp.isnan(known)
        tree = backed_up(tree, row, known, ends)
        count = row.count + ends
        done = count >= simulations
        # On to the next node that must run, or the next text that must be valued.
        begins = ends | (view.round == 0)
        at = Place(
            node=jnp.where(begins, 0, row.node),
            path=row.path,
            depth=jnp.where(begins, 0, row.depth),
            phase=jnp.where(begins, DESCEND, WRITE),
        )
        at = lax.while_loop(moves_on, functools.partial(step, row, tree), at)
        entered = jnp.where(at.entered >= 0, at.entered, size)
        tree = replace(tree, entered=tree.entered.at[entered].set(True, mode="drop"))
        runs = (at.phase == RUN) & ~done
        # A text that is known is valued in a round of its own, which runs nothing.
        asks = (at.phase == VALUE) & jnp.isnan(tree.worth[at.node]) & ~done
        chosen = Selection(
            parent=lane,
            token=token,
            there=there,
            run=jnp.where(runs, at.node, -1)[None],
            pool=pool,
            done=done,
            ask=Texts(jnp.where(asks, at.node, -1)[None], jnp.full(1, -1)),
        )
        after = Row(
            *(row.explore, row.growth, tree),
            *(at.node, at.path, at.depth, at.phase, count),
        )
        return chosen, base.State(after, state.shared)

    def moves_on(at: Place) -> Array:
        return (at.phase == DESCEND) | (at.phase == WRITE)

    def step(row: Row, tree: Tree, at: Place) -> Place:
        """★ Make the simulation's next move; none of them runs the model."""
        descends = at.phase == DESCEND
        moves = tree.child[at.node]
        value = (
            tree.best if backup == "max" else tree.total / jnp.maximum(tree.moves, 1)
        )
        visits = tree.visits[at.node].astype(jnp.float32)
        weight = jnp.log((visits + row.growth + 1) / row.growth) + row.explore
        bonus = jnp.sqrt(jnp.log(visits)) / (1 + tree.moves[moves])
        score = value[moves] + weight * tree.prior[moves] * bonus
        best = jnp.argmax(jnp.where(moves >= 0, score, -jnp.inf))
        move = moves[jnp.where(descends, best, 0)]
        # A node without moves has not run: a text that is written stops there.
        ran, over = move >= 0, tree.ended[move]
        known = tree.entered[move]
        new = descends & ~over & ~known
        further = jnp.where(descends & known, DESCEND, WRITE)
        return Place(
            node=jnp.where(ran, move, at.node),
            path=jnp.where(descends, at.path.at[at.depth].set(move), at.path),
            depth=at.depth + descends,
            phase=jnp.where(ran, jnp.where(over, VALUE, further), RUN),
            entered=jnp.where(new, move, at.entered),
        )

    def backed_up(tree: Tree, row: Row, worth: Array, ends: Array) -> Tree:
        """★ Count a simulation that `ends` bool[] at its moves, with its return."""
        made = (jnp.arange(row.path.shape[0]) < row.depth) & ends
        at = jnp.where(made, row.path, tree.prior.shape[0])
        add = lambda x, value: x.at[at].add(value, mode="drop")
        first = jnp.where(tree.moves == 0, -jnp.inf, tree.best)
        best = first.at[at].max(worth, mode="drop")
        inside = made & tree.entered[row.path]
        visits = add(tree.visits, inside.astype(jnp.int32))
        return replace(
            tree,
            best=jnp.where(best > -jnp.inf, best, 0.0),
            total=add(tree.total, worth),
            moves=add(tree.moves, 1),
            visits=visits.at[0].add(ends),
        )

    return Select(
        *(init, choose, 1, top, keep, rounds),
        domain="logprobs",
        holds=ALL,
        asks=1,
        rewarded=True,
    )
