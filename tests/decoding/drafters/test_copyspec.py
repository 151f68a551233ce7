"""CopySpec by hand, and against a search written with Python lists."""

import numpy as np
import pytest

from decoding.drafters import copyspec
from models.errors import MethodError
from tests.decoding.drafters import kit


def by_hand(text: list[int], gamma: int, copy: int) -> list[int]:
    n = len(text)
    for j in range(gamma - 1, n - 1):
        if text[j - gamma + 1 : j + 1] == text[n - gamma :]:
            return text[j + 1 : j + 1 + copy]
    return []


def test_worked_example():
    """The last three tokens 1 2 3 stood at the start: copy what followed there."""
    text = [1, 2, 3, 7, 8, 9, 1, 2, 3, 5, 1, 2, 3]
    assert kit.drafts(copyspec.drafter(3, 4), [text]) == [[7, 8, 9, 1]]


def test_shorter_matches_do_not_count():
    """Two tokens match and three do not: prompt lookup proposes, CopySpec does not."""
    assert kit.drafts(copyspec.drafter(3, 4), [[9, 1, 2, 5, 8, 1, 2]]) == [[]]
    assert kit.drafts(copyspec.drafter(3, 4), [[1, 2], [1]]) == [[], []]


@pytest.mark.parametrize("gamma", [1, 3, 5])
def test_random_texts(gamma):
    """200 texts of 3 letters, seed 0; what lies past their ends must not matter."""
    rng = np.random.default_rng(0)
    texts = [rng.integers(1, 4, rng.integers(1, 31)).tolist() for _ in range(200)]
    expected = [by_hand(t, gamma, 4) for t in texts]
    assert any(expected)
    for junk in (0, 2):
        found = kit.drafts(copyspec.drafter(gamma, 4), texts, junk=junk)
        assert found == expected


def test_fault_a_longer_match_is_asked_for():
    """Planted: gamma off by one finds other places."""
    text = [2, 3, 7, 1, 2, 3, 8, 9, 1, 2, 3]
    right, wrong = copyspec.drafter(3, 2), copyspec.drafter(2, 2)
    assert kit.drafts(right, [text]) == [[8, 9]] == [by_hand(text, 3, 2)]
    assert kit.drafts(wrong, [text]) == [[7, 1]]


def test_bad_arguments():
    with pytest.raises(MethodError, match="gamma=0"):
        copyspec.drafter(gamma=0)
    with pytest.raises(MethodError, match="copy=0"):
        copyspec.drafter(copy=0)
