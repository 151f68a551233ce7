"""DSpark's chains: as long as the confidence head promises tokens in less time.

Cheng, Yu, Shao, Li, Xiong et al., *DSpark: Confidence-Scheduled Speculative Decoding
with Semi-Autoregressive Generation*, 2026, arXiv 2607.05147. With c_j the confidence
that draft j is accepted where those before it are (`models/heads/dspark.py`), read
before the draft is made, over all rows r

    a_j     = product over i <= j of sigmoid(logit c_i / T_i)
    theta_n = sum_r (1 + sum_{j < n} a_{r,j}) / t(n)

every row drafts n - 1 tokens, n growing from 2 while theta_n does not fall. A row alone
ends where c_j < least. t(n) → `times`: milliseconds of a target call by block width,
the next measured width's; T → `temperatures`, of sequential temperature scaling
(`training/evaluation/sequential_temperatures.py`).

Whether a draft exists depends on the tokens and laws before it, never on itself, and n
stops at the first fall, so that no later token is looked at: the output law is the
target's.

Deviations from the paper: its engine verifies any number of tokens of each row, and
admits the most promising ones of the batch. Here all rows of a program have blocks of
one width, so the width is what is chosen. Its production form takes confidences two
rounds old; here they are the round's own.

Cost per level: one arg-max or sample over V, and a product of D + r numbers.
"""

from typing import Any

import jax
import jax.numpy as jnp
from flax import struct
from jax import Array

from decoding import base
from decoding.catalogue import Card
from decoding.tree_building import child_sampling, grow
from models.errors import MethodError
from models.heads import dspark

CARD = Card(
    paper="DSpark, arXiv 2607.05147",
    guarantee=base.LAW,
    family="adaptive chain",
    data=("least",),
    needs=("draw", "heads"),
    trained=True,
    examples={"length": 3, "times": ((1, 1.0), (2, 1.1), (4, 1.2))},
    sources=("cheng2026dspark",),
)


NO_CONFIDENCE = (
    "topologies/confidence_schedule needs heads with a confidence head: train "
    "drafters/dspark with confidence=True"
)


@struct.dataclass
class Row:
    """One row's chain."""

    least: Array  # float32[B]
    alive: Array  # float32[B]: a_j of the last draft that was rated
    sure: Array  # bool[B]: c_j >= least so far
    tokens: Array  # float32[B]: 1 + the sum of the a_j so far
    pays: Array  # bool[B]: theta has not fallen; the same in all rows


def topology(
    heads: Any = None,
    length: int = 7,
    times: tuple[tuple[int, float], ...] = (),
    temperatures: tuple[float, ...] = (),
    least: float = 0.0,
    draw: str = base.POINT,
) -> base.Topology:
    """Grow chains while another draft pays.

    Args:
        heads: the drafter's, to check; rounds read them from `params`.
        length: drafts at most.
        times: measured (block width, milliseconds) pairs of the target; (): all take
            the same.
        temperatures: T of each draft; (): 1.
        least: a confidence below which a row's chain ends; 0: never.
        draw: one of `base.DRAWS`.
    """
    if length < 1 or not 0 <= least <= 1:
        raise MethodError(
            f"length={length}, least={least}: use at least one draft, and a probability"
        )
    if len(temperatures) not in (0, length) or any(not t > 0 for t in temperatures):
        raise MethodError(
            f"temperatures={temperatures}: use {length} numbers above 0, or none"
        )
    if any(n < 1 or not t > 0 for n, t in times):
        raise MethodError(f"times={times}: use pairs of a width and milliseconds")
    child_sampling.check(draw)
    if heads is not None and "confidence" not in heads:
        raise MethodError(NO_CONFIDENCE)
    costs = [_time(times, n) for n in range(1, length + 2)]
    scale = temperatures or (1.0,) * length
    widths = (1,) * (length + 1)

    def init(batch: int) -> base.State:
        ones, yes = jnp.ones((batch,), jnp.float32), jnp.ones((batch,), bool)
        return base.State(Row(least * ones, ones, yes, ones, yes))

    def watch(params, state: base.State, own: Array, level: int) -> base.State:
        row: Row = state.row
        if level == 0:
            row = init(row.least.shape[0]).row.replace(least=row.least)
        if "confidence" not in params.get("heads", ()):
            raise MethodError(NO_CONFIDENCE)
        rated = dspark.rated(params["heads"], own[:, 0]) / scale[level]
        confidence = jax.nn.sigmoid(rated)
        alive = row.alive * confidence
        tokens = row.tokens + alive
        # A block of `level` + 2 nodes beside one of `level` + 1.
        pays = tokens.sum() / costs[level + 1] >= row.tokens.sum() / costs[level]
        return base.State(
            Row(
                row.least,
                alive,
                row.sure & (confidence >= row.least),
                tokens,
                row.pays & (pays | (level == 0)),
            )
        )

    def expand(keys, state: base.State, tree: base.TokenTree, logits, noise, level):
        tokens = child_sampling.candidates(draw, keys, logits, 1, noise(level))[:, 0]
        live = (state.row.sure & state.row.pays)[:, None]
        local = jnp.zeros_like(tokens)
        return grow.put(tree, widths, level, tokens, local, live, logits), state

    def more(state: base.State, level: int) -> Array:
        """Return whether a row has draft `level`, bool[B], below which it may grow."""
        grows = state.row.sure & state.row.pays
        return grows if level else jnp.ones_like(grows)

    def adapt(state: base.State, outcome: base.Outcome) -> base.State:
        return state

    return base.Topology(
        init, expand, adapt, widths, draw, linear=True, more=more, watch=watch
    )


def _time(times: tuple[tuple[int, float], ...], width: int) -> Any:
    """Return the time of the narrowest measured block of at least `width` nodes."""
    wide = [t for n, t in sorted(times) if n >= width]
    return wide[0] if wide else max((t for _, t in times), default=1.0)
