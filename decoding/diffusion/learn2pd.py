"""Commit the guesses that a trained filter takes for final.

Bao et al., *Learning to Parallel: Accelerating Diffusion Large Language Models via
Learnable Parallel Decoding*, 2025, arXiv 2509.25188. With c the
confidences in the block, 1 where a token is known:

    commit i  iff  sigmoid(f(c)_i) > threshold,  or i is the most confident

The filter f is `predictors/unmask_filter`, given as `drafts={"filter": params}`. It is
trained for blocks of 32; a shorter one is padded with 1. A filter that says no to all
is `llada`. Their end-of-text prediction is a part of its own: `diffusion/eotp`.

Deviations: none. Cost: a product of 32 x 32 twice a forward.
"""

import jax
import jax.numpy as jnp

from decoding import base
from decoding.catalogue import Card
from decoding.denoising.schedule import CONF, Choice, Scheduler, best
from models.errors import MethodError
from models.predictors import unmask_filter

CARD = Card(
    paper="Bao et al. 2025, arXiv 2509.25188",
    guarantee=base.LOSSY,
    family="trained",
    data=("threshold",),
    sources=("bao2025learning",),
)


def scheduler(threshold: float = 0.96) -> Scheduler:
    """Build the schedule.

    Args:
        threshold: chance of being final that a guess must exceed, 0 to 1.
    """
    if not 0 <= threshold <= 1:
        raise MethodError(f"threshold={threshold}: use a probability, 0 to 1")

    def init(params, canvas):
        if "filter" not in params:
            raise MethodError(
                "diffusion/learn2pd has no filter: pass drafts={'filter': params}, "
                "trained by configs/predictors/learn2pd.py"
            )
        return base.State(jnp.float32(threshold), params["filter"])

    def select(key, state, canvas, proposal):
        block, width = unmask_filter.block_of(state.shared), proposal.open.shape[0]
        if width > block:
            raise MethodError(
                f"the filter is for blocks of {block}, and the schedule's have up to "
                f"{width}: leave its plan out, or use a smaller one"
            )
        conf = jnp.where(proposal.open, proposal.conf, 1.0)
        conf = jnp.pad(conf, (0, block - width), constant_values=1.0)
        chance = jax.nn.sigmoid(unmask_filter.log_odds(state.shared, conf))
        final = proposal.open & (chance[:width] > state.row)
        return Choice(final | best(proposal.logp, proposal.open, 1))

    return Scheduler(select, init, reads=frozenset({CONF}))
