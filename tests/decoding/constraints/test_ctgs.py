"""CTGS: sets by hand, products of sets, texts of a model, and what is refused."""

import itertools
import types

import numpy as np
import pytest

import decoding
from decoding import Method, Spec
from decoding.automata import word_patterns
from decoding.conformance import kit
from decoding.constraints import ctgs
from models.errors import ConstraintError
from tests.decoding.transforms.samplers import law, run

TOKENS = [b"the", b" cat", b"Act", b".", b"\xc3", b"\xa9", b"level", b"", b" ", b"tac"]
VOCAB, EOS = len(TOKENS), 7


def passing(**fields) -> list[int]:
    return np.flatnonzero(ctgs.token_set(TOKENS, VOCAB + 2, **fields)).tolist()


def test_by_hand():
    """Halves of characters, EOS and padding never pass; planted: without changes."""
    assert passing(filters={"banned": ("e",)}) == [1, 2, 3, 8, 9]
    assert passing(filters={"anagram": "act"}, texts=("strip", "lower")) == [1, 2, 9]
    assert passing(filters={"anagram": "act"}) == [9]
    assert passing(filters={"palindrome": True}) == [3, 6, 8]
    assert passing(filters={"anagram": "act"}, spare=" .") == [3, 8, 9]


def test_several_filters_are_the_product_of_their_sets_in_any_order():
    filters = {"banned": ("e",), "shorter": 4, "required": ("a",)}
    alone = [set(passing(filters={name: x})) for name, x in filters.items()]
    for order in itertools.permutations(filters.items()):
        assert set(passing(filters=dict(order))) == set.intersection(*alone)
    assert set.intersection(*alone) != set.union(*alone)  # planted: their sum


def make(filters, **fields):
    tokenizer = types.SimpleNamespace(token_bytes=lambda: TOKENS)
    return ctgs.transform(filters, tokenizer, (EOS,), VOCAB, **fields)


def test_the_law_is_renormalised_over_the_set_and_the_end():
    p = np.arange(1, VOCAB + 1) / np.arange(1, VOCAB + 1).sum()
    inside = np.isin(np.arange(VOCAB), [1, 2, 3, 7, 8, 9])
    want = np.where(inside, p, 0) / p[inside].sum()
    got = law(make({"banned": ("e",)}), p)
    np.testing.assert_allclose(got, want, atol=1e-6)
    assert np.abs(law(make({"banned": ("a",)}), p) - want).max() > 0.01  # planted


def test_the_set_wins_where_earlier_transforms_forbade_it():
    logits = np.full(VOCAB, -np.inf)
    logits[[0, 6]] = 1.0
    out = run(make({"banned": ("e",)}), logits)
    assert np.flatnonzero(np.isfinite(out)).tolist() == [1, 2, 3, 7, 8, 9]
    assert not np.isfinite(out[[0, 6]]).any()


def test_truncation_behind_it_never_empties_the_set():
    """Planted: in the official order, top-k first, no token of the set is left."""
    logits = np.arange(VOCAB, 0, -1.0)  # "the" is the best
    allowed = set(passing(filters={"banned": ("e",)}))
    top = Spec("transforms/top_k", k=1).build({})
    behind = run(top, run(make({"banned": ("e",)}), logits))
    assert np.flatnonzero(np.isfinite(behind)).tolist() == [1]
    before = np.flatnonzero(np.isfinite(run(top, logits)))
    assert 1 in allowed and not allowed & set(before.tolist())


def test_texts_hold_no_banned_letter():
    """Planted: the same texts without the ban hold it."""
    banned = Method(transforms=(Spec("constraints/ctgs", filters={"banned": ("b",)}),))
    for heat in (0.0, 0.8):
        assert all("b" not in text for text in kit.generate(banned, heat).texts)
        assert any("b" in text for text in kit.generate(Method(), heat).texts)


def test_prompts_may_have_filters_of_their_own():
    """As in calls of their own; planted: with the filters exchanged."""
    specs = [
        Spec("constraints/ctgs", filters={"banned": (letter,)}) for letter in "abcd"
    ]

    def texts(parts):
        return kit.generate(Method(), 0.8, transforms=[list(parts)]).tokens

    together = texts(specs)
    for i, spec in enumerate(specs):
        assert together[i] == texts([spec] * 4)[i]
    assert together != texts(specs[::-1])


def test_whole_words_by_a_regex():
    """Words that end in `b` however they are cut; planted: as tokens, each ends so."""
    pattern = word_patterns.word_pattern({"ends": "b", "longer": 2}, "ab", "c")
    method = Method(transforms=(Spec("constraints/regex", pattern=pattern),))
    out = kit.generate(method, 0.8, lm=kit.model(0, 0.0))
    ended = [text for text in out.tokens if text[-1] == kit.EOS]
    assert ended
    for text in ended:
        words = kit.Letters().decode(text[:-1]).split("c")
        assert all(word.endswith("b") and len(word) > 2 for word in words)
    tokens = Spec("constraints/ctgs", filters={"ends": "b"})
    out = kit.generate(Method(transforms=(tokens,)), 0.8)
    assert {token for text in out.tokens for token in text} <= {1, kit.EOS}


def test_no_token_left_is_refused_with_the_filters():
    with pytest.raises(ConstraintError, match=r"banned=\('c',\) 4, starts='c' 0"):
        make({"banned": ("c",), "starts": "c"})
    with pytest.raises(ConstraintError, match="no filter 'rhyme'"):
        decoding.generate(
            kit.TARGET,
            [[1]],
            transforms=[Spec("constraints/ctgs", filters={"rhyme": "a"})],
        )
