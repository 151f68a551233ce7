"""What counts as plain decoding's text."""

import dataclasses
import pathlib

import jax
import numpy as np
import pytest

from decoding import Method
from decoding.catalogue import Spec
from decoding.loops import engines
from experiments.measurement import identity, measured_row
from experiments.measurement.measured_row import Cell
from experiments.measurement.workbench import Bench, Case, Run
from models import transformer

EPS = float(np.finfo(np.float32).eps)
PLAIN = Method()
LOOKUP = Method(Spec("drafters/prompt_lookup"))


def scores(gap, scale=10.0):
    """Token 1 is best, token 2 is `gap` behind, the others far."""
    found = np.full(5, -50.0)
    found[1], found[2] = 1.0, 1.0 - gap
    return lambda i, k: (found, scale)


def test_equal_texts():
    found = identity.compare([[1, 2], [3]], [[1, 2], [3]], scores(0.0), EPS)
    assert found.identical and found.ties == 0 and found.compared == 3


def test_tie_is_forgiven_once_and_the_rest_not_compared():
    texts, plain = [[4, 2, 3, 3]], [[4, 1, 4, 4]]
    found = identity.compare(texts, plain, scores(1e-5), EPS)
    assert found.identical and found.ties == 1 and found.compared == 1
    twice = identity.compare(texts * 2, plain * 2, scores(1e-5), EPS)
    assert not twice.identical and twice.ties == 2


def test_gap_beyond_rounding_is_a_difference():
    bound = identity.ULPS * EPS * 10.0
    assert not identity.compare([[2]], [[1]], scores(1.01 * bound), EPS).identical
    assert identity.compare([[2]], [[1]], scores(0.99 * bound), EPS).identical


def test_tie_of_others_does_not_excuse_a_third_token():
    assert not identity.compare([[3]], [[1]], scores(0.0), EPS).identical


def test_a_text_that_stops_early_differs():
    assert not identity.compare([[1]], [[1, 1]], scores(0.0), EPS).identical


def perturbed(lm, size):
    """Planted fault: every logit off by at most `size`."""
    shift = jax.random.uniform(
        jax.random.key(9), (lm.model.config.vocab_size,), minval=-size, maxval=size
    )
    model = lm.model._replace(head=lambda p, x: lm.model.head(p, x) + shift)
    return lm._replace(model=model)


@pytest.mark.parametrize(
    ("temperature", "rows", "new", "size"),
    [
        (0.8, 12, 100, 1e-2),
        pytest.param(0.0, 40, 210, 1e-3, marks=pytest.mark.long),
        pytest.param(0.8, 40, 210, 1e-3, marks=pytest.mark.long),
    ],
)
def test_planted_fault_turns_a_row_false(lm, temperature, rows, new, size):
    bench = Bench(lm, {}, rows, new, batch=rows)
    prompts = [lm.tokenizer.encode(f"{i} prompts of text") for i in range(rows)]
    # Greedy text of random weights is a loop of few decisions; the penalty varies it.
    varied = (Spec("transforms/frequency_penalty", penalty=0.3),)
    cell = Cell("prompt_lookup", with_(LOOKUP, varied), "text", temperature, 0, rows)
    case, plain = (Case(with_(m, varied), temperature) for m in (LOOKUP, PLAIN))
    expected = bench.once(plain, prompts, 0)
    same = bench.once(case, prompts, 0)
    found = measured_row.identical(bench, cell, plain, same, expected, prompts)
    assert (
        found["identical_to_plain"] is True
        and found["compared_tokens"] > 0.95 * rows * new
    )
    bad = bench.once(case, prompts, 0, perturbed(lm, size))
    found = measured_row.identical(bench, cell, plain, bad, expected, prompts)
    assert found["identical_to_plain"] is False
    assert any(not d["tie"] for d in found["differences"])

    # The recomputed scores name the tokens that plain decoding chose.
    keys = engines.request_keys(0, rows, 1)
    parts = bench.compose(plain)
    scores = identity.Recomputed(
        lm, parts, prompts, expected.tokens, keys, noisy=temperature > 0
    )
    for i, k in ((0, 0), (1, new - 10), (rows - 1, 64)):
        assert np.argmax(scores(i, k)[0]) == expected.tokens[i][k]


def with_(method, transforms):
    return dataclasses.replace(method, transforms=transforms)


def test_rejection_claims_its_law_only():
    method = Method(verifier=Spec("verifiers/rejection"))
    reason = identity.claim(method, "LAW", 0.8)
    named = pathlib.Path(__file__).parents[3] / reason.split()[-1]
    assert named.name == "test_rejection.py" and named.is_file()
    assert identity.claim(method, "LAW", 0.0) is None
    assert identity.claim(PLAIN, "LAW", 0.8) is None
    assert identity.claim(PLAIN, "LOSSY", 0.0) is not None


def test_lossy_rows_hold_the_nats_of_their_texts(lm):
    """By hand, for texts of two lengths; planted: prompts and texts mismatched."""
    prompts, own, plain = [[5, 6, 7], [8]], [[9, 4], [3, 2, 1]], [[9, 9], [3, 3, 3]]
    runs = [Run(tokens=texts) for texts in (own, plain)]
    method = Method(LOOKUP.drafter, verifier=Spec("verifiers/accept_drafted"))
    bench = Bench(lm, {}, 8, 4, batch=1)
    cell = Cell("lossy", method, "text", 0.8, 0, 1)
    found = measured_row.identical(bench, cell, Case(PLAIN, 0.8), *runs, prompts)
    assert found["identical_to_plain"] is None

    def nats(asked, texts):
        total = 0.0
        for prompt, text in zip(asked, texts):
            row = np.array([[*prompt, *text]])
            logits = transformer.forward(lm.model.config, lm.params, row).logits[0]
            logp = np.asarray(jax.nn.log_softmax(logits))
            for i, token in enumerate(text):
                total -= float(logp[len(prompt) - 1 + i, token])
        return total / sum(map(len, texts))

    assert found["nats_per_token"] == pytest.approx(nats(prompts, own), rel=1e-4)
    expected = nats(prompts, plain)
    assert found["plain_nats_per_token"] == pytest.approx(expected, rel=1e-4)
    assert found["nats_per_token"] != pytest.approx(nats(prompts[::-1], own), rel=1e-4)
