"""Regular expressions: the whole text must match the pattern.

Willard, Louf, "Efficient Guided Generation for Large Language Models", 2023, arXiv
2307.09702, §3; token classes and byte-level lifting are this project's own.

    q' = next[q, token]
    allowed(q) = {token : next[q, token] != dead}

The regex becomes an automaton over characters, then over the bytes of their UTF-8 forms
(exactly, so that a token may hold half a character), then over tokens. It is a grammar
whose stack stays empty: `constraints/grammar` runs it.
A token is allowed if and only if some sequence of tokens after it completes a string;
the end of sequence, if and only if the string is complete. The law is the model's,
restricted token by token and renormalised. It is not the model's law conditioned on the
language.

Syntax: Python's `re` with the flag ASCII (\\w, \\d and \\s are ASCII), matched as
`re.fullmatch` does; inner anchors, look-around, references, atomic groups and
possessive repeats are refused.
Deviations from the paper: states from which the vocabulary spells no ending are pruned.
Cost a node: V/8 bytes of words (at most 256 tokens are listed instead), and a step a
byte of its token. Patterns of like size share a compiled loop.
"""

from collections.abc import Sequence
from typing import Any

from decoding import base
from decoding.automata import compiled
from decoding.catalogue import Card
from decoding.constraints import grammar
from models.errors import ConstraintError

CARD = Card(
    paper="Efficient guided generation, arXiv 2307.09702",
    guarantee=base.LAW,
    family="grammar",
    data=("pattern", "index"),
    needs=("tokenizer", "eos", "vocab_size"),
    examples={"pattern": "(a|b|c[a-e]|d+|e|f)*"},
    sources=("willard2023efficient",),
)


def transform(
    pattern: str | Sequence[str],
    tokenizer: Any,
    eos: tuple[int, ...],
    vocab_size: int,
    index: int = 0,
) -> base.LogitsTransform:
    """Restrict the text to strings that match `pattern` in full.

    If earlier transforms have forbidden every token that the pattern allows, the
    pattern wins: its tokens become equally likely. In a dead state, which only an
    unreachable tree node has, the logits are returned unchanged.

    Args:
        pattern: a regex of Python's `re`, or those of all prompts of a call.
        tokenizer: `tokenizer.token_bytes()` gives the bytes of every id.
        eos: ids of the end-of-sequence tokens.
        vocab_size: V.
        index: which of several patterns this prompt has.

    Raises:
        ConstraintError: a pattern that is refused, or that no sequence of tokens
            matches; a vocabulary without an end of sequence, or of another model.
    """
    num_tokens = len(tokenizer.token_bytes())
    if num_tokens > vocab_size:
        raise ConstraintError(
            f"the tokenizer has {num_tokens} tokens and the model {vocab_size}: use "
            "the tokenizer of this model"
        )
    patterns = [pattern] if isinstance(pattern, str) else pattern
    grammars = [compiled.parse({"regex": source}) for source in patterns]
    return grammar.transform(grammars, tokenizer, eos, vocab_size, index, depth=1)
