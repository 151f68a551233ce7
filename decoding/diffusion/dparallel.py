"""Commit every position whose law has little entropy.

Chen et al., *dParallel: Learnable Parallel Decoding for dLLMs*, 2025, arXiv 2509.26488,
section 5.1; the rule is in `LLaDA/generate.py` of the official repository. The weights
are trained to be certain (section 4.2), by the objective of the same name in
training/objectives/language_models/.

Cost: the entropy of C laws a step.
"""

import jax.numpy as jnp

from decoding import base
from decoding.catalogue import Card
from decoding.denoising.schedule import CONF, ENTROPY, Choice, Scheduler, best
from models.errors import MethodError

CARD = Card(
    paper="Chen et al. 2025, arXiv 2509.26488",
    guarantee=base.LOSSY,
    family="threshold",
    data=("most",),
    sources=("chen2025dparallel",),
)


def scheduler(most: float = 0.5) -> Scheduler:
    """Build the schedule.

    Args:
        most: entropy in nats of a position that is committed; the position of least
            entropy always is.
    """
    if not most >= 0:
        raise MethodError(f"most={most}: use 0 or more")

    def init(params, canvas):
        return base.State(jnp.float32(most))

    def select(key, state, canvas, proposal):
        sure = proposal.open & (proposal.entropy <= state.row)
        return Choice(sure | best(-proposal.entropy, proposal.open, 1))

    return Scheduler(select, init, reads=frozenset({CONF, ENTROPY}))
