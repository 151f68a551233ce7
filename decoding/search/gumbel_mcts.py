"""Gumbel MuZero: every token by a small tree search over the values of a head.

Danihelka, Guez, Schrittwieser, Silver, *Policy Improvement by Planning with Gumbel*,
2022, ICLR, OpenReview bERaNdoegnO. A node's moves a have logits l(a) of the model, and
q(a) is the mean of the values v of the nodes run below a. The q of moves without a
visit is (v + N sum_a p(a) q(a)) / (1 + N), over the visited moves with p scaled to 1
there and N visits in all. With q scaled to [0, 1] by the node's extremes,

    sigma(q) = (visits + max_a n(a)) scale q
    root:   argmax g(a) + l(a) + sigma(q(a)), of the moves with the round's visits n
    below:  argmax softmax(l + sigma(q))(a) - n(a) / (1 + N)

g is Gumbel noise, 0 at temperature 0. The rounds at the root are those of Sequential
Halving: half of the moves drop out until two are left. After `simulations` of them the
move of most visits that scores best is the next token, and a new search begins there.
c_visit -> visits; c_scale -> scale; v is that of generate(reward=...), a reward with a
value for every node, such as `rewards/value_head`.

Deviations: moves are the `top` most probable tokens; the paper draws those at the root
from all. With top = V and one simulation a token is a draw from the model's law.
Cost: one node a simulation at most, and a round each. Nodes of earlier tokens' searches
are kept: their moves are counted anew, but they run once.
"""

import math
from dataclasses import replace

import jax
import jax.numpy as jnp
import numpy as np
from flax import struct
from jax import Array, lax

from decoding import base, vocab
from decoding.catalogue import Card
from decoding.hypotheses import nodes
from decoding.hypotheses.nodes import ALL, Select, Selection, View
from decoding.hypotheses.pool import NONE, Pool
from models.errors import MethodError

CARD = Card(
    paper="Gumbel MuZero, ICLR 2022",
    guarantee=base.LOSSY,
    family="tree search",
    data=("visits", "scale"),
    examples={"simulations": 4, "top": 3},
    sources=("danihelka2022policy",),
)


@struct.dataclass
class Tree:
    """What is known of every node; a move is the node that it leads to."""

    child: Array  # int32[M, k]: the moves, best first; -1: none, or not known yet
    ended: Array  # bool[M]: a text ends with the node
    logit: Array  # float32[M]: log-probability of the move
    value: Array  # float32[M]: of the node; NaN: it was not run
    total: Array  # float32[M]: the sum of the move's returns, for this token
    moves: Array  # int32[M]: n, for this token


@struct.dataclass
class Row:
    visits: Array  # float32[]
    scale: Array  # float32[]
    tree: Tree
    gumbel: Array  # float32[k], of the root's moves
    root: Array  # int32[]: the text so far
    path: Array  # int32[T]: the moves of the simulation
    depth: Array  # int32[]: how many
    count: Array  # int32[]: simulations so far, for this token


@struct.dataclass
class Place:
    """Where a simulation is; see `Row`."""

    node: Array
    path: Array
    depth: Array
    goes: Array


