"""decoding/search/transfer_q.py: the exact law where the baseline's text is certain.

The baseline is another toy model, greedy; a text has three tokens.
"""

import collections
import functools
import itertools

import numpy as np
import pytest

import decoding
from decoding import Method, Spec
from decoding.conformance import kit
from models.errors import MethodError
from models.synthetic import toy
from tests.decoding.search.rows import p_value

PROMPT, NEW, ALPHA, BASE = [1, 2], 3, 0.5, kit.model(4)
TASTE = np.random.default_rng(5).uniform(0, 2, [kit.VOCAB] * NEW)


def worth(text) -> float:
    """0 for a text that ended early."""
    return float(TASTE[tuple(text)]) if len(text) == NEW else 0.0


def by_taste(samples):
    return [worth(s.tokens) for s in samples]


@functools.cache
def law(which: str, text: tuple) -> np.ndarray:
    lm = {"target": kit.TARGET, "baseline": BASE}[which]
    logits = np.float64(toy.logits(lm.params, [*PROMPT, *text]))
    return logits - logits.max() - np.log(np.exp(logits - logits.max()).sum())


def finished(text: tuple, lookahead: int) -> tuple:
    for _ in range(lookahead):
        if len(text) < NEW and text[-1] != kit.EOS:
            text = (*text, int(law("baseline", text).argmax()))
    return text


def texts(alpha: float, lookahead: int = NEW) -> dict[tuple, float]:
    """The law of whole texts."""
    found = {}
    for text in itertools.product(range(kit.VOCAB), repeat=NEW):
        chance = 1.0
        for i, token in enumerate(text):
            ends = [finished((*text[:i], z), lookahead) for z in range(kit.VOCAB)]
            value = np.asarray([worth(end) for end in ends])
            weights = np.exp(law("target", text[:i]) + value / alpha)
            chance *= weights[token] / weights.sum()
        found[text] = chance
    return found


def drawn(count: int, reward=by_taste, heat: float = 1.0, **fields):
    numbers = {"top": kit.VOCAB, "lookahead": NEW, "alpha": ALPHA, **fields}
    method = Method(search=Spec("search/transfer_q", **numbers))
    streams = {"baseline": decoding.Stream(BASE.model, "baseline")}
    return decoding.generate(
        *(kit.TARGET, [PROMPT] * count, method, NEW, heat),
        seed=[*range(count)],
        reward=reward,
        streams=streams,
        drafts={"baseline": BASE},
    )


def test_the_law():
    """n = 1,024; level 1e-4. A constant on top of the reward changes no text."""
    out = drawn(1024)
    found = collections.Counter(map(tuple, out.tokens))
    assert p_value(found, texts(ALPHA)) > 1e-4
    assert p_value(found, texts(ALPHA, NEW - 2)) < 1e-4  # planted: one token short
    raised = drawn(1024, lambda samples: [x + 3.0 for x in by_taste(samples)])
    assert raised.tokens == out.tokens


def test_plain_forms():
    """No reward: the target's samples, of the same noise; T = 0: the best token."""
    flat = lambda samples: [0.5] * len(samples)
    plain = decoding.generate(
        *(kit.TARGET, [PROMPT] * 1024, "plain", NEW, 1.0), seed=[*range(1024)]
    )
    # Programs are compiled for one number of prompts.
    assert drawn(1024, flat).tokens == plain.tokens
    assert drawn(1024, alpha=float("inf")).tokens == plain.tokens
    assert drawn(1024).tokens != plain.tokens  # planted: a reward
    best: tuple = ()
    for _ in range(NEW):
        ends = [finished((*best, z), NEW) for z in range(kit.VOCAB)]
        value = law("target", best) + np.array([worth(end) for end in ends]) / ALPHA
        best = (*best, int(value.argmax()))
    assert drawn(1024, heat=0.0).tokens == [[*best]] * 1024


def test_refuses():
    with pytest.raises(MethodError, match="alpha=0"):
        drawn(1, alpha=0)
    with pytest.raises(MethodError, match="top=0"):
        drawn(1, top=0)
