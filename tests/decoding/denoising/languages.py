"""Two languages of the masked toy's letters, as grammars and in plain Python."""

import functools
import types

from models.synthetic import toy_masked

EOS, VOCAB = 2, 7
LETTERS = ["a", "b", "", "d", "e", "f", ""]  # 2 ends a text, 6 is the mask
REGEX = {"regex": "(ab|d[ef]*d)+"}
NESTED = 'root ::= ("a" root "b" | [def])*'
STEPS = {(0, "a"): 1, (1, "b"): 3, (0, "d"): 2, (2, "e"): 2, (2, "f"): 2, (2, "d"): 3}
STEPS |= {(3, "a"): 1, (3, "d"): 2}
Text = tuple[int | None, ...]


class Tokens:
    """A tokenizer of single letters."""

    def token_bytes(self) -> list[bytes]:
        return [letter.encode() for letter in LETTERS]

    def decode(self, tokens) -> str:
        return "".join(LETTERS[t] for t in tokens)


def lm(seed=0, **fields):
    model, params = toy_masked.model(VOCAB, seed, 3.0, eos=(EOS,), **fields)
    return types.SimpleNamespace(model=model, params=params, tokenizer=Tokens())


def may(token: int | None, letters: str) -> bool:
    """Whether a token, or any at an open position, is one of some letters."""
    return token is None or (LETTERS[token] != "" and LETTERS[token] in letters)


def is_regular(text: Text) -> bool:
    """Whether tokens fill the open positions of a text of REGEX."""
    states = {0}
    for token in text:
        states = {q for (p, c), q in STEPS.items() if p in states and may(token, c)}
    return 3 in states


@functools.cache
def is_nested(text: Text) -> bool:
    """Whether tokens fill the open positions of a text of NESTED."""
    if not text:
        return True
    if may(text[0], "def") and is_nested(text[1:]):
        return True
    return may(text[0], "a") and any(
        may(text[k], "b") and is_nested(text[1:k]) and is_nested(text[k + 1 :])
        for k in range(1, len(text))
    )


def holds(language, text) -> bool:
    """Whether a canvas can be filled: a text of the language, then only EOS."""
    tails = [m for m in range(len(text) + 1) if {*text[m:]} <= {None, EOS}]
    return any(language(tuple(text[:m])) for m in tails)


def is_text(language, tokens) -> bool:
    """Whether a finished text, less the EOS at its end, is in the language."""
    body = tokens[:-1] if tokens and tokens[-1] == EOS else tokens
    return language(tuple(body))
