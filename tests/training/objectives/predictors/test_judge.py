"""Judge decoding's labels and its judge."""

import numpy as np
import pytest

from models.errors import DataError
from tests.decoding.drafters import agreement
from tests.training.objectives.language_models.test_draft_model import draft
from training.objectives.predictors import judge


def test_rejoining():
    """A tail that stands elsewhere counts within its own length; another does not."""
    reference = list(range(20))
    assert judge.rejoins(reference, [99, *range(1, 16)])
    assert judge.rejoins(reference, [98, 99, *range(1, 15)])  # one token longer
    assert not judge.rejoins(reference, [99, *range(50, 66)])
    # Planted: anywhere at all would do.
    assert not judge.rejoins([*range(30, 60), *range(8)], [*range(100, 104), *range(8)])


@pytest.mark.long
def test_cases_are_the_draft_s_mismatches():
    lm = agreement.target()
    model, params = draft()
    other = type(lm)(model=model, params=params, tokenizer=None, config=model.config)
    prompts = [[1, 2, 3], [7, 8]]
    seen = []

    def same(reference, text):
        seen.append((list(reference), list(text)))
        return len(seen) % 2 == 0

    found = judge.cases(lm, other, prompts, 12, 4, 3, same=same, batch=4)
    assert found and [case.good for case in found] == [
        i % 2 == 1 for i in range(len(found))
    ]
    for case, (reference, text) in zip(found, seen):
        assert case.tokens[-1] == text[0] != reference[0]  # planted: a match
        assert len(text) == 5
        prompt = next(p for p in prompts if case.tokens[: len(p)] == p)
        assert len(case.tokens) > len(prompt)


def test_the_judge_finds_the_direction():
    """Two classes along one direction, n = 400, seed 0; planted: shuffled labels."""
    rng = np.random.default_rng(0)
    good = rng.random(400) < 0.4
    x = rng.normal(size=(400, 6)) + np.outer(good * 3.0, [0, 1, 0, 0, -1, 0]) + 5
    params = judge.fit(x[:200], good[:200])
    assert judge.accuracy(params, x[200:], good[200:]) > 0.95
    other = judge.fit(x[:200], good[:200][::-1])
    assert judge.accuracy(other, x[200:], good[200:]) < 0.8
    strict = judge.fit(x[:200], good[:200], reject=50.0)
    assert float(strict["bias"]) < float(params["bias"]) or (
        np.asarray(x @ np.asarray(strict["weight"]) + strict["bias"]).mean()
        < np.asarray(x @ np.asarray(params["weight"]) + params["bias"]).mean()
    )


def test_states_are_those_of_the_last_token():
    """Whatever stands behind it in the batch."""
    lm = agreement.target()
    texts = [[1, 2, 3, 4, 5], [1, 2, 3], [6]]
    together = judge.states(lm, texts, batch=2)
    alone = np.concatenate([judge.states(lm, [t], batch=1) for t in texts])
    np.testing.assert_allclose(together, alone, atol=1e-5)
    assert np.abs(together[0] - together[1]).max() > 0.1


def test_bad_arguments():
    with pytest.raises(DataError, match="needs both kinds"):
        judge.fit(np.ones((3, 2)), [True] * 3)
    with pytest.raises(DataError, match="most=0"):
        judge.cases(None, None, [[1]], most=0)
