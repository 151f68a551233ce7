"""Searches over rows: the texts are those of `generate(n=)` under every drafter."""

import re
from collections import Counter

import jax.numpy as jnp
import numpy as np
import pytest

import decoding
from decoding import Method, Spec
from decoding.conformance import kit
from decoding.hypotheses.rank import Sample
from decoding.search import first_finish, mbr, vote
from models.errors import MethodError, PromptError

LM = kit.model(0, ending=-1.0)  # texts end after some ten tokens
N, NEW, HEAT = 6, 40, 0.9
DRAFTERS = {
    "plain": {},
    "tree": {"drafter": kit.spec("drafters/token_recycling", choices=kit.SMALL_TREE)},
    "model": {
        "drafter": kit.spec("drafters/model"),
        "topology": kit.spec("topologies/chain"),
    },
}


def samples(n: int = N):
    return kit.generate(Method(), HEAT, lm=LM, n=n, max_new_tokens=NEW)


def searched(search: Spec, drafter: str = "plain", n: int = 1, **fields):
    method = Method(search=search, **DRAFTERS[drafter])
    return kit.generate(method, HEAT, lm=LM, n=n, max_new_tokens=NEW, **fields)


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
@pytest.mark.parametrize("name", decoding.catalogue.names("drafters"))
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


def test_mbr_by_hand():
    assert mbr.likeness([1, 2, 3], [1, 2, 3], 2) == 1.0
    # Of one token: 2 of mean size 3; of two: (1, 2) of mean size 2.
    assert mbr.likeness([1, 2, 3], [1, 2, 4], 2) == pytest.approx((2 / 3 + 1 / 2) / 2)
    assert mbr.likeness([], [], 2) == 1.0 and mbr.likeness([1], [2], 2) == 0.0
    order = mbr.rank(3).order([Sample(t, None, [], True) for t in ([9], [1, 2], [1])])
    assert [i for i, _ in order] == [1, 2, 0]
    # Planted: sets in the place of multisets.
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


def test_echo_and_greedy_rows():
    out = searched(Spec("search/mbr", samples=2), echo=True)
    bare = searched(Spec("search/mbr", samples=2))
    assert out.tokens == [p + t for p, t in zip(kit.PROMPTS, bare.tokens)]
    greedy = kit.generate(
        Method(search=Spec("search/first_finish", samples=2)), lm=LM, max_new_tokens=NEW
    )
    assert greedy.tokens == kit.generate(Method(), lm=LM, max_new_tokens=NEW).tokens


@pytest.mark.parametrize(
    ("search", "fields", "error", "words"),
    [
        (
            Spec("search/first_finish", samples=2),
            {"n": 3},
            PromptError,
            "keeps 2 texts",
        ),
        (Spec("search/first_finish", finishers=9), {}, MethodError, "finishers=9"),
        (Spec("search/vote", pattern="("), {}, MethodError, "is no regex"),
        (Spec("search/vote", samples=0), {}, MethodError, "samples=0"),
        (Spec("search/mbr", grams=0), {}, MethodError, "grams=0"),
        (Spec("search/mbr"), {"loop": max}, MethodError, "a search has none"),
    ],
)
def test_refuses(search, fields, error, words):
    with pytest.raises(error, match=words):
        searched(search, **fields)
