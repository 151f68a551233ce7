"""decoding/search/diverse_beam.py, against HF's texts and its two limits."""

import pytest

import decoding
from decoding import Method, Spec
from decoding.conformance import kit
from models.errors import MethodError
from tests.decoding.search import golden

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


def test_without_penalty_all_groups_are_equal():
    out = found(width=4, groups=2, diversity=0.0)
    for texts in out.tokens:
        assert texts[0::2] == texts[1::2]
    other = found(width=4, groups=2, diversity=2.0)  # planted: they pay
    assert any(texts[0::2] != texts[1::2] for texts in other.tokens)


@pytest.mark.parametrize("alpha", [0.0, 1.0])
def test_one_group_is_beam_search(alpha):
    """Where a full pool ends both at once; their other stop rules differ."""
    rules = {"width": 4, "length_penalty": alpha, "early_stopping": True}
    one = found(groups=1, **rules)
    assert one.tokens == found("beam", **rules).tokens
    assert one.tokens != found(groups=2, **rules).tokens  # planted: two groups


def test_a_group_that_ended_penalises_nobody():
    """The first group ends at once; the second then finds what it finds alone."""
    ending = kit.model(0, ending=3.0)
    out = found(lm=ending, width=2, groups=2, diversity=0.5, n=2)
    assert all(any(len(t) == 1 for t in texts) for texts in out.tokens)
    assert all(texts[0] != texts[1] or len(texts[0]) == 1 for texts in out.tokens)


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
