"""Best of N: of N samples the one of the highest reward.

Stiennon, Ouyang, Wu, Ziegler, Lowe, Voss, Radford, Amodei, Christiano, *Learning to
Summarize from Human Feedback*, 2020, arXiv 2009.01325, section 4.3. With samples
y_1 .. y_N,

    y = argmax_i r(y_i)        N -> samples; r -> generate(reward=...)

Of equal rewards the likelier text wins, then the earlier one. Where y has the
distribution function F of (r, log p), the best of N has F^N.

Deviations: none. Cost: N rows; the reward is asked once.
"""

from collections.abc import Sequence

from decoding import base
from decoding.catalogue import Card
from decoding.hypotheses.rank import Rank, Sample
from models.errors import MethodError

CARD = Card(
    paper="Best of N, arXiv 2009.01325",
    guarantee=base.LOSSY,
    family="samples",
    kind="rank",
    examples={"samples": 4},
    sources=("stiennon2020learning",),
)


def rank(samples: int = 16) -> Rank:
    """Return the texts by their rewards.

    Args:
        samples: texts a prompt.
    """
    if samples < 1:
        raise MethodError(f"samples={samples}: use at least 1")

    def order(found: Sequence[Sample]) -> list[tuple[int, float]]:
        values = [worth(s) for s in found]
        likely = [sum(s.logprobs) for s in found]
        ranked = sorted(range(len(found)), key=lambda i: (-values[i], -likely[i], i))
        return [(i, values[i]) for i in ranked]

    return Rank(samples, order, rewarded=True)


def worth(sample: Sample) -> float:
    """Return the reward of a text, which the search asked for."""
    assert sample.value is not None
    return sample.value
