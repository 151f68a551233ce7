"""ROUGE-1 and distinct n-grams, by hand."""

import pytest

from experiments.measurement import text_overlap


def test_rouge_1():
    """Two of three words, and of four: 2 * 2 / 7; a word counts as often as in both."""
    assert text_overlap.rouge_1("List the files", "list all files, now") == 4 / 7
    assert text_overlap.rouge_1("a a a", "a b") == 2 / 5
    assert text_overlap.rouge_1("", "a") == text_overlap.rouge_1("", "") == 0
    assert text_overlap.rouge_1("x-1 Y", "y x 1") == 1


def test_distinct():
    texts = ["a b a", "a b", "c"]
    assert text_overlap.distinct(texts, 1) == 3 / 6
    # Planted: n-grams over the ends of texts would be five.
    assert text_overlap.distinct(texts, 2) == pytest.approx(2 / 3)
    assert text_overlap.distinct(["a"], 2) == text_overlap.distinct([], 1) == 0
