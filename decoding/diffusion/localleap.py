"""A lower threshold near very confident positions.

Kong et al., *Accelerating Diffusion LLM Inference via Local Determinism Propagation*,
2025, arXiv 2510.07081 (LocalLeap).

Open positions with a probability of at least `threshold` are anchors. Within `radius`
of one, `near` is enough. `near == threshold`, or a radius of 0, is `fast_dllm`.

Cost: a sum over 2 `radius` + 1 neighbours a step.
"""

import jax.numpy as jnp
import numpy as np

from decoding import base
from decoding.catalogue import Card
from decoding.denoising.schedule import CONF, Choice, Scheduler
from models.errors import MethodError

CARD = Card(
    paper="Kong et al. 2025, arXiv 2510.07081",
    guarantee=base.LOSSY,
    family="threshold",
    data=("threshold", "near"),
    sources=("kong2025accelerating",),
)


def scheduler(threshold: float = 0.9, near: float = 0.75, radius: int = 4) -> Scheduler:
    """Build the schedule.

    Args:
        threshold: probability of an anchor.
        near: probability that is enough near one, not above `threshold`.
        radius: positions on either side, 0 or more.
    """
    if not 0 <= near <= threshold or radius < 0:
        raise MethodError(
            f"threshold={threshold}, near={near}, radius={radius}: use "
            "0 <= near <= threshold and a radius of 0 or more"
        )

    def init(params, canvas):
        return base.State((jnp.float32(threshold), jnp.float32(near)))

    def select(key, state, canvas, proposal):
        high, low = state.row
        anchor = proposal.open & (proposal.conf >= high)
        around = np.ones(2 * radius + 1, np.float32)
        # "same" would be as long as the longer one: a block may be the shorter.
        sums = jnp.convolve(anchor.astype(jnp.float32), around, "full")
        close = sums[radius : radius + anchor.shape[0]] > 0
        least = jnp.where(close, low, high)
        return Choice(proposal.open & (proposal.conf >= least))

    return Scheduler(select, init, reads=frozenset({CONF}))