def select(
    simulations: int = 32,
    top: int = 16,
    visits: float = 50.0,
    scale: float = 0.1,
) -> Select:
    """Search by simulations for every token.

    Args:
        simulations: of a token.
        top: moves of a node; at the root all of them are considered.
        visits: added to the most visits of a move, in the weight of values.
        scale: of the weight of values; 0 leaves them out.
    """
    if simulations < 1 or top < 1:
        raise MethodError(f"simulations={simulations}, top={top}: use at least 1")
    if not (0 <= visits < math.inf and 0 <= scale < math.inf):
        raise MethodError(f"visits={visits}, scale={scale}: use finite numbers >= 0")
    table = jnp.asarray([halving(m, simulations) for m in range(top + 1)], jnp.int32)

    def rounds(new: int) -> int:
        return 1 + simulations * new

    def init(params: base.Params, size: int) -> base.State:
        most, zero = 1 + top * rounds(size), jnp.int32(0)
        tree = Tree(
            child=jnp.full((most, top), -1, jnp.int32),
            ended=jnp.zeros(most, bool),
            logit=jnp.zeros(most),
            value=jnp.full(most, jnp.nan),
            total=jnp.zeros(most),
            moves=jnp.zeros(most, jnp.int32),
        )
        numbers = (jnp.float32(visits), jnp.float32(scale))
        path = jnp.zeros(size, jnp.int32)
        return base.State(Row(*numbers, tree, jnp.zeros(top), zero, path, zero, zero))

    def choose(key: Array, state: base.State, view: View) -> tuple:
        row = state.row
        size = row.tree.value.shape[0]
        ran, lane = view.lanes[0], jnp.zeros(top, jnp.int32)
        # The value and the moves of the node that ran.
        logp = vocab.log_softmax(view.logits[0])
        best, token = nodes.best(logp, top)
        there = (best > -jnp.inf) & (ran >= 0) & ~row.tree.ended[ran]
        hung = view.ids(there)
        put = lambda x, at, new: x.at[jnp.where(at >= 0, at, size)].set(
            new, mode="drop"
        )
        tree = replace(
            row.tree,
            child=put(row.tree.child, ran, hung),
            ended=put(row.tree.ended, hung, view.ends(lane, token)),
            logit=put(row.tree.logit, hung, best),
            value=put(row.tree.value, ran, view.node_values[0]),
        )
        # The return of a simulation, which its moves are counted by.
        begins = view.round == 0
        made = (jnp.arange(row.path.shape[0]) < row.depth) & ~begins
        at = jnp.where(made, row.path, size)
        leaf = row.path[jnp.maximum(row.depth - 1, 0)]
        tree = replace(
            tree,
            total=tree.total.at[at].add(tree.value[leaf], mode="drop"),
            moves=tree.moves.at[at].add(1, mode="drop"),
        )
        # The next token, after so many of them.
        count = row.count + ~begins
        decided = count >= simulations
        after = replace(row, tree=tree, count=count)
        moves = tree.child[row.root]
        most = jnp.where(moves >= 0, tree.moves[moves], 0).max()
        root = jnp.where(decided, root_move(after, most), row.root)
        fresh = decided | begins
        gumbel = jnp.where(view.sampled, jax.random.gumbel(key, (top,)), 0.0)
        tree = replace(
            tree,
            total=jnp.where(fresh, 0.0, tree.total),
            moves=jnp.where(fresh, 0, tree.moves),
        )
        after = replace(
            after,
            tree=tree,
            gumbel=jnp.where(fresh, gumbel, row.gumbel),
            root=root,
            count=jnp.where(fresh, 0, count),
        )
        done = tree.ended[root]
        text = Pool(
            jnp.where(done, root, -1)[None],
            jnp.full(1, -1, jnp.int32),
            jnp.zeros(1),
            jnp.where(done, tree.value[root], NONE)[None],
        )
        # The next simulation, down to a move without a visit or to a text's end.
        place = Place(root, row.path, jnp.int32(0), ~done)
        place = lax.while_loop(
            lambda place: place.goes, lambda place: step(after, place), place
        )
        runs = jnp.isnan(tree.value[place.node]) & ~done
        chosen = Selection(
            parent=lane,
            token=token,
            there=there,
            run=jnp.where(runs, place.node, -1)[None],
            pool=text,
            done=done,
        )
        after = replace(after, path=place.path, depth=place.depth)
        return chosen, base.State(after, state.shared)

    def scores(row: Row, node: Array) -> tuple[Array, Array, Array]:
        """★ Return a node's moves, their visits, and l + sigma(q), float32[k]."""
        tree, moves = row.tree, row.tree.child[node]
        there = moves >= 0
        seen = jnp.where(there, tree.moves[moves], 0)
        logit = jnp.where(there, tree.logit[moves], -jnp.inf)
        q = tree.total[moves] / jnp.maximum(seen, 1)
        p = jnp.maximum(jax.nn.softmax(logit), jnp.finfo(jnp.float32).tiny)
        p = jnp.where(seen > 0, p, 0.0)
        mean = (p * q).sum() / jnp.maximum(p.sum(), jnp.finfo(jnp.float32).tiny)
        mixed = (tree.value[node] + seen.sum() * mean) / (1 + seen.sum())
        q = jnp.where(seen > 0, q, mixed)
        low, high = q.min(), q.max()
        q = (q - low) / jnp.maximum(high - low, 1e-8)
        weight = (row.visits + seen.max()) * row.scale
        return moves, seen, logit + weight * q

    def root_move(row: Row, considered: Array) -> Array:
        """★ Return the best move of the root with so many visits, int32[]."""
        moves, seen, score = scores(row, row.root)
        considers = (moves >= 0) & (seen == considered)
        return moves[jnp.argmax(jnp.where(considers, row.gumbel + score, -jnp.inf))]

    def step(row: Row, place: Place) -> Place:
        """★ Make the simulation's next move; none of them runs the model."""
        moves, seen, score = scores(row, place.node)
        ahead = jax.nn.softmax(score) - seen / (1 + seen.sum())
        below = moves[jnp.argmax(jnp.where(moves >= 0, ahead, -jnp.inf))]
        considered = table[(row.tree.child[row.root] >= 0).sum(), row.count]
        move = jnp.where(place.node == row.root, root_move(row, considered), below)
        goes = (row.tree.moves[move] > 0) & ~row.tree.ended[move]
        path = place.path.at[place.depth].set(move)
        return Place(move, path, place.depth + 1, goes)

    return Select(
        *(init, choose, 1, top, 1, rounds),
        samples=True,
        holds=ALL,
        rewarded=True,
        valued=True,
    )


def halving(moves: int, simulations: int) -> list[int]:
    """Return the visits that a move of the root has when each simulation takes it.

    Sequential Halving: all moves get equally many visits, then the better half, down
    to two, in rounds of about as many simulations.
    """
    if moves <= 1:
        return list(range(simulations))
    order: list[int] = []
    seen = np.zeros(moves, int)
    left, phases = moves, math.ceil(math.log2(moves))
    while len(order) < simulations:
        for _ in range(max(1, simulations // (phases * left))):
            order += seen[:left].tolist()
            seen[:left] += 1
        left = max(2, left // 2)
    return order[:simulations]
