"""A*-decoding: the most promising step of any text goes on, by a process reward.

Chatziveroglou, *A*-Decoding: Token-Efficient Inference Scaling*, 2025, arXiv
2505.13672, section 3. Texts are written step by step. A frontier holds the texts that
wait, each with

    f = g + h        h: the process reward of the text so far
                     g: the sum of the rises of h on the way to it

The best M are taken from it; of each, k steps are sampled and put into it. The search
ends when a finished text is taken, or after `expansions` texts, with the best finished
one; if there is none, with the best that waits.

M -> take; k -> samples; h -> generate(reward=...), a reward of beginnings. A step ends
with the text, with a token that holds the separator, or after `longest` tokens.

A reconstruction: the paper gives no code, and which changes of h make up g is told by
others.
Deviations: none known. Cost: M k nodes a round, and three rounds more a step.
"""

from dataclasses import replace
from typing import Any

import jax
import jax.numpy as jnp
from flax import struct
from jax import Array, lax

from decoding import base, noise, vocab
from decoding.catalogue import Card
from decoding.hypotheses import pool as pools
from decoding.hypotheses.nodes import ALL, Select, Selection, Texts, View
from decoding.hypotheses.pool import NONE, Pool
from decoding.text_lookup import token_marks
from models.errors import MethodError

CARD = Card(
    paper="A*-decoding, arXiv 2505.13672",
    guarantee=base.LOSSY,
    family="tree search",
    needs=("tokenizer", "vocab_size"),
    examples={"samples": 2, "expansions": 4, "separator": "a", "longest": 4},
    sources=("chatziveroglou2025decoding",),
)

TAKE, WRITE, LAST = range(3)  # what a round does


@struct.dataclass
class Frontier:
    """Texts that wait, or a round's steps: `node`, `last` as in `Texts`."""

    node: Array  # int32[C]: -1: none
    last: Array  # int32[C]
    given: Array  # float32[C]: log-probability of `last`
    value: Array  # float32[C]: h
    cost: Array  # float32[C]: g


@struct.dataclass
class Row:
    phase: Array  # int32[]
    waits: Frontier  # leaves [C]
    count: Array  # int32[]: places of the frontier in use
    taken: Array  # int32[]: texts taken so far
    steps: Frontier  # leaves [W]: h and g are those of the text that a step follows
    live: Array  # bool[W]: steps that go on
    size: Array  # int32[W]: tokens of a step


