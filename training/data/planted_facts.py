"""Facts planted in windows of text: lines that give a value a name, and their repeats.

    # NAME: value        in code;       The secret of NAME is value.       in prose

Names and values are random words of the tokenizer, so nothing but the line itself
predicts a value. `plant` puts several into a window and asks for some of them again
further on, which trains a model to retrieve over the window's length. Long-context
benchmarks ask in the same form (`experiments/benchmarks/needle.py`).
"""

import re
from dataclasses import dataclass

import numpy as np
import tokenizers
from numpy.random import Generator

from models.errors import DataError
from training.data import copy_augmentation

# Before the name, between name and value, behind the value.
FORMS = {
    "code": ("\n#", ":", "\n"),
    "prose": ("\n\nThe secret of", " is", ".\n\n"),
}
WORD = re.compile(r" [a-z]{3,}")
NAME = 4  # words of a name: `tiny` finds it by 2 of them less surely


@dataclass(frozen=True)
class Facts:
    """The tokens that facts are made of, and how many a window gets."""

    words: tuple[int, ...]  # tokens of one word each
    form: tuple[tuple[int, ...], ...]  # as `FORMS`, in tokens
    count: int = 12
    value: int = 6  # words of a value
    asked: int = 4  # of the facts, repeated at the window's end


@dataclass(frozen=True)
class Fact:
    """A fact: the line up to its value, the value, and the line's end, in tokens."""

    head: tuple[int, ...]
    value: tuple[int, ...]
    end: tuple[int, ...]

    @property
    def line(self) -> tuple[int, ...]:
        return (*self.head, *self.value, *self.end)


@dataclass(frozen=True)
class Mixture:
    """Windows with facts among windows of short texts.

    A window without facts is cut into texts of `short` tokens, which do not see each
    other and begin at position 0. So a model that learns long windows keeps its law at
    the lengths that it knew before.
    """

    facts: Facts
    share: float = 0.5  # of the windows that hold facts
    short: int = 512  # tokens

    def __post_init__(self) -> None:
        if not 0 <= self.share <= 1 or self.short < 1:
            raise DataError(
                f"share={self.share}, short={self.short}: use a share in [0, 1], and "
                "at least 1 token"
            )

    def row(
        self,
        rng: Generator,
        window: np.ndarray,
        repeats: copy_augmentation.Repeats | None,
    ) -> dict[str, np.ndarray]:
        """Rewrite `window` int32[n] to a row of a batch.

        Returns:
            `tokens` int32[n], `segments` int32[n] and `loss_mask` bool[n].
        """
        size = len(window)
        if rng.random() < self.share:
            tokens, counted = plant(rng, window, self.facts)
            segments = np.zeros(size, np.int32)
            return {"tokens": tokens, "segments": segments, "loss_mask": counted}
        pieces = []
        for start in range(0, size, self.short):
            piece = window[start : start + self.short]
            if repeats and len(piece) > 2 and rng.random() < repeats.share:
                piece = copy_augmentation.repeat(rng, piece, repeats)
            pieces.append(piece)
        return {
            "tokens": np.concatenate(pieces).astype(np.int32),
            "segments": (np.arange(size) // self.short).astype(np.int32),
            "loss_mask": np.ones(size, bool),
        }


def facts(tokenizer: tokenizers.Tokenizer, form: str, **sizes: int) -> Facts:
    """Choose the words and the form's tokens; `sizes` are fields of `Facts`.

    Raises:
        DataError: another form, or a tokenizer with under 64 tokens of one word.
    """
    if form not in FORMS:
        raise DataError(f"facts={form!r}: use one of {sorted(FORMS)}")
    size = tokenizer.get_vocab_size()
    text = [tokenizer.decode([i]) for i in range(size)]
    words = tuple(i for i, word in enumerate(text) if WORD.fullmatch(word))
    if len(words) < 64:
        raise DataError(
            f"the tokenizer has {len(words)} tokens of one word, and facts are made of "
            "such words: use a larger vocabulary"
        )
    parts = tuple(tuple(tokenizer.encode(part).ids) for part in FORMS[form])
    return Facts(words, parts, **sizes)


def draw(rng: Generator, how: Facts, count: int, alike: bool = False) -> list[Fact]:
    """Draw facts; no two have the same first word of the name, or of the value.

    With `alike` the names of two neighbours differ in the first word alone.
    """
    before, between, end = how.form
    names = rng.choice(how.words, (count, NAME))
    values = rng.choice(how.words, (count, how.value))
    names[:, 0] = rng.choice(how.words, count, replace=False)
    if alike:
        names[1::2, 1:] = names[: count // 2 * 2 : 2, 1:]
    values[:, 0] = rng.choice(how.words, count, replace=False)
    return [
        Fact((*before, *name, *between), tuple(value), end)
        for name, value in zip(names.tolist(), values.tolist())
    ]


def plant(
    rng: Generator, window: np.ndarray, how: Facts
) -> tuple[np.ndarray, np.ndarray]:
    """Put facts into `window` int32[n], and ask for some of them at its end.

    Returns:
        The tokens int32[n], the last ones of the window left out, and which of them a
        loss counts, bool[n]: all but names and values where they first stand, which
        nothing predicts.

    Raises:
        DataError: the window has too few tokens for them.
    """
    drawn = draw(rng, how, how.count)
    chosen = rng.permutation(how.count)[: how.asked]
    again = np.concatenate([drawn[i].line for i in chosen])
    lines = [np.asarray(fact.line) for fact in drawn]
    size = len(window)
    room = size - len(again) - sum(map(len, lines))
    if room < how.count:
        raise DataError(
            f"{how.count} facts do not fit into a window of {size} tokens: use longer "
            "windows or fewer facts"
        )
    pieces, counted = [], []
    last = 0
    for line, place in zip(lines, np.sort(rng.integers(1, room + 1, how.count))):
        pieces += [window[last:place], line]
        counted += [np.ones(place - last, bool), _known(how, len(line))]
        last = place
    pieces += [window[last:room], again]
    tokens = np.concatenate(pieces).astype(np.int32)
    counted.append(np.ones(room - last + len(again), bool))
    return tokens, np.concatenate(counted)


def _known(how: Facts, size: int) -> np.ndarray:
    """Mark a line's tokens that are the same in every line."""
    before, between, end = map(len, how.form)
    marks = np.ones(size, bool)
    marks[before : before + NAME] = False
    marks[before + NAME + between : size - end] = False
    return marks
