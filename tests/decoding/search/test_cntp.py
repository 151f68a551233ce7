"""decoding/search/cntp.py: the exact law of few trials, and its plain forms."""

import collections
import functools
import itertools
import math

import numpy as np
import pytest

import decoding
from decoding import Method, Spec
from decoding.conformance import kit
from decoding.text_lookup import token_marks
from models.errors import MethodError
from models.synthetic import toy
from tests.decoding.search.rows import p_value

LM = kit.model(0, ending=-1.0)
PROMPT, NEW, MARKS = [1, 2], 2, (0, 3)


def searched(heat, prompts, **fields):
    known = {"marks": "ad", "trials": 2, "longest": 8, "low": -2.0, "high": -1.0}
    call = {key: fields.pop(key, value) for key, value in known.items()}
    method = Method(search=Spec("search/cntp", **call))
    return decoding.generate(LM, prompts, method, temperature=heat, **fields)


@functools.cache
def law(tokens: tuple, heat: float) -> np.ndarray:
    logits = np.float64(toy.logits(LM.params, [*PROMPT, *tokens])) / heat
    return logits - logits.max() - np.log(np.exp(logits - logits.max()).sum())


def trials(heat: float, start: tuple, room: int) -> dict[tuple, float]:
    """Log-probabilities of the texts up to a mark, an end or the limit."""
    found: dict[tuple, float] = {}
    for token in range(kit.VOCAB):
        text, given = (*start, token), law(start, heat)[token]
        if room == 1 or token in MARKS or token == kit.EOS:
            found[text] = given
            continue
        for more, further in trials(heat, text, room - 1).items():
            found[more] = given + further
    return found


def texts(heat: float, tries: int, start: tuple = ()) -> dict[tuple, float]:
    """The exact law: the likeliest by the token of `tries` trials, again and again."""
    room = NEW - len(start)
    if room == 0 or (start and start[-1] == kit.EOS):
        return {start: 1.0}
    found: collections.Counter = collections.Counter()
    each = trials(heat, start, room)
    for drawn in itertools.product(each, repeat=tries):
        best = max(drawn, key=lambda text: each[text] / (len(text) - len(start)))
        found[best] += math.prod(math.exp(each[text]) for text in drawn)
    whole: collections.Counter = collections.Counter()
    for text, chance in found.items():
        for end, further in texts(heat, tries, text).items():
            whole[end] += chance * further
    return dict(whole)


@pytest.mark.parametrize("heat", [0.9, 1.0])
def test_the_law_of_two_trials(heat):
    """n = 4,096 texts of two tokens; level 1e-4."""
    out = searched(heat, [PROMPT] * 4096, max_new_tokens=NEW, seed=[*range(4096)])
    found = collections.Counter(map(tuple, out.tokens))
    assert p_value(found, texts(heat, 2)) > 1e-4
    assert p_value(found, texts(heat, 1)) < 1e-4  # planted: the first trial is kept


@pytest.mark.long
def test_plain_forms():
    """One trial, or a law that is never flat, is plain sampling; T = 0 is greedy."""
    fields = {"max_new_tokens": 20, "seed": 3}
    plain = decoding.generate(LM, kit.PROMPTS, "plain", temperature=0.9, **fields)
    assert searched(0.9, kit.PROMPTS, trials=1, **fields).tokens == plain.tokens
    calm = searched(0.9, kit.PROMPTS, low=90.0, high=91.0, **fields)
    assert calm.tokens == plain.tokens
    assert searched(0.9, kit.PROMPTS, **fields).tokens != plain.tokens  # planted
    greedy = decoding.generate(LM, kit.PROMPTS, "plain", **fields)
    assert searched(0.0, kit.PROMPTS, trials=3, **fields).tokens == greedy.tokens


def test_more_trials_where_the_law_is_flatter():
    """Between the two ends the number of trials rises with the entropy."""
    fields = {"max_new_tokens": 20, "seed": 3, "trials": 6}
    counts = [
        searched(0.9, kit.PROMPTS, low=0.0, high=high, **fields).stats.nodes_run.sum()
        for high in (1.0, 4.0, 60.0)
    ]
    assert counts[0] > counts[1] > counts[2]


def test_refuses():
    for fields, words in (
        ({"trials": 0}, "trials=0"),
        ({"low": 2.0, "high": 1.0}, "low=2.0"),
        ({"marks": "?"}, "no token of the model"),
    ):
        with pytest.raises(MethodError, match=words):
            searched(0.9, kit.PROMPTS, max_new_tokens=4, **fields)
    found = token_marks.among(LM.tokenizer, kit.VOCAB, "ad").tolist()
    assert found == [i in MARKS for i in range(kit.VOCAB)]
