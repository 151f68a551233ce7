"""decoding/search/vote.py: answers by hand, and of samples under a drafter."""

import re
from collections import Counter

import pytest

from decoding import Spec
from decoding.hypotheses.rank import Sample
from decoding.search import vote
from models.errors import MethodError
from tests.decoding.search.rows import N, samples, searched


def test_votes_by_hand():
    def order(*texts: str, **fields) -> list[tuple[int, float]]:
        rank = vote.rank(len(texts), **fields)
        return rank.order([Sample([], text, [], True) for text in texts])

    assert order("so 4", "7", "is 4.", "none") == [(0, 2.0), (2, 2.0), (1, 1.0), (3, 0)]
    assert [i for i, _ in order("5", "6", "6", "5")] == [0, 3, 1, 2]  # a tie: the first
    assert [i for i, _ in order("a=1,b=2", "b=2,a=1", "a=1", pattern=r"a=(\d)")] == [
        *range(3)
    ]
    assert order("x", "y", "y", extract=lambda text: text)[0] == (1, 2.0)
    assert order("1 2", "3 2")[0][1] == 2.0  # the last number
    # Planted: the first number decides.
    assert order("1 2", "3 2", extract=lambda t: re.findall(r"\d", t)[0])[0][1] == 1.0


@pytest.mark.parametrize("drafter", ["plain", "tree"])
def test_votes_of_samples(drafter):
    """The last letter before the end decides; `n` texts, best answers first."""
    search = Spec("search/vote", samples=N, pattern="[a-g]")
    out = searched(search, drafter, n=N)
    for texts, spelt, scores in zip(out.tokens, out.texts, out.scores):
        counts = Counter(text[-1] for text in spelt if text)
        assert scores[0] == max(counts.values())
        assert scores == [counts[t[-1]] if t else 0 for t in spelt]
        assert sorted(map(tuple, texts)) in [
            sorted(map(tuple, t)) for t in samples().tokens
        ]


def test_refuses():
    with pytest.raises(MethodError, match="is no regex"):
        searched(Spec("search/vote", pattern="("))
    with pytest.raises(MethodError, match="samples=0"):
        searched(Spec("search/vote", samples=0))
    with pytest.raises(MethodError, match="no tokenizer"):
        vote.rank(1).order([Sample([1], None, [], True)])
