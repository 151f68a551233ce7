"""Prompt lookup by hand, and against a search written with Python lists."""

import jax.numpy as jnp
import numpy as np
import pytest

from decoding import Method, Spec
from decoding.conformance import kit as conformance
from decoding.drafters import prompt_lookup
from decoding.text_lookup import suffix_match
from models.errors import MethodError
from tests.decoding.drafters import kit


def by_hand(text: list[int], n_max: int, k: int, latest: bool) -> list[int]:
    """The definition, word for word."""
    n = len(text)
    for m in range(min(n_max, n - 1), 0, -1):
        ends = [
            j for j in range(m - 1, n - 1) if text[j - m + 1 : j + 1] == text[n - m :]
        ]
        if ends:
            j = ends[-1] if latest else ends[0]
            return text[j + 1 : j + 1 + k]
    return []


def test_worked_example():
    """`the cat sat on the cat`: the longest match is `the cat`; `sat on` follows."""
    the, cat, sat, on = 1, 2, 3, 4
    text = [the, cat, sat, on, the, cat]
    drafter = prompt_lookup.drafter(n_max=3, k=2)
    assert kit.drafts(drafter, [text]) == [[sat, on]]
    long = prompt_lookup.drafter(n_max=3, k=10)
    assert kit.drafts(long, [text]) == [[sat, on, the, cat]]  # clamped to the text


def test_longest_match_first_then_earliest_or_latest():
    text = [1, 9, 2, 1, 5, 7, 2, 1, 6, 2, 1]
    assert kit.drafts(prompt_lookup.drafter(3, 1), [text]) == [[5]]
    assert kit.drafts(prompt_lookup.drafter(3, 1, latest=True), [text]) == [[6]]
    assert kit.drafts(prompt_lookup.drafter(1, 1), [text]) == [[9]]


@pytest.mark.parametrize("latest", [False, True])
def test_random_texts(latest):
    """200 texts of 3 letters, seed 0; what lies past their ends must not matter."""
    rng = np.random.default_rng(0)
    texts = [rng.integers(1, 4, rng.integers(1, 31)).tolist() for _ in range(200)]
    drafter = prompt_lookup.drafter(n_max=3, k=4, latest=latest)
    expected = [by_hand(t, 3, 4, latest) for t in texts]
    for junk in (0, 1, 2):
        found = kit.drafts(drafter, texts, junk=junk)
        assert found == expected
    for text, draft in zip(texts, found):  # a substring of the text
        joined = ",".join(map(str, text)) + ","
        assert ",".join(map(str, draft)) in joined


def test_fault_the_text_s_own_end():
    """Planted: a search that finds the suffix itself proposes nothing at all."""
    text = [1, 2, 1]
    assert by_hand([*text, 0], 3, 4, True) == []
    assert kit.drafts(prompt_lookup.drafter(3, 4), [text]) == [[2, 1]]


def test_without_a_match_it_is_plain():
    assert kit.drafts(prompt_lookup.drafter(), [[1, 2, 3], [5]]) == [[], []]
    out = conformance.generate(
        Method(Spec("drafters/prompt_lookup")), prompts=[[1]] * 4, max_new_tokens=1
    )
    assert out.stats.tokens_per_call == 1.0 and out.stats.candidates == 0


def test_bad_arguments():
    with pytest.raises(MethodError, match="n_max=0"):
        prompt_lookup.drafter(n_max=0)
    with pytest.raises(MethodError, match="k=0"):
        prompt_lookup.drafter(k=0)


def test_the_greatest_counts_and_of_equals_the_first():
    """Counts up to what a float32 holds exactly, against a stable sort."""
    rng = np.random.default_rng(0)
    for top in (4, 2**24):
        counts = rng.integers(max(0, top - 40), top, (3, 200)).astype(np.int32)
        found, at = suffix_match.greatest(jnp.asarray(counts), 20)
        order = np.argsort(-counts, axis=1, kind="stable")[:, :20]
        np.testing.assert_array_equal(at, order)
        np.testing.assert_array_equal(found, np.take_along_axis(counts, order, 1))
    # Planted: past 2^24 a float32 tells neighbours apart no longer.
    close = jnp.asarray([[2**24, 2**24 + 1]], jnp.int32)
    assert int(suffix_match.greatest(close, 1)[1][0, 0]) == 0
