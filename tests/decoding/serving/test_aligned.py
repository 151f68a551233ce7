"""Texts of ASAp through `generate`, on a language that can be enumerated."""

import itertools
import re

import numpy as np
import pytest

import decoding
from decoding import Spec
from decoding.conformance import kit
from decoding.serving import aligned
from models.errors import PromptError
from models.synthetic import toy

LM = kit.model(0, ending=1.0)
PROMPTS = [[1, 2], [3]]
PATTERNS = ["[ab]?[a-c]", "a(b|c)?d"]
GRAMMARS = [{"regex": pattern} for pattern in PATTERNS]
HEAT, SAMPLES = 0.9, 12
COMMON = {"temperature": HEAT, "max_new_tokens": 5, "seed": 3}


def future(prompt, pattern: str) -> float:
    """The log-probability of a text of the language behind a prompt."""
    total = 0.0
    for size in range(1, 4):
        for letters in itertools.product(range(7), repeat=size):
            word = "".join(chr(97 + t) for t in letters)
            if re.fullmatch(pattern, word):
                total += probability(prompt, [*letters, kit.EOS])
    return float(np.log(total))


def probability(prompt, text) -> float:
    found = 1.0
    for i, token in enumerate(text):
        weights = np.exp(np.float64(toy.logits(LM.params, [*prompt, *text[:i]])) / HEAT)
        found *= weights[token] / weights.sum()
    return found


@pytest.fixture(scope="module")
def drawn():
    return aligned.sample(LM, PROMPTS, GRAMMARS, samples=SAMPLES, **COMMON)


def test_the_first_text_is_that_of_the_mask(drawn):
    """Planted: a later one; texts of all calls differ in noise."""
    masked = decoding.generate(LM, PROMPTS, constraint=GRAMMARS, **COMMON).tokens
    assert [row[0] for row in drawn.tokens] == masked
    assert any([row[i] for row in drawn.tokens] != masked for i in range(1, SAMPLES))
    assert drawn.accepted == [[True] * SAMPLES] * 2
    assert drawn.guarantee == "LOSSY"


def test_bounds_are_of_each_prompt_and_fall(drawn):
    """Planted: the language of the other prompt, whose mass is another."""
    masses = [future(*pair) for pair in zip(PROMPTS, PATTERNS)]
    for scores, mass in zip(drawn.scores, masses):
        assert scores == sorted(scores, reverse=True) and scores[-1] > mass - 1e-5
    more = aligned.sample(
        LM, PROMPTS, GRAMMARS, samples=24, memory=drawn.memory, **COMMON
    )
    assert [len(row) for row in more.tokens] == [24, 24]
    for i, mass in enumerate(masses):
        assert more.scores[i][0] <= drawn.scores[i][-1]
        assert more.memory.log_bound(i) == pytest.approx(mass, abs=0.1)
        assert more.memory.log_bound(i) != pytest.approx(masses[1 - i], abs=0.1)
        # What a call was given is not changed.
        assert drawn.memory.log_bound(i) == drawn.scores[i][-1]


def test_a_part_may_be_the_constraint(drawn):
    """Two texts at a time; the first is the same. Planted: another language."""
    asked = {"samples": 3, "batch": 2, **COMMON}
    draw = lambda pattern: aligned.sample(
        LM, PROMPTS[:1], Spec("constraints/regex", pattern=pattern), **asked
    )
    out = draw(PATTERNS[0])
    assert len(out.tokens[0]) == 3 and out.accepted is None
    assert out.tokens[0][0] == drawn.tokens[0][0]
    assert draw(PATTERNS[1]).tokens[0][0] != out.tokens[0][0]


@pytest.mark.parametrize("fields", [{"samples": 0}, {"batch": 0}, {"temperature": 0.0}])
def test_refuses(fields):
    with pytest.raises(PromptError, match="at least one text and a temperature"):
        aligned.sample(LM, PROMPTS, GRAMMARS, **fields)
