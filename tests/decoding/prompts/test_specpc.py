"""SpecPC: the tokens it keeps are those that NumPy keeps, one by one."""

import ml_dtypes
import numpy as np
import pytest

import decoding
from decoding.conformance import kit, peaked
from decoding.prompts import specpc
from models.errors import MethodError, PromptError
from tests.decoding.caches import oracle

RNG = np.random.default_rng(5)
PROMPTS = [[int(t) for t in RNG.integers(0, 7, n)] for n in (61, 20, 45, 90)]
NUMBERS = {"cap": 24, "window": 8, "kernel": 4, "neighbours": 4}
SEED = 3


def kept(**changes) -> specpc.Compressed:
    return specpc.compress(peaked.model(SEED), PROMPTS, **{**NUMBERS, **changes})


def expected(
    prompt, first=1, weighted=True, pool=max, spread=(0, -1, 1, 2), early=False
) -> list[int]:
    """Return the positions that the official code keeps, in the order of the prompt.

    Args:
        prompt: more than `cap` tokens.
        first: the first layer that judges.
        weighted: whether later queries weigh more.
        pool: over the tokens from one before to two behind.
        spread: where the neighbours are, nearest first.
        early: whether the window comes after the best.
    """
    size, cap, window = len(prompt), NUMBERS["cap"], NUMBERS["window"]
    worth = np.zeros(size)
    for q, k in oracle.every_layer(SEED, tuple(prompt))[first:]:
        for place, t in enumerate(range(size - window, size)):
            factor = place / (window - 1) if weighted else 1.0
            for g in range(k.shape[1]):
                row = oracle.weights(q[t, g], k[: t + 1, g]).max(0)
                worth[: t + 1] = np.maximum(worth[: t + 1], factor * row)
    padded = [0.0, *worth, 0.0, 0.0]
    pooled = np.array([pool(padded[j : j + 4]) for j in range(size)])
    rounded = pooled.astype(ml_dtypes.bfloat16).astype(np.float64)
    best = np.argsort(-rounded, kind="stable")[:cap]
    newest = list(range(size - window, size))
    near = [min(max(j + step, 0), size - 1) for j in best for step in spread]
    every = [*near, *newest] if early else [*newest, *near]
    return sorted(list(dict.fromkeys(every))[:cap])


LONG = [p for p in PROMPTS if len(p) > NUMBERS["cap"]]


def differ(found: specpc.Compressed, **rule) -> int:
    """Count the long prompts of which other tokens are kept."""
    long = [at.tolist() for at, n in zip(found.positions, found.whole) if n > 24]
    return sum(a != expected(p, **rule) for a, p in zip(long, LONG, strict=True))


def test_it_keeps_the_tokens_that_numpy_keeps():
    """Three prompts; planted: each part of the rule left out or altered."""
    found = kept()
    assert differ(found) == 0
    assert differ(found, first=0) > 0
    assert differ(found, weighted=False) > 0
    assert differ(found, pool=sum) > 0
    assert differ(found, spread=(0,)) > 0
    assert differ(found, spread=(0, 1, 2, 3)) > 0
    assert differ(found, early=True) > 0
    assert differ(kept(first_layer=0), first=0) == 0
    assert differ(kept(weighted=False), weighted=False) == 0
    assert differ(kept(neighbours=1), spread=(0,)) == 0


def test_what_is_left_is_told():
    found = kept()
    assert found.whole == list(map(len, PROMPTS))
    assert found.kept == list(map(len, found.prompts)) == [24, 20, 24, 24]
    for prompt, short, at in zip(PROMPTS, found.prompts, found.positions):
        assert short == [prompt[i] for i in at]
        assert (np.diff(at) > 0).all()
        assert at[-8:].tolist() == list(range(len(prompt) - 8, len(prompt)))
    assert found.calls == [1, 0, 1, 1]


def test_a_cap_of_all_tokens_changes_nothing():
    """Planted: one token less."""
    found = kept(cap=90)
    assert found.prompts == PROMPTS and found.calls == [0] * 4
    assert kept(cap=89).prompts != PROMPTS


def test_a_prompt_is_shortened_alone(monkeypatch):
    """Beside others, in another order and in chunks of 16 tokens."""
    found = kept()
    turned = specpc.compress(peaked.model(SEED), PROMPTS[::-1], **NUMBERS)
    assert turned.prompts[::-1] == found.prompts
    monkeypatch.setattr(specpc, "CHUNK", 16)
    specpc._worths.clear_cache()
    pieces = kept()
    specpc._worths.clear_cache()
    assert pieces.prompts == found.prompts
    assert pieces.calls == [4, 0, 3, 6]


@pytest.mark.long
def test_the_target_reads_what_is_left():
    short = kept().prompts
    out = decoding.generate(peaked.model(4), short, max_new_tokens=4)
    whole = decoding.generate(peaked.model(4), PROMPTS, max_new_tokens=4)
    assert [len(text) for text in out.tokens] == [4] * 4
    assert out.tokens[1] == whole.tokens[1] and out.tokens != whole.tokens


def test_selection_by_hand():
    """Ten tokens, a cap of 5: the window, the best and its nearest neighbours."""
    worth = np.array([0, 0, 0, 5, 0, 0, 1, 0, 0, 0], np.float32)
    numbers = {"cap": 5, "window": 2, "kernel": 1}
    assert specpc.chosen(worth, neighbours=3, **numbers).tolist() == [2, 3, 4, 8, 9]
    assert specpc.chosen(worth, neighbours=2, **numbers).tolist() == [3, 4, 6, 8, 9]
    assert specpc.chosen(worth, neighbours=1, **numbers).tolist() == [0, 3, 6, 8, 9]
    worth[0] = 9  # the edge: neighbours before it do not exist
    assert specpc.chosen(worth, neighbours=3, **numbers).tolist() == [0, 1, 3, 8, 9]


@pytest.mark.parametrize(
    ("numbers", "words"),
    [
        ({"cap": 7}, "cap=7, window=8"),
        ({"window": 0}, "window=0"),
        ({"kernel": 0}, "kernel=0"),
        ({"neighbours": 0}, "neighbours=0"),
        ({"first_layer": 2}, "draft model's 2 layers"),
    ],
)
def test_bad_numbers(numbers, words):
    with pytest.raises(MethodError, match=words):
        kept(**numbers)


@pytest.mark.parametrize(
    ("prompts", "words"),
    [
        ([[1], []], "prompt 1 is empty"),
        ([[1, 9]], "prompt 0 has token 9, outside"),
        ([[1] * 513], "513 tokens, more than the draft model's 512 positions"),
        (["ab"], "no tokenizer.json"),
        ([], "prompts is empty"),
    ],
)
def test_bad_prompts(prompts, words):
    with pytest.raises(PromptError, match=words):
        specpc.compress(peaked.model(), prompts)


def test_a_draft_model_without_attention():
    with pytest.raises(MethodError, match="cannot read this draft model's attention"):
        specpc.compress(kit.DRAFT, PROMPTS)
