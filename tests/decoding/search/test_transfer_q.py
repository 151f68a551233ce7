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
PART = 256  # prompts of a call
TASTE = np.random.default_rng(5).uniform(0, 2, [kit.VOCAB] * NEW)


def worth(text) -> float:
    """0 for a text that ended early."""
    return float(TASTE[tuple(text)]) if len(text) == NEW else 0.0


class Judge:
    """The worth of texts, scaled and raised: one function, so one program."""

    scale, raised = 1.0, 0.0

    def __call__(self, samples):
        return [self.scale * worth(s.tokens) + self.raised for s in samples]


JUDGE = Judge()


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


def drawn(count: int = PART, heat: float = 1.0, first: int = 0, **fields):
    """Texts of the seeds from `first` on; programs are compiled for one `count`."""
    numbers = {"top": kit.VOCAB, "lookahead": NEW, "alpha": ALPHA, **fields}
    method = Method(search=Spec("search/transfer_q", **numbers))
    streams = {"baseline": decoding.Stream(BASE.model, "baseline")}
    return decoding.generate(
        *(kit.TARGET, [PROMPT] * count, method, NEW, heat),
        seed=[*range(first, first + count)],
        reward=JUDGE,
        streams=streams,
        drafts={"baseline": BASE},
    )


def test_the_law(monkeypatch):
    """n = 1,024; level 1e-4. A constant on top of the reward changes no text."""
    every = [drawn(first=first).tokens for first in range(0, 1024, PART)]
    found = collections.Counter(tuple(text) for part in every for text in part)
    assert found.total() == 1024
    assert p_value(found, texts(ALPHA)) > 1e-4
    assert p_value(found, texts(ALPHA, NEW - 2)) < 1e-4  # planted: one token short
    monkeypatch.setattr(Judge, "raised", 3.0)
    assert drawn().tokens == every[0]


@pytest.mark.long
def test_plain_forms(monkeypatch):
    """No reward: the target's samples, of the same noise; T = 0: the best token."""
    plain = decoding.generate(
        *(kit.TARGET, [PROMPT] * PART, "plain", NEW, 1.0), seed=[*range(PART)]
    )
    assert drawn(alpha=float("inf")).tokens == plain.tokens
    assert drawn().tokens != plain.tokens  # planted: a reward
    with monkeypatch.context() as patch:
        patch.setattr(Judge, "scale", 0.0)
        patch.setattr(Judge, "raised", 0.5)
        assert drawn().tokens == plain.tokens
    best: tuple = ()
    for _ in range(NEW):
        ends = [finished((*best, z), NEW) for z in range(kit.VOCAB)]
        value = law("target", best) + np.array([worth(end) for end in ends]) / ALPHA
        best = (*best, int(value.argmax()))
    assert drawn(2, heat=0.0).tokens == [[*best]] * 2


def test_refuses():
    with pytest.raises(MethodError, match="alpha=0"):
        drawn(1, alpha=0)
    with pytest.raises(MethodError, match="top=0"):
        drawn(1, top=0)
