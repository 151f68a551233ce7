"""Grammars as oracles, against the byte machine and the device form."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from decoding import Spec
from decoding.automata import byte_machine
from decoding.automata.oracle import GrammarOracle
from decoding.conformance import kit
from models.errors import ConstraintError

GRAMMARS = [
    {"gbnf": 'root ::= "a" root? "b" | "c"'},
    {"regex": "(ab|c)*d"},
    {"regex": "[a-d]{2}", "after": "ef"},
]


def oracle(source) -> GrammarOracle:
    return GrammarOracle(source, kit.TARGET.tokenizer, (kit.EOS,), kit.VOCAB)


def answers(asked: GrammarOracle, text: tuple[int, ...]) -> list[bool]:
    return [asked(text, token) for token in range(kit.VOCAB)]


@pytest.mark.parametrize("source", GRAMMARS, ids=str)
def test_answers_are_the_masks(source):
    """Along random texts. Planted: the masks of the text before."""
    asked, rng = oracle(source), np.random.default_rng(0)
    part = Spec("constraints/grammar", grammars=(source,)).build(kit.PARTS)
    apply, advance = jax.jit(part.apply), jax.jit(part.advance)
    differs = False
    for _ in range(8):
        state, text, last = part.init(jnp.zeros(4, jnp.int32), jnp.int32(1)), (), None
        for _ in range(10):
            logits = jnp.zeros(kit.VOCAB)
            mask = np.isfinite(apply(state, logits, {})).tolist()
            assert answers(asked, text) == mask
            differs |= last is not None and last != mask
            last = mask
            token = int(rng.choice(np.flatnonzero(mask)))
            if token == kit.EOS:
                break
            state = advance(state, jnp.int32(token), logits, {})
            text = (*text, token)
    assert differs


def test_an_end_is_allowed_behind_whole_texts_alone():
    """Planted: wherever a text can go on."""
    asked = oracle(GRAMMARS[0])
    texts = [(), (0,), (2,), (0, 2), (0, 2, 1), (0, 0, 1, 1)]
    spelled = [bytes(97 + t for t in text) for text in texts]
    whole = [byte_machine.accepts(asked.machine, data) for data in spelled]
    assert [asked(text, kit.EOS) for text in texts] == whole
    assert [any(answers(asked, text)[: kit.EOS]) for text in texts] != whole


def test_places_are_kept_and_dropped(monkeypatch):
    """Planted: a limit of two places; answers stay."""
    monkeypatch.setattr("decoding.automata.oracle.MOST", 2)
    asked = oracle(GRAMMARS[0])
    deep = (0,) * 12
    assert answers(asked, deep) == answers(oracle(GRAMMARS[0]), deep)
    assert len(asked._places) <= 2


def test_refuses_what_does_not_compile():
    with pytest.raises(ConstraintError):
        oracle({"regex": "h"})
