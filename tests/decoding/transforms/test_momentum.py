"""decoding/transforms/momentum.py against the official code's lookup, in Python."""

import numpy as np
import pytest
from scipy import special

from decoding import Method
from decoding.conformance import kit
from decoding.transforms import momentum
from models.errors import MethodError
from tests.decoding.transforms.samplers import run

F = (0, 1, 3, 4, 5, 5)


def circuit(text: list[int], token: int) -> int:
    """Longest l <= 5 such that the last l - 1 tokens, then `token`, occurred."""
    if token not in text:
        return 0
    for size in range(5, 1, -1):
        wanted = [*text[len(text) - size + 1 :], token]
        ends = range(size, len(text) + 1)
        if len(wanted) == size and any(text[e - size : e] == wanted for e in ends):
            return size
    return 1


def chosen(text: list[int], logits, alpha: float = 0.2, k: int = 5, f=F) -> int:
    p = special.softmax(logits)
    best = np.argsort(-p)[:k]
    return int(max(best, key=lambda v: p[v] - alpha * f[circuit(text, int(v))]))


def differences(transform, **fields) -> int:
    """Texts of 120 whose next token is not the lookup's."""
    rng, count = np.random.default_rng(0), 0
    for _ in range(120):
        text = rng.integers(0, 5, rng.integers(1, 30)).tolist()
        logits = rng.normal(size=8) * 2
        out = run(transform, logits, text[:1], text[1:])
        count += int(out.argmax()) != chosen(text, logits, **fields)
    return count


def test_equals_the_official_lookup():
    assert differences(momentum.transform()) == 0
    assert differences(momentum.transform(0.05, 3), alpha=0.05, k=3) == 0


def test_fault_one_resistance_for_all_lengths():
    """Planted: f = 1 for every circuit; greedy decoding."""
    flat = momentum.transform(resistance=(0.0, 1.0))
    assert differences(flat) > 5
    assert differences(momentum.transform(alpha=0.0)) > 20


def test_zero_alpha_is_greedy_and_infinite_resistance_forbids():
    logits = [3.0, 2.0, 1.0, 0.5, 0.2, 0.1]
    assert run(momentum.transform(alpha=0.0), logits, [0, 1, 2]).argmax() == 0
    barred = momentum.transform(resistance=(0.0, float("inf")))
    assert run(barred, logits, [0, 1, 2]).argmax() == 3
    assert np.isneginf(run(barred, logits, [0])[5])  # never outside the k best


def test_a_temperature_is_refused():
    method = Method(transforms=(kit.spec("transforms/momentum"),))
    with pytest.raises(MethodError, match="no law: use temperature=0"):
        kit.generate(method, 0.8)


@pytest.mark.parametrize(
    ("fields", "words"),
    [
        ({"alpha": -0.1}, "alpha=-0.1"),
        ({"k": 0}, "k=0"),
        ({"resistance": (1.0,)}, "resistance="),
        ({"resistance": (0.0, -1.0)}, "resistance="),
    ],
)
def test_refuses(fields, words):
    with pytest.raises(MethodError, match=words):
        momentum.transform(**fields)
