"""decoding/rewards/python.py: a function of all texts, asked once."""

import pytest

import decoding
from decoding import Spec
from decoding.conformance import kit
from decoding.rewards import python
from models.errors import MethodError
from tests.decoding.search.rows import HEAT, LM, NEW, N

SEARCH = decoding.Method(search=Spec("search/best_of_n", samples=N))


def chosen(reward):
    fields = {"lm": LM, "max_new_tokens": NEW, "reward": reward}
    return kit.generate(SEARCH, HEAT, **fields)


def test_it_is_asked_once_for_all_texts():
    calls = []

    def shortest(samples):
        calls.append([(s.request, s.text, len(s.tokens), s.ended) for s in samples])
        return [-len(s.tokens) for s in samples]

    out = chosen(shortest)
    (asked,) = calls
    assert [request for request, *_ in asked] == [i for i in range(4) for _ in range(N)]
    best = [min(s for r, _, s, _ in asked if r == i) for i in range(4)]
    assert [len(tokens) for tokens in out.tokens] == best
    assert out.scores == [-size for size in best]
    # Planted: the order of the samples.
    assert best != [asked[i * N][2] for i in range(4)]


def test_refuses_what_is_no_number_a_text():
    with pytest.raises(MethodError, match="1 values for 24 texts"):
        chosen(lambda samples: [0.0])
    with pytest.raises(MethodError, match="is nan: return a number"):
        chosen(lambda samples: [float("nan")] * len(samples))
    with pytest.raises(MethodError, match="give a function"):
        python.reward(3)
