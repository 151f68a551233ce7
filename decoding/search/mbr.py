"""Minimum Bayes risk: of N samples the one most like all others.

Eikema, Aziz, *Sampling-Based Approximations to Minimum Bayes Risk Decoding for Neural
Machine Translation*, 2022, arXiv 2108.04718, section 3. With the samples y_1 .. y_N as
hypotheses and as references,

    h = argmax_h (1 / N) sum_i u(h, y_i)        N -> samples

u is the F1 of n-grams of tokens, averaged over n = 1 .. `grams`: the overlap of two
multisets, over their mean size. It is 1 for equal texts alone.

Deviations: the utility; the paper's is BEER, and others take BLEU or a trained metric.
Cost: N rows, and N^2 comparisons of texts on the host.
"""

from collections import Counter
from collections.abc import Sequence

from decoding import base
from decoding.catalogue import Card
from decoding.hypotheses.rank import Rank, Sample
from models.errors import MethodError

CARD = Card(
    paper="Sampling-based MBR, arXiv 2108.04718",
    guarantee=base.LOSSY,
    family="samples",
    kind="rank",
    examples={"samples": 4},
    sources=("eikema2022sampling",),
)


def ngrams(tokens: Sequence[int], size: int) -> Counter:
    """Count the n-grams of a text."""
    return Counter(tuple(tokens[i : i + size]) for i in range(len(tokens) - size + 1))


def likeness(a: Sequence[int], b: Sequence[int], grams: int) -> float:
    """Return the mean F1 of n-grams of 1 to `grams` tokens; texts without any are 1."""
    total, sizes = 0.0, 0
    for size in range(1, grams + 1):
        first, second = ngrams(a, size), ngrams(b, size)
        both = first.total() + second.total()
        if both:
            total += 2 * (first & second).total() / both
            sizes += 1
    return total / sizes if sizes else 1.0


def rank(samples: int = 32, grams: int = 2) -> Rank:
    """Return the texts by their mean likeness to all samples.

    Args:
        samples: texts a prompt.
        grams: longest n-grams to compare.
    """
    if samples < 1 or grams < 1:
        raise MethodError(f"samples={samples}, grams={grams}: use at least 1 of each")

    def order(found: Sequence[Sample]) -> list[tuple[int, float]]:
        texts = [s.tokens for s in found]
        values = [sum(likeness(a, b, grams) for b in texts) / len(texts) for a in texts]
        ranked = sorted(range(len(texts)), key=lambda i: (-values[i], i))
        return [(i, values[i]) for i in ranked]

    return Rank(samples, order)
