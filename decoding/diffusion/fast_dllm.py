"""Commit every position whose guess is confident enough.

Wu et al., *Fast-dLLM: Training-free Acceleration of Diffusion LLM by Enabling KV Cache
and Parallel Decoding*, 2025, arXiv 2505.22618, section 3.3, algorithm 1 and theorem 1.

`threshold`: all with a probability of at least that, and the best one always. `factor`
f: with the probabilities c1 >= c2 >= ..., the first n for the largest n with
(n + 1) (1 - c_n) <= f: with f = 1, where by theorem 1 greedy decoding of the product of
marginals is that of their joint law. A threshold above 1 is one position a forward.

Cost: a sort of C numbers a step.
"""

import jax.numpy as jnp

from decoding import base
from decoding.catalogue import Card
from decoding.denoising.schedule import CONF, Choice, Scheduler, ranks
from models.errors import MethodError

CARD = Card(
    paper="Wu et al. 2025, arXiv 2505.22618",
    guarantee=base.LOSSY,
    family="threshold",
    data=("threshold", "factor"),
    sources=("wu2025fastdllm",),
)


def scheduler(threshold: float = 0.9, factor: float = 0.0) -> Scheduler:
    """Build the schedule.

    Args:
        threshold: probability of a guess that is committed, 0 or more.
        factor: f, in place of the threshold where it is above 0.
    """
    if threshold < 0 or factor < 0:
        raise MethodError(f"threshold={threshold}, factor={factor}: use 0 or more")

    def init(params, canvas):
        return base.State((jnp.float32(threshold), jnp.float32(factor)))

    def select(key, state, canvas, proposal):
        least, f = state.row
        sure = proposal.open & (proposal.conf >= least)
        # The left side rises with n, so the positions that hold it are the first ones.
        place = ranks(proposal.logp, proposal.open)
        few = proposal.open & ((place + 2) * (1 - proposal.conf) <= f)
        return Choice(jnp.where(f > 0, few, sure))

    return Scheduler(select, init, reads=frozenset({CONF}))
