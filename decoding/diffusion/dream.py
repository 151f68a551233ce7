"""Dream's sampler: no blocks, and a quota that follows the noise level.

Ye et al., *Dream 7B: Diffusion Large Language Models*, 2025, arXiv 2508.15487
(`generation_utils.py`, which ships with the weights).

Of `steps` levels t = 1, ..., 1/1000, step i commits int(m (1 - t[i + 1] / t[i])) of the
m open positions, the last one all. They are the first by `order`: "entropy" (the least
first), "maskgit_plus" (probability of the guess), "topk_margin" (lead of the best token
over the second), or "origin" (each by chance, with the probability above). The figures
are of the law after temperature and truncation, as in the official code. With
`order_temperature` positions are drawn, without replacement, by softmax(figure /
order_temperature).

Deviation: a step whose quota is 0 changes nothing, so it is not run; the next level
with a quota is taken at once. The text is the same, in fewer calls. "origin" commits
one position where chance chose none.

Cost: the head runs on all positions of the canvas, since none is left out.
"""

import jax
import jax.numpy as jnp
import numpy as np

from decoding import base
from decoding.catalogue import Card
from decoding.denoising.schedule import CONF, ENTROPY, MARGIN, Choice, Scheduler, best
from models.errors import MethodError

CARD = Card(
    paper="Ye et al. 2025, arXiv 2508.15487",
    guarantee=base.LOSSY,
    family="fixed quota",
    sources=("ye2025dream",),
)
ORDERS = ("entropy", "maskgit_plus", "topk_margin", "origin")
LAST = 1e-3  # the last level
READS = {"entropy": ENTROPY, "topk_margin": MARGIN}


def scheduler(
    steps: int = 0, order: str = "entropy", order_temperature: float = 0.0
) -> Scheduler:
    """Build the schedule.

    Args:
        steps: levels; 0: one for each position of the canvas.
        order: of `ORDERS`.
        order_temperature: 0 takes the first positions.
    """
    if order not in ORDERS:
        raise MethodError(f"order={order!r}: use one of {ORDERS}")
    if steps < 0 or order_temperature < 0:
        raise MethodError(
            f"steps={steps}, order_temperature={order_temperature}: use 0 or more"
        )

    def init(params, canvas):
        return base.State((jnp.zeros((), jnp.int32), canvas.open.sum(dtype=jnp.int32)))

    def level(state, masks):
        """Return the next level with a quota, and the quota."""
        step, whole = state.row
        levels = jnp.where(steps > 0, steps, whole)

        def share(i):
            t = lambda i: 1 - (1 - LAST) * i / levels
            return 1 - t(i + 1) / t(i)

        def number(i):
            last = i >= levels - 1
            return jnp.where(last, masks, (masks * share(i)).astype(jnp.int32))

        idle = lambda i: (number(i) == 0) & (i < levels - 1)
        at = jax.lax.while_loop(idle, lambda i: i + 1, step)
        return at, number(at), share(at)

    def select(key, state, canvas, proposal):
        masks = proposal.open.sum(dtype=jnp.int32)
        _, quota, share = level(state, masks)
        if order == "origin":
            chance = jax.random.uniform(key, proposal.open.shape)
            last = quota == masks
            return Choice(proposal.open & ((chance < share) | last))
        values = {
            "entropy": proposal.entropy,
            "maskgit_plus": proposal.conf,
            "topk_margin": proposal.margin,
        }[order]
        values = -values if order == "entropy" else values
        if order_temperature:
            noise = jax.random.gumbel(key, values.shape)
            values = values / np.float32(order_temperature) + noise
        return Choice(best(values, proposal.open, quota))

    def observe(state, canvas, proposal, commit):
        at, _, _ = level(state, proposal.open.sum(dtype=jnp.int32))
        return base.State((at + 1, state.row[1]), state.shared)

    return Scheduler(
        select,
        init,
        plan=lambda state, canvas, proposal: canvas.limit,
        window=lambda tokens: tokens,
        observe=observe,
        reads=frozenset({READS.get(order, CONF)}),
        warped=True,
    )
