"""Commit the most confident positions, or random ones: a fixed number a forward.

Nie et al., *Large Language Diffusion Models*, 2025, arXiv 2502.09992, section 2.4 and
algorithms 4 and 5 (`generate.py` of the official repository). Low confidence is
MaskGIT's rule (Chang et al., 2022, arXiv 2202.04200).

A block of m open positions takes `steps` forwards. Each commits m // steps positions,
and the first m mod steps of them one more. With one position a forward, the default,
this is the reference of all schedules: `plain` decoding of a diffusion model. A random
order looks at no guess, so it is known before the forward.

Cost: a sort of C numbers a step.
"""

import jax
import jax.numpy as jnp

from decoding import base
from decoding.catalogue import Card
from decoding.denoising.schedule import CONF, Choice, Scheduler, best
from models.errors import MethodError

CARD = Card(
    paper="Nie et al. 2025, arXiv 2502.09992",
    guarantee=base.LAW,
    family="fixed quota",
    sources=("nie2025large",),
)
ORDERS = ("low_confidence", "random")


def quota(masks, steps, step):
    """★ Return how many of `masks` positions a step of `steps` commits, int32[]."""
    return masks // steps + (step < masks % steps)


def scheduler(steps: int = 0, order: str = "low_confidence") -> Scheduler:
    """Build the schedule.

    Args:
        steps: forwards of a block at most; 0: one for each position.
        order: "low_confidence" (the most confident guess first) or "random".
    """
    if order not in ORDERS:
        raise MethodError(f"order={order!r}: use one of {ORDERS}")
    if steps < 0:
        raise MethodError(f"steps={steps}: use 1 or more, or 0 for one a position")

    def init(params, canvas):
        zero = jnp.zeros((), jnp.int32)
        return base.State((zero, zero))  # open positions and forwards of the block

    def masks_of(state, canvas, is_open):
        begins = canvas.step == canvas.begun
        masks, step = state.row
        return (
            jnp.where(begins, is_open.sum(dtype=jnp.int32), masks),
            jnp.where(begins, 0, step),
        )

    def first(values, state, canvas, is_open):
        masks, step = masks_of(state, canvas, is_open)
        return best(values, is_open, quota(masks, steps, step) if steps else 1)

    def ahead(key, state, canvas, is_open):
        return first(jax.random.uniform(key, is_open.shape), state, canvas, is_open)

    def select(key, state, canvas, proposal):
        if order == "random":
            return Choice(ahead(key, state, canvas, proposal.open))
        return Choice(first(proposal.logp, state, canvas, proposal.open))

    def observe(state, canvas, proposal, commit):
        masks, step = masks_of(state, canvas, proposal.open)
        return base.State((masks, step + 1), state.shared)

    return Scheduler(
        select,
        init,
        observe=observe if steps else None,
        reads=frozenset({CONF}),
        guarantee=base.LOSSY if steps else base.LAW,
        ahead=ahead if order == "random" else None,
    )
