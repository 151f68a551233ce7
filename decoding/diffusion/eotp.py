"""Cut the canvas as soon as an end of sequence is predicted.

Bao et al., *Learning to Parallel: Accelerating Diffusion Large Language Models via
Learnable Parallel Decoding*, 2025, arXiv 2509.25188 ("End-of-Text Prediction").

If the guess of an open position of the block is an end of sequence, the canvas ends
behind it: behind the first that was committed, or else the most confident one.

Deviations: `floor`, a probability that such a guess must have; the official code has
none, and cuts at any. As in that code's cached forms the block is searched; its form
without a cache searches the whole canvas.

Cost: nothing beside the schedule.
"""

import jax.numpy as jnp
import numpy as np

from decoding import base
from decoding.catalogue import Card
from decoding.denoising.schedule import CONF, Scheduler
from models.errors import MethodError

CARD = Card(
    paper="Bao et al. 2025, arXiv 2509.25188",
    guarantee=base.LOSSY,
    family="stop",
    needs=("eos",),
    sources=("bao2025learning",),
)


def scheduler(eos: tuple[int, ...], floor: float = 0.0) -> Scheduler:
    """Build the part.

    Args:
        eos: ids that end a text; filled in.
        floor: probability of a guess that cuts the canvas, at least.
    """
    if not 0 <= floor <= 1:
        raise MethodError(f"floor={floor}: use a probability")
    ends = np.asarray(eos, np.int32)

    def stop(state, canvas, proposal):
        width = proposal.guess.shape[0]
        index = canvas.lo + jnp.arange(width, dtype=jnp.int32)
        at = jnp.minimum(index, canvas.tokens.shape[0] - 1)
        written = canvas.known[at] & (index >= canvas.start) & (index < canvas.limit)
        is_end = (proposal.guess[:, None] == ends).any(1)
        committed = written & proposal.open & is_end
        guessed = proposal.open & is_end & (proposal.conf >= floor)
        first = jnp.argmax(committed)
        likely = jnp.argmax(jnp.where(guessed, proposal.conf, -1.0))
        place = jnp.where(committed.any(), first, likely).astype(jnp.int32)
        cuts = committed.any() | guessed.any()
        return jnp.where(cuts, canvas.lo + place + 1, canvas.limit)

    return Scheduler(stop=stop, reads=frozenset({CONF}))
