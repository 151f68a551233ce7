"""decoding/search/mbr.py: likeness by hand, and the best of samples."""

import numpy as np
import pytest

from decoding import Spec
from decoding.conformance import kit
from decoding.hypotheses.rank import Sample
from decoding.search import mbr
from models.errors import MethodError
from tests.decoding.search.rows import N, samples, searched


def test_mbr_by_hand():
    assert mbr.likeness([1, 2, 3], [1, 2, 3], 2) == 1.0
    # Of one token: 2 of mean size 3; of two: (1, 2) of mean size 2.
    assert mbr.likeness([1, 2, 3], [1, 2, 4], 2) == pytest.approx((2 / 3 + 1 / 2) / 2)
    assert mbr.likeness([], [], 2) == 1.0 and mbr.likeness([1], [2], 2) == 0.0
    order = mbr.rank(3).order([Sample(t, None, [], True) for t in ([9], [1, 2], [1])])
    assert [i for i, _ in order] == [1, 2, 0]
    # Planted: sets in the place of multisets would be equal.
    assert mbr.likeness([1, 1, 1], [1], 1) == 0.5 != len({1}) / len({1})


def test_mbr_is_a_majority_where_texts_are_equal_or_apart():
    texts = [[1], [2], [3], [2], [2]]
    order = mbr.rank(5, 1).order([Sample(t, None, [], True) for t in texts])
    assert [i for i, _ in order][:3] == [1, 3, 4] and order[0][1] == 0.6


@pytest.mark.parametrize("drafter", ["plain", "tree"])
def test_mbr_of_samples(drafter):
    out = searched(Spec("search/mbr", samples=N), drafter)
    for text, score, texts in zip(out.tokens, out.scores, samples().tokens):
        means = [np.mean([mbr.likeness(a, b, 2) for b in texts]) for a in texts]
        assert score == pytest.approx(max(means))
        assert text == texts[int(np.argmax(np.round(means, 9)))]


def test_echo_begins_with_the_prompt_and_changes_no_choice():
    out = searched(Spec("search/mbr", samples=2), echo=True)
    bare = searched(Spec("search/mbr", samples=2))
    assert out.tokens == [p + t for p, t in zip(kit.PROMPTS, bare.tokens)]
    assert out.scores == bare.scores


def test_refuses():
    with pytest.raises(MethodError, match="grams=0"):
        searched(Spec("search/mbr", grams=0))
