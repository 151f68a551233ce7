"""ROUGE-1, BLEU and distinct n-grams, by hand."""

import math

import pytest

from experiments.measurement import text_overlap


def test_rouge_1():
    """Two of three words, and of four: 2 * 2 / 7; a word counts as often as in both."""
    assert text_overlap.rouge_1("List the files", "list all files, now") == 4 / 7
    assert text_overlap.rouge_1("a a a", "a b") == 2 / 5
    assert text_overlap.rouge_1("", "a") == text_overlap.rouge_1("", "") == 0
    assert text_overlap.rouge_1("x-1 Y", "y x 1") == 1


def test_bleu():
    """5/6 words, 3/5 pairs, 2/4 triples and 1/3 of four; planted: arithmetic mean."""
    shares = (5 / 6, 3 / 5, 2 / 4, 1 / 3)
    bleu = text_overlap.bleu("the cat sat on a mat", "the cat sat on the mat")
    assert bleu == pytest.approx(math.prod(shares) ** 0.25)
    assert bleu != pytest.approx(sum(shares) / 4)
    same = "It's 3.5, not 4!"
    assert text_overlap.bleu(same, same) == pytest.approx(1)
    assert text_overlap.bleu(same.lower(), same) < 1
    assert text_overlap.bleu("a b c", "a b c") == 0  # no four in a row
    # Short: 5 of 7 words, all right.
    short = text_overlap.bleu("a b c d e", "a b c d e f g")
    assert short == pytest.approx(math.exp(1 - 7 / 5))
    # A word counts as often as the reference has it.
    assert text_overlap.bleu("a a a b", "a b", 1) == pytest.approx(2 / 4)


def test_distinct():
    texts = ["a b a", "a b", "c"]
    assert text_overlap.distinct(texts, 1) == 3 / 6
    # Planted: n-grams over the ends of texts would be five.
    assert text_overlap.distinct(texts, 2) == pytest.approx(2 / 3)
    assert text_overlap.distinct(["a"], 2) == text_overlap.distinct([], 1) == 0
