"""First finish search: of N samples the one that ends first.

Agarwal, Sengupta, Chakraborty, *First Finish Search: Efficient Test-Time Scaling in
Large Language Models*, 2025, arXiv 2505.18149, section 3. Rows are decoded together
until k of them have ended; the shortest text is the answer, of equals the first row's.

    N -> samples; k -> finishers

"First" is by tokens: a row is retired once it is as long as the k-th shortest text that
has ended. So the result is that of all N samples in full, under every drafter, although
drafts end texts in other rounds.

Deviations: none; a text that only the limit ends has not finished and comes last.
Cost: N rows, each of at most the k-th shortest text's tokens and one round more.
"""

from collections.abc import Sequence

import jax.numpy as jnp
from jax import Array

from decoding import base
from decoding.catalogue import Card
from decoding.hypotheses.rank import Rank, Sample
from models.errors import MethodError

CARD = Card(
    paper="First finish search, arXiv 2505.18149",
    guarantee=base.LOSSY,
    family="samples",
    kind="rank",
    examples={"samples": 4},
    sources=("agarwal2025first",),
)


def rank(samples: int = 4, finishers: int = 1) -> Rank:
    """Return the shortest of `samples` texts, or the `finishers` shortest."""
    if not 1 <= finishers <= samples:
        raise MethodError(
            f"finishers={finishers} of samples={samples}: use 1 to as many as there are"
        )

    def retire(length: Array, ended: Array) -> Array:
        most = jnp.iinfo(jnp.int32).max
        shortest = jnp.sort(jnp.where(ended, length, most))[finishers - 1]
        return ~ended & (length >= shortest)

    def order(found: Sequence[Sample]) -> list[tuple[int, float]]:
        keys = [(not s.ended, len(s.tokens), i) for i, s in enumerate(found)]
        return [(i, -float(length)) for _, length, i in sorted(keys)]

    return Rank(samples, order, retire)