def select(
    tokenizer: Any,
    vocab_size: int,
    samples: int = 4,
    take: int = 1,
    expansions: int = 32,
    longest: int = 64,
    separator: str = "\n",
    keep: int = 1,
) -> Select:
    """Search by steps.

    Args:
        tokenizer: the target's.
        vocab_size: the target's.
        samples: steps that follow a text.
        take: texts that go on at once.
        expansions: texts that go on at most.
        longest: tokens of a step at most.
        separator: characters, of one token or a part of it, that end a step.
        keep: texts that are kept.
    """
    for name, value in (
        *(("samples", samples), ("take", take), ("expansions", expansions)),
        *(("longest", longest), ("keep", keep)),
    ):
        if value < 1:
            raise MethodError(f"{name}={value}: use at least 1")
    ends = jnp.asarray(token_marks.holding(tokenizer, vocab_size, separator))
    width, turns = samples * take, -(-expansions // take)
    index = jnp.arange(width)

    def rounds(new: int) -> int:
        return 1 + turns * (min(longest, new) + 3)

    def init(params: base.Params, size: int) -> base.State:
        waits, zero = frontier(max(1 + width * turns, take)), jnp.int32(0)
        waits = replace(waits, node=waits.node.at[0].set(0))  # the prompt
        off = jnp.zeros(width, bool)
        row = Row(zero, waits, zero + 1, zero, frontier(width), off, 0 * index)
        return base.State(row)

    def choose(key: Array, state: base.State, view: View) -> tuple:
        row, phase = state.row, state.row.phase
        # What a round does, and the others would do.
        every = (taken(row, view), written(row, view, key), asked(row, view))
        pick = lambda a, b, c: jnp.where(
            phase == TAKE, a, jnp.where(phase == WRITE, b, c)
        )
        row, chosen = jax.tree.map(pick, *every)
        return chosen, base.State(row, state.shared)

    def selection(view: View, **fields: Any) -> Selection:
        none = jnp.full(width, -1, jnp.int32)
        plain = Selection(
            *(0 * index, 0 * index, none >= 0, none),
            *(view.pool, jnp.zeros((), bool), Texts(none, none)),
        )
        return plain._replace(**fields)

    def taken(row: Row, view: View) -> tuple[Row, Selection]:
        """★ Put the valued steps into the frontier, and take the best texts."""
        waits, pool, count = pushed(row, view)
        score = jnp.where(waits.node >= 0, waits.value + waits.cost, -jnp.inf)
        best, at = lax.top_k(score, take)
        exists = best > -jnp.inf
        node, last = waits.node[at], waits.last[at]
        finished = exists & ((last >= 0) | view.nodes.ended[node])
        done = finished.any() | (row.taken >= expansions) | ~exists.any()
        waiting = Pool(
            jnp.where(exists, node, -1), last, waits.given[at], jnp.maximum(best, NONE)
        )
        none = pool.node[0] < 0
        pool = jax.tree.map(
            lambda a, b: jnp.where(done & none, b, a),
            pool,
            pools.merged(view.pool, waiting),
        )
        goes = exists & ~done & (row.taken + jnp.arange(take) < expansions)
        gone = jnp.where(goes, at, waits.node.shape[0])
        own = jnp.repeat(jnp.arange(take), samples)
        steps = jax.tree.map(lambda x: x[at][own], waits)
        begins = goes[own]
        run = jnp.where(begins & (index % samples == 0), steps.node, -1)
        after = replace(
            row,
            phase=jnp.int32(WRITE),
            waits=replace(waits, node=waits.node.at[gone].set(-1, mode="drop")),
            count=count,
            taken=row.taken + goes.sum(),
            steps=replace(steps, node=jnp.where(begins, steps.node, -1)),
            live=begins,
            size=0 * index,
        )
        return after, selection(view, run=run, pool=pool, done=done)

    def pushed(row: Row, view: View) -> tuple[Frontier, Pool, Array]:
        """★ Put the valued steps into the frontier, and the finished into the pool."""
        steps, value = row.steps, view.values
        there = (steps.node >= 0) & ~jnp.isnan(value)
        cost = steps.cost + jnp.maximum(value - steps.value, 0)
        new = replace(steps, value=value, cost=cost)
        at = row.count + jnp.cumsum(there) - 1
        at = jnp.where(there, at, row.waits.node.shape[0])
        waits = jax.tree.map(lambda x, y: x.at[at].set(y, mode="drop"), row.waits, new)
        over = there & ((steps.last >= 0) | view.nodes.ended[steps.node])
        text = Pool(
            jnp.where(over, steps.node, -1),
            steps.last,
            steps.given,
            jnp.where(over, value + cost, NONE),
        )
        return waits, pools.merged(view.pool, text), row.count + there.sum()

    def written(row: Row, view: View, key: Array) -> tuple[Row, Selection]:
        """★ Write a token of every step; the first behind the text that was taken."""
        steps = row.steps
        lane = jnp.where(row.size == 0, index - index % samples, index)
        drawn = jax.vmap(
            lambda i: noise.gumbel(jax.random.fold_in(key, i), vocab_size)
        )(index)
        logp = vocab.log_softmax(view.logits)[lane]
        token = vocab.argmax(logp + jnp.where(view.sampled, drawn, 0.0))
        over = view.ends(lane, token)
        hangs = row.live & ~over
        size = row.size + row.live
        live = hangs & ~ends[token] & (size < longest)
        ids = view.ids(hangs)
        stops = row.live & over
        after = replace(
            row,
            phase=jnp.where(live.any(), WRITE, LAST).astype(jnp.int32),
            steps=replace(
                steps,
                node=jnp.where(
                    hangs, ids, jnp.where(stops, view.lanes[lane], steps.node)
                ),
                last=jnp.where(stops, token, jnp.where(row.live, -1, steps.last)),
                given=jnp.where(stops, view.raw[lane, token], steps.given),
            ),
            live=live,
            size=size,
        )
        # A step's last token runs too, so that a head or a model can value it.
        return after, selection(view, parent=lane, token=token, there=hangs, run=ids)

    def asked(row: Row, view: View) -> tuple[Row, Selection]:
        """★ Ask the worth of the texts with their new steps."""
        ask = Texts(row.steps.node, row.steps.last)
        return replace(row, phase=jnp.int32(TAKE)), selection(view, ask=ask)

    return Select(
        *(init, choose, width, width, keep, rounds),
        samples=True,
        holds=ALL,
        asks=width,
        rewarded=True,
    )


def frontier(size: int) -> Frontier:
    """Make `size` places without a text."""
    none, zero = jnp.full(size, -1, jnp.int32), jnp.zeros(size)
    return Frontier(none, none, zero, zero, zero)
