"""Planted facts: what a window holds, what its loss counts, and what stays short."""

import numpy as np
import pytest

import models
from models.errors import DataError
from training.data import copy_augmentation, planted_facts, text_corpus
from training.objectives.language_models import next_token

TOKENIZER = models.load("tiny").tokenizer.inner
FACTS = planted_facts.facts(TOKENIZER, "code", count=5, value=4, asked=2)
SIZE = 257


def window(seed: int = 0) -> np.ndarray:
    """Tokens that stand in no fact."""
    rng = np.random.default_rng(seed)
    others = sorted(set(range(1, 400)) - {*FACTS.words, *sum(FACTS.form, ())})
    return rng.choice(others, SIZE).astype(np.int32)


def planted(seed: int):
    rng = np.random.default_rng(seed)
    return planted_facts.plant(rng, window(seed), FACTS)


def places(tokens, words) -> list[int]:
    size = len(words)
    found = range(len(tokens) - size + 1)
    return [i for i in found if tuple(tokens[i : i + size]) == tuple(words)]


@pytest.mark.parametrize("form", sorted(planted_facts.FORMS))
def test_a_line(form):
    how = planted_facts.facts(TOKENIZER, form)
    fact, other = planted_facts.draw(np.random.default_rng(0), how, 2, alike=True)
    text = TOKENIZER.decode(list(fact.line))
    before, between, end = planted_facts.FORMS[form]
    assert text.startswith(before) and text.endswith(end) and between in text
    size = len(how.form[0])
    assert fact.head[size] != other.head[size]
    assert fact.head[size + 1 :] == other.head[size + 1 :]


def test_every_fact_stands_once_and_the_asked_ones_again():
    for seed in range(5):
        tokens, _ = planted(seed)
        words = [i for i, token in enumerate(tokens) if token in FACTS.words]
        assert len(tokens) == SIZE and len(words) == (5 + 2) * (4 + 4)
        rng = np.random.default_rng(seed)
        drawn = planted_facts.draw(rng, FACTS, FACTS.count)
        found = [places(tokens, fact.line) for fact in drawn]
        assert sorted(map(len, found)) == [1, 1, 1, 2, 2]
        asked = [at[1] for at in found if len(at) == 2]
        assert max(asked) + len(drawn[0].line) == SIZE
        assert min(asked) == SIZE - 2 * len(drawn[0].line)


def test_what_nothing_predicts_is_not_counted():
    """Planted: a loss over all tokens, which counts the values where they first stand.

    The text between the facts stays, in its order.
    """
    tokens, counted = planted(1)
    is_word = np.isin(tokens, FACTS.words)
    again = np.arange(SIZE) >= SIZE - 2 * (sum(map(len, FACTS.form)) + 4 + 4)
    assert not counted[is_word & ~again].any()
    assert counted[is_word & again].all() and counted[~is_word].all()
    batch = {"tokens": tokens[None], "loss_mask": counted[None]}
    assert float(next_token.counted(batch).sum()) == counted[1:].sum()
    assert float(next_token.counted({"tokens": tokens[None]}).sum()) == SIZE - 1
    rest = tokens[~np.isin(tokens, [*FACTS.words, *sum(FACTS.form, ())])]
    assert rest.tolist() == window(1)[: len(rest)].tolist() and len(rest) > 150


def test_windows_of_short_texts():
    """Planted: short texts that see each other."""
    mixture = planted_facts.Mixture(FACTS, 0.0, short=64)
    row = mixture.row(np.random.default_rng(0), window(), None)
    assert (row["tokens"] == window()).all() and row["loss_mask"].all()
    assert np.bincount(row["segments"]).tolist() == [64, 64, 64, 64, 1]
    batch = {name: x[None] for name, x in row.items()}
    assert float(next_token.counted(batch).sum()) == SIZE - 1 - 4
    del batch["segments"]
    assert float(next_token.counted(batch).sum()) != SIZE - 1 - 4
    repeats = copy_augmentation.Repeats(share=1.0)
    row = mixture.row(np.random.default_rng(0), window(), repeats)
    assert len(row["tokens"]) == SIZE and (row["tokens"] != window()).any()
    inside = [set(row["tokens"][i : i + 64]) for i in range(0, 256, 64)]
    assert all(part <= set(window()[64 * i :][:64]) for i, part in enumerate(inside))


def test_the_stream():
    """Batches are pure; both kinds of window come; another share is another stream."""
    corpus = text_corpus.Corpus([window(i) for i in range(20)], separator=0)
    stages = (text_corpus.Stage(6, 4, 256),)
    make = lambda share: text_corpus.Stream(
        corpus, stages, mixture=planted_facts.Mixture(FACTS, share, 64)
    )
    stream = make(0.5)
    batches = [stream.batch(i) for i in range(6)]
    again = make(0.5).batch(3)
    assert stream.masked and all((batches[3][n] == again[n]).all() for n in again)
    long = [row.max() == 0 for batch in batches for row in batch["segments"]]
    assert 0 < sum(long) < len(long)
    assert batches[0]["tokens"].shape == batches[0]["loss_mask"].shape == (4, 257)
    assert stream.fingerprint != make(0.4).fingerprint
    with pytest.raises(DataError, match="a mixture rewrites windows"):
        text_corpus.Stream(corpus, stages, whole=True, mixture=stream.mixture)


def test_bad_sizes():
    with pytest.raises(DataError, match="facts='verse': use one of"):
        planted_facts.facts(TOKENIZER, "verse")
    with pytest.raises(DataError, match="5 facts do not fit"):
        planted_facts.plant(np.random.default_rng(0), window()[:70], FACTS)
    with pytest.raises(DataError, match=r"share=1.5, short=512"):
        planted_facts.Mixture(FACTS, 1.5)
