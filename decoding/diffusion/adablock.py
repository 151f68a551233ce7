"""Blocks that end with a line or a clause: at a confidently predicted delimiter.

Lu et al., *AdaBlock-dLLM: Semantic-Aware Diffusion LLM Inference via Adaptive Block
Size*, 2025, arXiv 2509.26432, algorithm 1.

After the forward that opens a block, of the next quarter of the canvas the most
confident position whose guess is a delimiter ends the block, if its probability is at
least `threshold`. Else the block has `size` positions.

Cost: the head runs on a quarter of the canvas, the longest block.
"""

import jax.numpy as jnp
import numpy as np

from decoding import base
from decoding.catalogue import Card
from decoding.denoising.schedule import BLOCK, CONF, Scheduler
from models.errors import MethodError

CARD = Card(
    paper="Lu et al. 2025, arXiv 2509.26432",
    guarantee=base.LAW,
    family="blocks",
    needs=("tokenizer",),
    sources=("lu2025adablock",),
    examples={"delimiters": (2,)},
)
SHARE = 0.25  # of the canvas


def scheduler(
    delimiters: str | tuple[int, ...] = "\n",
    threshold: float = 0.3,
    size: int = BLOCK,
    tokenizer: object = None,
) -> Scheduler:
    """Build the part.

    Args:
        delimiters: ids, or characters: every token that ends with one is a delimiter.
        threshold: probability of one that ends a block (0.3 for LLaDA, 0.5 for Dream).
        size: positions of a block without one.
        tokenizer: filled in.
    """
    if size < 1:
        raise MethodError(f"size={size}: use at least 1")
    if isinstance(delimiters, str):
        if tokenizer is None or not delimiters:
            raise MethodError(
                f"delimiters={delimiters!r}: give characters, and a model with a "
                "tokenizer, or ids"
            )
        ends = tuple(char.encode() for char in delimiters)
        tokens = tokenizer.token_bytes()  # type: ignore[attr-defined]
        ids = [i for i, token in enumerate(tokens) if token.endswith(ends)]
    else:
        ids = [int(i) for i in delimiters]
    table = np.asarray(ids, np.int32)

    def window(tokens: int) -> int:
        return max(size, int(SHARE * tokens))

    def plan(state, canvas, proposal):
        width = proposal.guess.shape[0]
        whole = canvas.limit - canvas.start
        index = jnp.arange(width, dtype=jnp.int32)
        among = proposal.open & (index < (SHARE * whole).astype(jnp.int32))
        among &= (proposal.guess[:, None] == table).any(1)
        at = jnp.argmax(jnp.where(among, proposal.conf, -1.0)).astype(jnp.int32)
        found = among[at] & (proposal.conf[at] >= threshold)
        return canvas.lo + jnp.where(found, at + 1, size)

    return Scheduler(
        plan=plan, window=window, reads=frozenset({CONF}), guarantee=base.LAW
    )
