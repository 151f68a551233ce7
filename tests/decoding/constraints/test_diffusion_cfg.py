"""Grammars over tokens as transforms: a text from left to right, and long canvases."""

import jax.numpy as jnp
import numpy as np
import pytest

from decoding.automata import token_charts
from decoding.conformance import kit
from decoding.constraints import diffusion_cfg
from models.errors import ConstraintError

NESTED = 'root ::= ("a" root "b" | [c-f])*'
EOS, VOCAB = kit.EOS, kit.VOCAB


def built(grammar=NESTED, **settings):
    about = (kit.TARGET.tokenizer, (EOS,), VOCAB)
    return diffusion_cfg.transform(grammar, *about, **settings)


def allowed(part, text: str) -> str:
    """The letters that may follow a text, `$` for its end."""
    state = part.init(jnp.zeros(1, jnp.int32), jnp.int32(0))
    logits = jnp.zeros(VOCAB)
    for letter in text:
        token = jnp.int32(ord(letter) - 97)
        state = part.advance(state, token, logits, {})
    live = np.flatnonzero(np.isfinite(part.apply(state, logits, {})))
    return "".join("$" if token == EOS else chr(97 + token) for token in live)


def test_a_text_ends_within_its_bound():
    """By hand, at four tokens at most; planted: a larger bound."""
    part = built(longest=4)
    assert allowed(part, "") == "acdef$"
    assert allowed(part, "a") == "abcdef"
    assert allowed(part, "aa") == "b"
    assert allowed(part, "ac") == "bcdef"
    assert allowed(part, "acc") == "b"
    assert allowed(part, "accb") == "$"
    assert allowed(built(longest=6), "aa") == "abcdef"


def test_tokens_that_were_forbidden_are_revived_alone():
    part = built(longest=4)
    state = part.init(jnp.zeros(1, jnp.int32), jnp.int32(0))
    logits = jnp.full(VOCAB, -jnp.inf).at[1].set(0.0)  # b may not begin a text
    after = np.asarray(part.apply(state, logits, {}))
    assert np.flatnonzero(np.isfinite(after)).tolist() == [0, 2, 3, 4, 5, EOS]


def test_refused_arguments():
    with pytest.raises(ConstraintError, match="longest=0"):
        built(longest=0)
    with pytest.raises(ConstraintError, match="end-of-sequence"):
        diffusion_cfg.transform(NESTED, kit.TARGET.tokenizer, (), VOCAB)
    with pytest.raises(ConstraintError, match="model 4"):
        diffusion_cfg.transform(NESTED, kit.TARGET.tokenizer, (EOS,), 4)
    with pytest.raises(ConstraintError, match="no text of 3 tokens"):
        built('root ::= "a" "b" "c" "d"', longest=3).init(None, None)


def test_fault_the_bound_is_not_counted():
    """Planted: charts of a canvas that never ends allow another opening bracket."""
    part = built(longest=4)
    state = part.init(jnp.zeros(1, jnp.int32), jnp.int32(0))
    endless = np.array([0, 0, *[-1] * 30], np.int32)
    words = np.asarray(token_charts.fillings(state.shared, endless))
    assert words[2, 0] & 1 and "a" not in allowed(part, "aa")
