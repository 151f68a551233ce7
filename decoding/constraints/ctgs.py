"""CTGS: tokens whose text fails a filter are forbidden.

Roush, Basu, Moorthy, Dubovoy, *Most Language Models can be Poets too: An AI Writing
Assistant and Constrained Text Generation Studio*, 2023, arXiv 2306.15926; official code
github.com/Hellisotherpeople/Constrained-Text-Generation-Studio.

    allowed = {v : every filter holds for texts(decode(v))}, and the end of sequence

21 filters (`automata/vocabulary_filters.py`, FILTERS): banned and required strings, all
or any; letters at places, beginnings, endings, lengths; edit distance, anagrams,
palindromes, isograms; sound, meaning, syllables, meter, rhyme. 12 changes to a text
before it is filtered (TEXTS). The set is made once, on the host; several filters are
the product of their sets, in any order.

A filter judges tokens. A ban of single letters then holds for the text; a length or an
ending holds for parts of words. `automata/word_patterns.py` writes the regular filters
of whole words as a pattern for `constraints/regex`.

Deviations: the set is applied before truncation (top-k, top-p), which therefore never
empties it; the official program filters what truncation leaves, where nothing may be
left. Where earlier transforms forbid every token of the set, its tokens become equally
likely. `any_banned` and `any_required` compare strings, as the program's page says; its
code compares single characters. `sounds_like` compares the consonants of
pronunciations, not codes of double metaphone; meanings are any vectors, not fastText's.
Tables of words are the user's. The text keeps the token as it is; the program writes
the changed one. Tokens of half a character and special tokens are forbidden.
Cost: one pass over V a node, V / 8 bytes a row; seconds on the host for V = 131,072.
"""

from collections.abc import Mapping, Sequence
from typing import Any

import jax.numpy as jnp
import numpy as np
from flax import struct
from jax import Array

from decoding import base, vocab
from decoding.automata import vocabulary_filters
from decoding.catalogue import Card
from models.errors import ConstraintError

CARD = Card(
    paper="CTGS, arXiv 2306.15926",
    guarantee=base.LAW,
    family="vocabulary",
    data=("filters", "texts", "spare", "pronunciations", "vectors"),
    needs=("tokenizer", "eos", "vocab_size"),
    examples={"filters": {"banned": ("c", "e")}},
    sources=("roush2023most",),
)


@struct.dataclass
class Row:
    allowed: Array  # uint32[ceil(V / 32)]: packed set of tokens


def transform(
    filters: Mapping[str, Any] | Sequence[tuple[str, Any]],
    tokenizer: Any,
    eos: tuple[int, ...],
    vocab_size: int,
    texts: Sequence[str] = (),
    spare: str = "",
    pronunciations: Any = None,
    vectors: Any = None,
) -> base.LogitsTransform:
    """Allow the tokens that pass all `filters`, and the end of sequence.

    Args:
        filters: argument of each filter by its name, such as {"banned": ["e"],
            "shorter": 6}; see `vocabulary_filters.FILTERS`.
        tokenizer: `tokenizer.token_bytes()` gives the bytes of every id.
        eos: ids of the end-of-sequence tokens.
        vocab_size: V.
        texts: changes before filters, of `vocabulary_filters.TEXTS`.
        spare: tokens of these characters alone pass, such as spaces and points.
        pronunciations: for sound, syllables, meter and rhyme: a path or a mapping.
        vectors: for meaning: a path or a mapping.

    Raises:
        ConstraintError: an unknown filter, a missing table, or no token passes.
    """
    allowed = token_set(
        tokenizer.token_bytes(),
        vocab_size,
        dict(filters),
        texts,
        spare,
        vocabulary_filters.tables(pronunciations, vectors),
    )
    allowed[list(eos)] = True
    bits = jnp.asarray(vocab.pack_bits(jnp.asarray(allowed)))

    def init(tokens: Array, length: Array) -> base.State:
        return base.State(Row(bits))

    def apply(state: base.State, logits: Array, aux: dict[str, Array]) -> Array:
        inside = vocab.members(state.row.allowed, logits.shape[-1])
        return vocab.restricted(logits, inside)

    def free(state: base.State, logits: Array, aux: dict[str, Array]) -> Array:
        return logits

    return base.LogitsTransform(init, apply, free=free)


def token_set(
    tokens: Sequence[bytes],
    vocab_size: int,
    filters: Mapping[str, Any],
    texts: Sequence[str] = (),
    spare: str = "",
    tables: vocabulary_filters.Tables = vocabulary_filters.NONE,
) -> np.ndarray:
    """Return the tokens that pass, bool[V]; the end of sequence is not among them.

    Raises:
        ConstraintError: see `transform`.
    """
    vocabulary_filters.check(filters, texts, tables)
    names = list(filters)
    passed = np.zeros((vocab_size, len(names)), bool)
    for i, data in enumerate(tokens[:vocab_size]):
        try:
            text = data.decode("utf-8")
        except UnicodeDecodeError:
            continue
        if not text:
            continue
        if spare and not text.strip(spare):
            passed[i] = True
        else:
            passed[i] = vocabulary_filters.passes(text, filters, texts, tables)
    allowed: np.ndarray = np.all(passed, axis=1)
    if not allowed.any():
        counts = ", ".join(
            f"{name}={filters[name]!r} {count:,}"
            for name, count in zip(names, passed.sum(0).tolist())
        )
        raise ConstraintError(
            f"no token passes all filters; each alone leaves: {counts}. Leave one out, "
            "or change texts (such as strip or lower)"
        )
    return allowed
