"""decoding/search/diverse_beam.py, against HF's texts and its two limits."""

import functools

import numpy as np
import pytest

import decoding
from decoding import Method, Spec
from decoding.conformance import kit
from models.errors import MethodError
from tests.decoding.search import golden, reference

LM = kit.model(0, ending=0.5)


def found(name="diverse_beam", lm=LM, n=4, new=24, **arguments):
    method = Method(search=Spec(f"search/{name}", **arguments))
    return decoding.generate(lm, kit.PROMPTS, method, max_new_tokens=new, n=n)


def hf(chosen, method=None) -> tuple:
    def make(case):
        _, width, groups, diversity = case
        spec = Spec(
            "search/diverse_beam",
            width=int(width),
            groups=int(groups),
            diversity=float(diversity),
        )
        return method or Method(search=spec)

    return golden.differences(
        "search_groups",
        "groups",
        chosen,
        make,
        lambda case: [golden.LINE],
        lambda case: int(case[1]),
    )


@pytest.mark.long
@pytest.mark.parametrize(("width", "groups"), [(4, 2), (4, 4), (6, 2), (6, 3)])
def test_equals_hf(width, groups):
    chosen = lambda columns: (columns[:, [1, 2]] == (width, groups)).all(1)
    wrong, count, gap = hf(chosen)
    assert wrong == 0 and count >= width * 6 and gap < 1e-3


def test_equals_hf_on_some():
    """Planted: groups that do not see each other."""
    chosen = lambda columns: (columns[:, 1:] == (4, 2, 1.0)).all(1)
    wrong, count, gap = hf(chosen)
    assert wrong == 0 and count >= 8 and gap < 1e-3
    blind = Method(search=Spec("search/diverse_beam", width=4, groups=2, diversity=0.0))
    assert hf(chosen, blind)[0] > 0


@pytest.mark.long
def test_without_penalty_all_groups_are_equal():
    out = found(width=4, groups=2, diversity=0.0)
    for texts in out.tokens:
        assert texts[0::2] == texts[1::2]
    other = found(width=4, groups=2, diversity=2.0)  # planted: they pay
    assert any(texts[0::2] != texts[1::2] for texts in other.tokens)


@pytest.mark.long
@pytest.mark.parametrize("alpha", [0.0, 1.0])
def test_one_group_is_beam_search(alpha):
    """Where a full pool ends both at once; their other stop rules differ."""
    rules = {"width": 4, "length_penalty": alpha, "early_stopping": True}
    one = found(groups=1, **rules)
    assert one.tokens == found("beam", **rules).tokens
    assert one.tokens != found(groups=2, **rules).tokens  # planted: two groups


LAW = functools.partial(reference.log_law, LM.params)


def wanted(alpha: float, early, **fields) -> list:
    rules = reference.Rules(4, alpha, early)
    return [
        reference.groups(LAW, p, 24, (kit.EOS,), rules, 4, 1.0, **fields)
        for p in kit.PROMPTS
    ]


def same(out, want) -> int:
    """Prompts whose texts and scores are those wanted."""
    return sum(
        texts == [t for _, t in pool]
        and np.allclose(scores, [s for s, _ in pool], atol=1e-4)
        for texts, scores, pool in zip(out.tokens, out.scores, want)
    )


@pytest.mark.parametrize("early", [False, True, "never"])
def test_equals_lists_on_the_host(early):
    """Ragged prompts whose groups end in other rounds, three length penalties."""
    for alpha in (0.0, 1.0, 2.0):
        out = found(
            width=4,
            groups=4,
            diversity=1.0,
            length_penalty=alpha,
            early_stopping=early,
        )
        assert same(out, wanted(alpha, early)) == len(kit.PROMPTS)


def test_fault_a_group_that_ended_still_penalises():
    out = found(width=4, groups=4, diversity=1.0, early_stopping=True)
    assert same(out, wanted(1.0, True, stopped_pay=True)) < len(kit.PROMPTS)


@pytest.mark.parametrize(
    ("fields", "words"),
    [
        ({"width": 4, "groups": 3}, "groups=3 of width=4"),
        ({"diversity": -1.0}, "diversity=-1.0"),
        ({"early_stopping": "x"}, "early_stopping='x'"),
    ],
)
def test_refuses(fields, words):
    with pytest.raises(MethodError, match=words):
        found(**fields)
