"""decoding/search/first_finish.py: the shortest text of `generate(n=)`."""

import jax.numpy as jnp
import pytest

from decoding import Method, Spec
from decoding.conformance import kit
from decoding.hypotheses.rank import Sample
from decoding.search import first_finish
from models.errors import MethodError, PromptError
from tests.decoding.search.rows import DRAFTERS, HEAT, LM, NEW, N, samples, searched


def shortest(texts: list[list[int]]) -> list[int]:
    ended = [t for t in texts if t[-1] == kit.EOS]
    return min(ended or texts, key=len)


@pytest.mark.parametrize("drafter", DRAFTERS)
def test_first_finish_is_the_shortest_of_all_samples(drafter):
    """Fewer tokens are decoded than by all samples in full."""
    out, full = searched(Spec("search/first_finish", samples=N), drafter), samples()
    assert out.tokens == [shortest(texts) for texts in full.tokens]
    assert out.scores == [-float(len(t)) for t in out.tokens]
    assert out.stats.new_tokens.sum() < full.stats.new_tokens.sum() * 0.7
    assert out.guarantee == "LOSSY"


@pytest.mark.long
@pytest.mark.parametrize("name", kit.drafters())
def test_first_finish_under_every_lossless_drafter(name):
    want = [shortest(texts) for texts in samples().tokens]
    for method in kit.cases_of(name).values():
        search = Spec("search/first_finish", samples=N)
        parts = {"drafter": method.drafter, "topology": method.topology}
        bare = Method(**parts)
        if kit.generate(bare, HEAT, lm=LM, max_new_tokens=4).guarantee != "LAW":
            continue
        out = kit.generate(
            Method(search=search, **parts), HEAT, lm=LM, max_new_tokens=NEW
        )
        assert out.tokens == want, name


def test_rows_are_retired_by_tokens():
    """Nine tokens have ended; planted: all others are retired in that round."""
    length, ended = jnp.array([5, 9, 12, 8, 9]), jnp.array([0, 1, 0, 0, 0], bool)
    retired = first_finish.rank(5).retire(length, ended)
    assert retired.tolist() == [False, False, True, False, True]
    assert retired.tolist() != (~ended & ended.any()).tolist()
    both = first_finish.rank(5, 2).retire(length, ended.at[3].set(True))
    assert both.tolist() == [False, False, True, False, True]
    assert not first_finish.rank(5, 2).retire(length, ended).any()


def test_more_finishers():
    """The three shortest, best first; of equals the first row's."""
    out = searched(Spec("search/first_finish", samples=N, finishers=3), "tree", 3)
    for texts, found in zip(samples().tokens, out.tokens):
        ended = sorted((t for t in texts if t[-1] == kit.EOS), key=len)
        assert found[: len(ended)] == ended[:3]
    rank = first_finish.rank(3)
    made = [Sample([1] * n, None, [], ended) for n, ended in ((4, 1), (2, 0), (4, 1))]
    assert [i for i, _ in rank.order(made)] == [0, 2, 1]


def test_greedy_rows_are_one_text():
    method = Method(search=Spec("search/first_finish", samples=2))
    greedy = kit.generate(method, lm=LM, max_new_tokens=NEW)
    assert greedy.tokens == kit.generate(Method(), lm=LM, max_new_tokens=NEW).tokens


def test_refuses():
    with pytest.raises(MethodError, match="finishers=9"):
        searched(Spec("search/first_finish", finishers=9))
    with pytest.raises(PromptError, match="keeps 2 texts"):
        searched(Spec("search/first_finish", samples=2), n=3)
    with pytest.raises(MethodError, match="a search has none"):
        searched(Spec("search/first_finish"), loop=max)
