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


def _made(strings, tokenizer):
    """The automaton of `strings` and its start state, beside that of other strings."""
    made, starts = stop_strings.stopper([["b"], strings, []], tokenizer(TOKENS), VOCAB)
    assert not made.accept[starts[2]]
    return made, starts[1]


def _disagreements(strings, made) -> int:
    made, start = made
    rng, wrong = np.random.default_rng(0), 0
    step = jax.jit(lambda state, token: stop_strings.advance(made, state, token))
    state, texts = jnp.full((64,), start), [b""] * 64
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
    made = _made(strings, tokenizer)
    assert _disagreements(strings, made) == 0


def test_fault_a_match_that_is_forgotten(tokenizer):
    made, start = _made(["ab"], tokenizer)
    forgetful = made.next.at[jnp.flatnonzero(made.accept)].set(start)
    assert _disagreements(["ab"], (made._replace(next=forgetful), start)) > 0


def test_rows_stop_at_their_own_strings(tokenizer):
    """Lists side by side in one automaton; planted: another row's first state."""
    lists = [["ab"], [], ["ba", "\n"], ["ab"]]
    made, starts = stop_strings.stopper(lists, tokenizer(TOKENS), VOCAB)
    assert starts[0] == starts[3]
    for strings, start in zip(lists, starts):
        assert _disagreements(strings, (made, start)) == 0
    assert _disagreements(lists[0], (made, starts[2])) > 0
    other, _ = stop_strings.stopper([["aab", "\nb"]], tokenizer(TOKENS), VOCAB)
    assert made.next.shape == other.next.shape  # so that they share a program


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
    made = _made(["aab"], tokenizer)
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
    made, start = _made(strings, tokenizer)
    rng = np.random.default_rng(1)
    for _ in range(30):
        state, data = start, b""
        for token in rng.integers(1, 8, 10):
            state, data = stop_strings.advance(made, state, token), data + TOKENS[token]
            assert (stop_strings.cut(strings, data) is not None) == bool(
                stop_strings.matched(made, state)
            )


def test_nothing_to_stop_at(tokenizer):
    assert _disagreements([], _made([], tokenizer)) == 0


def test_refuses_an_empty_string(tokenizer):
    with pytest.raises(PromptError, match="empty"):
        stop_strings.stopper([["a", ""]], tokenizer(TOKENS), VOCAB)


def test_size_on_a_real_vocabulary(tokenizer, words):
    made, _ = stop_strings.stopper(
        [["\n\n", "def ", "</code>"]], tokenizer(words[:4096]), 4096
    )
    assert made.next.dtype == jnp.int16 and made.next.size < 4096
