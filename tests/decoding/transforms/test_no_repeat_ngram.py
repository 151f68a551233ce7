"""decoding/transforms/no_repeat_ngram.py."""

import numpy as np
import pytest

from decoding.transforms import no_repeat_ngram
from models.errors import MethodError
from tests.decoding.transforms.samplers import run

VOCAB = 5


def banned(n: int, text: list[int], prompt: int) -> list[int]:
    out = run(
        no_repeat_ngram.transform(n), np.zeros(VOCAB), text[:prompt], text[prompt:]
    )
    return np.flatnonzero(~np.isfinite(out)).tolist()


def listed(n: int, text: list[int]) -> list[int]:
    """By a dictionary of the text's n-grams, as in HF transformers."""
    grams: dict[tuple, set] = {}
    for at in range(len(text) - n + 1):
        grams.setdefault(tuple(text[at : at + n - 1]), set()).add(text[at + n - 1])
    end = tuple(text[len(text) - n + 1 :])
    return sorted(grams.get(end, ())) if len(text) + 1 >= n else []


def test_equals_a_list_of_the_ngrams():
    rng = np.random.default_rng(0)
    found = 0
    for length in (1, 3, 8, 25):
        for n in (1, 2, 3, 4):
            text = rng.integers(0, 3, length).tolist()
            want = listed(n, text)
            assert banned(n, text, (length + 1) // 2) == want
            found += len(want)
    assert found > 10


@pytest.mark.parametrize("n", [2, 3])
def test_equals_hf(parity, n):
    parity(f"no_repeat_ngram/{n}", no_repeat_ngram.transform(n))


def test_fault_an_ngram_of_one_more_token():
    """Planted: n + 1."""
    text = [0, 1, 2, 0, 1]
    assert banned(3, text, 3) == [2]
    assert banned(4, text, 3) == [] != listed(3, text)


def test_where_all_would_be_forbidden_none_is():
    assert banned(1, [0, 1, 2, 3, 4], 2) == []


@pytest.mark.parametrize("n", [0, 1.5])
def test_refuses(n):
    with pytest.raises(MethodError, match="whole number"):
        no_repeat_ngram.transform(n)
