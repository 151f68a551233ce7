"""Look-ahead: continuations of a text that say which token to write next.

A lane waits at the text's last token, so that its law is at hand when the choice falls.
Other lanes write the continuations. All functions are ★ (of one request).
"""

import jax.numpy as jnp
from flax import struct
from jax import Array

from decoding.hypotheses import pool as pools
from decoding.hypotheses.nodes import Selection, Texts, View
from decoding.hypotheses.pool import NONE, Pool


@struct.dataclass
class Rollout:
    """`W` continuations, each from its first token on."""

    node: Array  # int32[W]: with `last` the text so far, as in `Texts`; -1: none
    last: Array  # int32[W]
    total: Array  # float32[W]: log-probability of the continuation
    count: Array  # int32[W]: its tokens
    live: Array  # bool[W]: it goes on

    @property
    def texts(self) -> Texts:
        """The texts that end with the continuations."""
        return Texts(self.node, self.last)

    @property
    def mean(self) -> Array:
        """Log-probability a token, float32[W]; -inf where there is no continuation."""
        mean = self.total / jnp.maximum(self.count, 1)
        return jnp.where(self.node >= 0, mean, -jnp.inf)


def fresh(there: Array) -> Rollout:
    """Make continuations `there` bool[W] without a token."""
    size = there.shape[0]
    empty, zero = jnp.full(size, -1, jnp.int32), jnp.zeros(size, jnp.int32)
    return Rollout(empty, empty, jnp.zeros(size), zero, there)


def grown(
    view: View, roll: Rollout, lane: Array, token: Array, given: Array, goes: Array
) -> tuple[Rollout, Array]:
    """Write a token at the end of every continuation that is live.

    Args:
        view: what the search sees.
        roll: the continuations.
        lane: int32[W], the lanes that ran their last nodes.
        token: int32[W].
        given: float32[W], the tokens' log-probabilities.
        goes: bool[W], false: the token is the continuation's last, and does not run.

    Returns:
        The continuations, and which of the tokens are leaves bool[W]. The leaves'
        `View.ids` must be counted over these alone.
    """
    runs = roll.live & goes & ~view.ends(lane, token)
    at = jnp.where(runs, view.ids(runs), view.lanes[lane])
    grown = Rollout(
        node=jnp.where(roll.live, at, roll.node),
        last=jnp.where(roll.live, jnp.where(runs, -1, token), roll.last),
        total=roll.total + jnp.where(roll.live, given, 0.0),
        count=roll.count + roll.live,
        live=runs,
    )
    return grown, runs


def written(
    view: View, lane: Array, token: Array, score: Array, width: int, fan: int
) -> Selection:
    """Write `token` int32[] behind `lane` int32[], where all continuations end.

    It runs next in lane 0, alone; or it ends the text, and the search.

    Args:
        view: what the search sees.
        lane: that waits.
        token: to write.
        score: float32[], of the text where it ends.
        width: K.
        fan: F.
    """
    over = view.ends(lane[None], token[None])[0]
    there = (jnp.arange(fan) == 0) & ~over
    run = jnp.full(width, -1, jnp.int32).at[0].set(view.ids(there)[0])
    text = Pool(
        jnp.where(over, view.lanes[lane], -1)[None],
        token[None],
        view.raw[lane, token][None],
        jnp.where(over, score, NONE)[None],
    )
    every = lambda x: jnp.broadcast_to(x, (fan,)).astype(jnp.int32)
    pool = pools.merged(view.pool, text)
    return Selection(every(lane), every(token), there, run, pool, over)


def going_on(
    view: View, lane: Array, token: Array, goes: Array, waits: int
) -> Selection:
    """Run the leaves `goes` of `grown` beside the lanes that wait.

    Args:
        view: what the search sees.
        lane: int32[W], of the leaves' parents.
        token: int32[W].
        goes: bool[W].
        waits: the first so many lanes wait, and W follow.
    """
    run = jnp.concatenate([view.lanes[:waits], view.ids(goes)])
    return Selection(lane, token, goes, run, view.pool, jnp.zeros((), bool))
