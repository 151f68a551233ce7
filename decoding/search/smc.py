"""Sequential Monte Carlo: N weighted texts of a law under a constraint.

Lew, Zhi-Xuan, Grand, Mansinghka, *Sequential Monte Carlo Steering of Large Language
Models using Probabilistic Programs*, 2023, arXiv 2306.03081; in the form of Loula et
al., *Syntactic and Semantic Control of Large Language Models via Sequential Monte
Carlo*, 2025, arXiv 2504.13139. N particles write a token a round. With q the law after
the transforms and m the mass that constraints leave of the law without them
(`transform_chain.mass`),

    x_i ~ q(. | text i);  w_i <- w_i m(text i)
    if (sum w)^2 / sum w^2 < threshold N:  N draws by w;  each w <- mean w

N -> particles. Texts that ended keep their weights and are drawn like the others. The
target is g(y) = prod_t m(y_<t) q(y_t | y_<t): without truncations the law without the
constraint, at the texts that satisfy it. `out.scores` are log w, so that for any f

    E[mean_i w_i f(y_i)] = sum_y g(y) f(y);        E[mean_i w_i] = Z = sum_y g(y)

over all N texts, those of `generate(n=N)`. A text that the limit ends counts as it is.
The best text is no draw from g / Z; one of the N drawn by w nearly is. Particle i has
the noise of text i of `generate(n=)`; with threshold 0 the particles are those texts.

A `proposal` (`constraints/awrs`) draws x_i by a host oracle and gives an estimate of m
that is right on average; where other constraints leave a mass, the two are multiplied.
A particle for which it finds no token has no weight, and its text goes on as it may.

Deviations: the first paper draws several successors of a particle and keeps N without
replacement; multinomial draws below a threshold are the default of its authors'
library. Once all texts have ended, nothing is resampled. Prompts of temperature 0
beside others have N equal particles. Without a constraint all weights are 1.
Cost: N nodes a round; for each the transforms twice, with and without constraints;
under a proposal a round trip to the host.
"""

import math
from typing import Any

import jax.numpy as jnp
from flax import struct
from jax import Array

from decoding import base, vocab
from decoding.catalogue import Card, Spec
from decoding.hypotheses import pool as pools
from decoding.hypotheses.nodes import Select, Selection, View
from decoding.hypotheses.pool import NONE, Pool
from decoding.hypotheses.proposal import Paths, Proposal
from models.errors import MethodError

CARD = Card(
    paper="SMC steering, arXiv 2306.03081",
    guarantee=base.LOSSY,
    family="particles",
    needs=("greedy", "tokenizer", "eos", "vocab_size"),
    data=("threshold",),
    examples={"particles": 4},
    sources=("lew2023sequential", "loula2025syntactic"),
)


@struct.dataclass
class Row:
    threshold: Array  # float32[]
    weight: Array  # float32[N]: logs
    ended: Array  # bool[N]
    node: Array  # int32[N]: of an ended text, as in `Pool`
    last: Array  # int32[N]
    given: Array  # float32[N]


DEAD = -1e8  # log weight of a particle without a weight; above the pool's NONE


def select(
    particles: int = 8,
    threshold: float = 0.5,
    greedy: bool = False,
    proposal: Spec | Proposal | None = None,
    tokenizer: Any = None,
    eos: tuple[int, ...] = (),
    vocab_size: int = 0,
) -> Select:
    """Search by particles.

    Args:
        particles: N.
        threshold: share of `particles` below which the effective sample size calls for
            resampling, in [0, 1]; 0: never.
        greedy: whether every prompt has temperature 0, at which nothing is drawn.
        proposal: what draws the tokens, such as `constraints/awrs`; None: their law.
        tokenizer: the proposal's, as `eos` and `vocab_size`.
        eos: ids of the end-of-sequence tokens.
        vocab_size: V.
    """
    if particles != int(particles) or particles < 1:
        raise MethodError(f"particles={particles}: use a whole number, 1 or more")
    if not 0 <= threshold <= 1:
        raise MethodError(f"threshold={threshold} is outside [0, 1]; 0.5 is usual")
    if greedy:
        raise MethodError(
            "temperature=0 with search/smc, whose particles are drawn: use a "
            "temperature above 0, such as 1"
        )
    drawing = proposal
    if isinstance(drawing, Spec):
        about = {"tokenizer": tokenizer, "eos": eos, "vocab_size": vocab_size}
        drawing = drawing.build(about)
    if drawing is not None and not isinstance(drawing, Proposal):
        raise MethodError(f"proposal={proposal}: give a Spec of constraints/awrs")
    index = jnp.arange(particles)

    def drawn(key: Array, row: Row, view: View, lane: Array) -> tuple[Array, Array]:
        """Return a token for each particle, and the log of what it is worth."""
        logits, noise = view.logits[lane], view.noise(index)
        if drawing is None:
            return vocab.gumbel_argmax(logits, noise), view.mass[lane]
        live = ~row.ended & (row.weight > DEAD / 2)
        paths = Paths(view.nodes, view.lanes[lane], live)
        token, worth = drawing.propose(key, paths, logits, noise)
        return token, jnp.where(live, worth + view.mass[lane], 0.0)

    def init(params: base.Params, size: int) -> base.State:
        none = jnp.full(particles, -1, jnp.int32)
        zeros, false = jnp.zeros(particles), jnp.zeros(particles, bool)
        return base.State(Row(jnp.float32(threshold), zeros, false, none, none, zeros))

    def choose(key: Array, state: base.State, view: View) -> tuple:
        row = state.row
        # In the first round all particles are the one node there is.
        lane = jnp.where(view.round == 0, 0, index)
        token, worth = drawn(key, row, view, lane)
        weight = jnp.maximum(row.weight + jnp.where(row.ended, 0.0, worth), DEAD)
        ends = view.ends(lane, token) & ~row.ended
        ended = row.ended | ends
        node = jnp.where(ends, view.lanes[lane], row.node)
        last = jnp.where(ends, token, row.last)
        given = jnp.where(ends, view.raw[lane, token], row.given)

        source, weight = resampled(key, weight, ended, row.threshold)
        after = Row(
            row.threshold,
            weight,
            *(x[source] for x in (ended, node, last, given)),
        )
        goes = ~after.ended
        texts = Pool(
            jnp.where(goes, -1, after.node),
            after.last,
            after.given,
            jnp.where(goes, NONE, weight),
        )
        chosen = Selection(
            lane[source],
            token[source],
            goes,
            view.ids(goes),
            pools.merged(pools.empty(particles), texts),
            ~goes.any(),
        )
        return chosen, base.State(after, state.shared)

    return Select(
        *(init, choose, particles, particles, particles),
        samples=True,
        weighs=True,
    )


def resampled(
    key: Array, weight: Array, ended: Array, threshold: Array
) -> tuple[Array, Array]:
    """★ Draw N particles by their weights, if few of them have any.

    Args:
        key: of the round.
        weight: float32[N], logs.
        ended: bool[N]; where all have ended, they stay as they are.
        threshold: float32[], a share of N.

    Returns:
        int32[N], whose place each particle takes, and the new log weights.
    """
    count = weight.shape[0]
    total = vocab.logsumexp(weight)
    size = jnp.exp(2 * total - vocab.logsumexp(2 * weight))
    few = (size < threshold * count) & ~ended.all()
    drawn = vocab.argmax(weight + vocab.gumbel(key, (count, count)))
    source = jnp.where(few, drawn, jnp.arange(count))
    return source, jnp.where(few, total - math.log(count), weight)
