"""Commit where the last steps agreed, as many positions as did.

Chen et al., *Beyond Confidence: Adaptive and Coherent Decoding for Diffusion Language
Models*, 2025, arXiv 2512.02044 (CCD, and CCD-DS with a budget that adapts).

Each of the last `steps` steps names the `top` open positions of least entropy. The
candidates are named by all of them.

- `average=True`, the text: the mean of the laws of those steps ranks them, the least
  entropy first.
- `average=False`, the released code: a candidate's best token must also be that of the
  step before. Two steps are compared. The best position must have been named before;
  else the step is a plain one. The number of names grows from 1 to `top` + 1 after a
  warm-up of 4 steps, and is 2 once a tenth of the block is open.

`adaptive` commits all candidates (CCD-DS), else the first (CCD). Without a candidate
the position of least entropy is committed.

Deviations: sets are of open positions alone; the code also ranks committed ones, and
may write masks over them. Blocks are those of the schedule; the code has none, and its
warm-up is that of a block here. What is committed is the guess of the step's own law.

Cost: with `average` the C laws of `steps` - 1 steps are kept, C x V numbers each.
"""

import jax.numpy as jnp

from decoding import base
from decoding.catalogue import Card
from decoding.denoising.schedule import (
    ENTROPY,
    PROBS,
    Choice,
    Scheduler,
    best,
)
from models.errors import MethodError

CARD = Card(
    paper="Chen et al. 2025, arXiv 2512.02044",
    guarantee=base.LOSSY,
    family="history",
    needs=("vocab_size",),
    sources=("chen2025beyond",),
)
WARM, SPARE = 4, 0.1  # steps with one name; share of the block that ends the growth


def scheduler(
    vocab_size: int,
    steps: int = 2,
    top: int = 4,
    average: bool = True,
    adaptive: bool = True,
) -> Scheduler:
    """Build the schedule.

    Args:
        vocab_size: V; filled in.
        steps: d, of a mean (2 for LLaDA, 3 for Dream).
        top: positions that a step names.
        average: the text's form, else the released code's.
        adaptive: commit all candidates, else one.
    """
    if steps < 2 or top < 1:
        raise MethodError(f"steps={steps}, top={top}: use 2 and 1 or more")
    before = steps - 1 if average else 1

    def init(params, canvas):
        size = canvas.window
        names = jnp.zeros((before, size), bool)
        laws = jnp.zeros((before, size, vocab_size if average else 0), jnp.float32)
        last, one = jnp.zeros(size, jnp.int32), jnp.zeros((), jnp.int32)
        return base.State((names, laws, last, one, one))

    def age(canvas):
        return canvas.step - canvas.begun

    def count(state, canvas, proposal):
        """Return how many positions this step names, and the block's open ones."""
        *_, number, masks = state.row
        left, i = proposal.open.sum(dtype=jnp.int32), age(canvas)
        masks = jnp.where(i == 0, left, masks)
        if average:
            return jnp.int32(top), masks
        number = jnp.where(left <= SPARE * masks, 1, number)
        return jnp.where(i < WARM, 1, jnp.minimum(number + 1, top + 1)), masks

    def candidates(state, canvas, proposal):
        """Return the candidates bool[C], and the figure that ranks them."""
        names, laws, last, *_ = state.row
        number, _ = count(state, canvas, proposal)
        sure = -proposal.entropy
        among = best(sure, proposal.open, number) & names.all(0)
        if average:
            mean = (laws.sum(0) + proposal.probs) / steps
            return among & (age(canvas) >= steps - 1), -entropy(mean)
        among &= proposal.probs.argmax(-1) == last
        first = best(sure, proposal.open, 1)
        passes = (age(canvas) > WARM) & (first & names[0]).any()
        return among & passes, sure

    def select(key, state, canvas, proposal):
        among, value = candidates(state, canvas, proposal)
        if not adaptive:
            among = best(value, among, 1)
        plain = best(-proposal.entropy, proposal.open, 1)
        return Choice(jnp.where(among.any(), among, plain))

    def observe(state, canvas, proposal, commit):
        names, laws, *_ = state.row
        number, masks = count(state, canvas, proposal)
        rest = proposal.open & ~commit
        fresh = best(-proposal.entropy, rest, number)
        names = jnp.concatenate([names[1:], fresh[None]])
        if average:
            laws = jnp.concatenate([laws[1:], proposal.probs[None]])
        last = proposal.probs.argmax(-1).astype(jnp.int32)
        return base.State((names, laws, last, number, masks), state.shared)

    return Scheduler(select, init, observe=observe, reads=frozenset({ENTROPY, PROBS}))


def entropy(p):
    """★ Return the entropy in nats of laws [..., V], float32[...]."""
    return -jnp.where(p > 0, p * jnp.log(jnp.where(p > 0, p, 1.0)), 0.0).sum(-1)
