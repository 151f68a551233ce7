"""decoding/automata/stop_strings.py against a search of the text so far."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from decoding.automata import stop_strings
from models.errors import PromptError

TOKENS = [b"", b"a", b"b", b"ab", b"ba", b"\n", b"\n\n", b"a\nb", b"\xc3", b"\xa9"]
VOCAB = 12  # 10 and 11 pad the embedding


def _naive(strings, data):
    return any(string.encode() in data for string in strings)


def _disagreements(strings, made) -> int:
    rng, wrong = np.random.default_rng(0), 0
    step = jax.jit(lambda state, token: stop_strings.advance(made, state, token))
    state, texts = jnp.full((64,), made.start), [b""] * 64
    for _ in range(12):
        tokens = rng.integers(0, VOCAB, 64)
        state = step(state, jnp.asarray(tokens))
        texts = [t + (TOKENS + [b"", b""])[k] for t, k in zip(texts, tokens)]
        want = [_naive(strings, text) for text in texts]
        wrong += int((np.asarray(stop_strings.matched(made, state)) != want).sum())
    return wrong


CASES = [
    ["\n\n"],
    ["ab", "ba"],
    ["aab", "ab\nb"],
    ["abab", "bab", "b\n"],
    ["é"],
    ["aaa", "baab"],
]


@pytest.mark.parametrize("strings", CASES)
def test_matched_when_the_text_holds_a_string(tokenizer, strings):
    made = stop_strings.stopper(strings, tokenizer(TOKENS), VOCAB)
    assert _disagreements(strings, made) == 0


def test_fault_a_match_that_is_forgotten(tokenizer):
    made = stop_strings.stopper(["ab"], tokenizer(TOKENS), VOCAB)
    forgetful = made.next.at[jnp.flatnonzero(made.accept)[0]].set(0)
    assert _disagreements(["ab"], made._replace(next=forgetful)) > 0


def test_fault_missing_suffix_links(tokenizer, monkeypatch):
    good = stop_strings._aho_corasick

    def no_links(words):
        dfa = good(words)
        step = dfa.next.copy()
        for state in range(1, len(step) - 1):  # fall back to the start
            deeper = step[state] > state
            step[state] = np.where(deeper, step[state], 0)
        return dfa._replace(next=step)

    monkeypatch.setattr(stop_strings, "_aho_corasick", no_links)
    made = stop_strings.stopper(["aab"], tokenizer(TOKENS), VOCAB)
    assert _disagreements(["aab"], made) > 0


def test_cut_is_where_the_first_match_begins():
    assert stop_strings.cut(["\n\n"], b"one\n\ntwo\n\n") == 3
    assert stop_strings.cut(["abcd", "bc"], b"xabcd") == 2  # bc ends first
    assert stop_strings.cut(["bc", "abc"], b"xabcd") == 1  # both end there: the longest
    assert stop_strings.cut(["é"], "né".encode()) == 1
    assert stop_strings.cut(["zz"], b"abc") is None
    assert stop_strings.cut([], b"abc") is None


def test_cut_agrees_with_the_automaton(tokenizer):
    strings = ["abab", "bab", "b\n"]
    made = stop_strings.stopper(strings, tokenizer(TOKENS), VOCAB)
    rng = np.random.default_rng(1)
    for _ in range(30):
        state, data = made.start, b""
        for token in rng.integers(1, 8, 10):
            state, data = stop_strings.advance(made, state, token), data + TOKENS[token]
            assert (stop_strings.cut(strings, data) is not None) == bool(
                stop_strings.matched(made, state)
            )


def test_nothing_to_stop_at(tokenizer):
    assert stop_strings.stopper([], tokenizer(TOKENS), VOCAB) is None


def test_refuses_an_empty_string(tokenizer):
    with pytest.raises(PromptError, match="empty"):
        stop_strings.stopper(["a", ""], tokenizer(TOKENS), VOCAB)


def test_size_on_a_real_vocabulary(tokenizer, words):
    made = stop_strings.stopper(
        ["\n\n", "def ", "</code>"], tokenizer(words[:4096]), 4096
    )
    assert made.next.dtype == jnp.int16 and made.next.size < 4096
