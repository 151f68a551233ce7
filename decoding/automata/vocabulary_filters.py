"""Filters of a vocabulary's texts, and what is done to a text before it is filtered.

A filter is a predicate of one token's text. Those of pronunciation and meaning look the
text up in a table that the user gives: a file of the CMU Pronouncing Dictionary's form
(`word  P1 P2 ...`, stress as a digit behind each vowel), or of word vectors in text
form (`word x1 x2 ...`), or a mapping. A text without an entry passes no such filter.
"""

from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np

from models import storage
from models.errors import ConstraintError, hint

Phones = tuple[str, ...]


class Tables(NamedTuple):
    """What is known of words, by the word in lower case."""

    phones: Mapping[str, Sequence[Phones]] = {}
    vectors: Mapping[str, np.ndarray] = {}


NONE = Tables()
Filter = Callable[[str, Any, Tables], bool]  # text, argument, tables

# In the order in which they are applied.
TEXTS: dict[str, Callable[[str], str]] = {
    "upper": str.upper,
    "lower": str.lower,
    "no_spaces": lambda text: text.replace(" ", ""),
    "lstrip": str.lstrip,
    "rstrip": str.rstrip,
    "strip": str.strip,
    "capitalize": str.capitalize,
    "alnum": lambda text: "".join(filter(str.isalnum, text)),
    "alpha": lambda text: "".join(filter(str.isalpha, text)),
    "digit": lambda text: "".join(filter(str.isdigit, text)),
    "ascii": lambda text: "".join(filter(str.isascii, text)),
    "not_blank": lambda text: text,  # see `passes`
}


def distance(one: str, other: str) -> int:
    """Return the least number of insertions, deletions and substitutions."""
    row = list(range(len(other) + 1))
    for i, a in enumerate(one, 1):
        before, row[0] = row[0], i
        for j, b in enumerate(other, 1):
            before, row[j] = row[j], min(row[j] + 1, row[j - 1] + 1, before + (a != b))
    return row[-1]


def _at(text: str, places: Sequence[Sequence]) -> bool:
    return all(-len(text) <= i < len(text) and text[i] == c for i, c in places)


def _first_phones(text: str, tables: Tables) -> Phones:
    known = tables.phones.get(text.lower())
    return known[0] if known else ()


def stresses(phones: Phones) -> str:
    """Return the stress of every syllable: 0 none, 1 primary, 2 secondary."""
    return "".join(phone[-1] for phone in phones if phone[-1].isdigit())


def rhyming_part(phones: Phones) -> Phones:
    """Return what follows from the last stressed vowel on, itself included."""
    stressed = [i for i, phone in enumerate(phones) if phone[-1] in "12"]
    return phones[stressed[-1] :] if stressed else phones


def _rhymes(text: str, word: str, tables: Tables) -> bool:
    parts = lambda word: {rhyming_part(p) for p in tables.phones.get(word.lower(), ())}
    return text.lower() != word.lower() and bool(parts(text) & parts(word))


def skeleton(phones: Phones) -> Phones:
    """Return the consonants, and a mark of a vowel that begins the word."""
    is_vowel = lambda phone: phone[-1].isdigit()
    begins = ("A",) if phones and is_vowel(phones[0]) else ()
    return begins + tuple(phone for phone in phones if not is_vowel(phone))


def _sounds_like(text: str, word: str, tables: Tables) -> bool:
    known = lambda word: {skeleton(p) for p in tables.phones.get(word.lower(), ())}
    return bool(known(text) & known(word))


def _means(text: str, like: Sequence, tables: Tables) -> bool:
    word, least = like
    one, other = (tables.vectors.get(w.lower()) for w in (text, word))
    if one is None or other is None:
        return False
    size = float(np.linalg.norm(one) * np.linalg.norm(other))
    return size > 0 and float(one @ other) / size >= least


def _same_stresses(text: str, word: str, tables: Tables) -> bool:
    phones = _first_phones(text, tables)
    return bool(phones) and stresses(phones) == stresses(_first_phones(word, tables))


def _counts(text: str, holds: Callable[[int], bool]) -> bool:
    return all(map(holds, Counter(text).values()))


FILTERS: dict[str, Filter] = {
    "banned": lambda text, words, _: all(word not in text for word in words),
    "any_banned": lambda text, words, _: any(word not in text for word in words),
    "required": lambda text, words, _: all(word in text for word in words),
    "any_required": lambda text, words, _: any(word in text for word in words),
    "at": lambda text, places, _: _at(text, places),
    "starts": lambda text, word, _: text.startswith(word),
    "ends": lambda text, word, _: text.endswith(word),
    "near": lambda text, like, _: distance(text, like[0]) <= like[1],
    "length": lambda text, size, _: len(text) == size,
    "longer": lambda text, size, _: len(text) > size,
    "shorter": lambda text, size, _: len(text) < size,
    "sounds_like": _sounds_like,
    "means": _means,
    "syllables": lambda text, count, tables: (
        len(stresses(_first_phones(text, tables))) == count
    ),
    "meter": _same_stresses,
    "rhymes": _rhymes,
    "palindrome": lambda text, is_one, _: (text == text[::-1]) == is_one,
    "anagram": lambda text, word, _: Counter(text) == Counter(word),
    "partial_anagram": lambda text, word, _: Counter(text) <= Counter(word),
    "isogram": lambda text, most, _: _counts(text, lambda n: n <= most),
    "reverse_isogram": lambda text, least, _: _counts(text, lambda n: n >= least),
}

# Filters whose argument is a word that must have an entry, and where it stands.
LOOKED_UP = {
    "sounds_like": ("phones", lambda word: word),
    "meter": ("phones", lambda word: word),
    "rhymes": ("phones", lambda word: word),
    "means": ("vectors", lambda like: like[0]),
}
NEEDS = {
    **{name: table for name, (table, _) in LOOKED_UP.items()},
    "syllables": "phones",
}
FORMS = {
    "phones": "pronunciations: a file of the CMU Pronouncing Dictionary's form",
    "vectors": "vectors: a file of word vectors in text form",
}
LISTS = ("banned", "any_banned", "required", "any_required")


def check(filters: Mapping[str, Any], texts: Iterable[str], tables: Tables) -> None:
    """Refuse unknown names, and filters that lack their table or their word in it.

    Raises:
        ConstraintError: as above, or strings where a list of them is meant.
    """
    for kind, names, known in (("filter", filters, FILTERS), ("text", texts, TEXTS)):
        for name in names:
            if name not in known:
                raise ConstraintError(
                    f"no {kind} {name!r}{hint(name, list(known))}; use one of "
                    f"{list(known)}"
                )
    if not filters:
        raise ConstraintError(f"no filter: name at least one of {list(FILTERS)}")
    for name, argument in filters.items():
        if name in LISTS and (isinstance(argument, str) or "" in argument):
            raise ConstraintError(
                f"{name}={argument!r}: use a list of strings, none of them empty"
            )
        table = NEEDS.get(name)
        if table is None:
            continue
        if not getattr(tables, table):
            raise ConstraintError(f"the filter {name!r} needs {FORMS[table]}")
        if name in LOOKED_UP:
            word = LOOKED_UP[name][1](argument)
            if word.lower() not in getattr(tables, table):
                raise ConstraintError(
                    f"{name}={argument!r}: the table has no entry {word!r}; use a word "
                    "that it has"
                )


def passes(
    text: str, filters: Mapping[str, Any], texts: Iterable[str], tables: Tables
) -> list[bool]:
    """Return which filters a text passes, after what `texts` does to it."""
    chosen = set(texts)
    for name, act in TEXTS.items():
        text = act(text) if name in chosen else text
    if "not_blank" in chosen and not text:
        return [False] * len(filters)
    return [FILTERS[name](text, x, tables) for name, x in filters.items()]


def tables(pronunciations: Any = None, vectors: Any = None) -> Tables:
    """Read the tables of words.

    Args:
        pronunciations: a path, or a mapping of words to strings of phones, or to lists
            of these; pairs serve as a mapping.
        vectors: a path, or a mapping of words to vectors.

    Raises:
        ConstraintError: a line of a file has another form.
    """
    phones: dict[str, list[Phones]] = {}
    for word, spoken in _entries(pronunciations, _phones):
        several = [spoken] if isinstance(spoken, str) else spoken
        phones.setdefault(word.lower(), []).extend(tuple(p.split()) for p in several)
    numbers = {
        word.lower(): np.asarray(x, np.float64)
        for word, x in _entries(vectors, _vector)
    }
    return Tables(phones, numbers)


def _entries(source: Any, read: Callable[[str], tuple | None]) -> Iterable[tuple]:
    if source is None:
        return []
    if not isinstance(source, str):
        return dict(source).items()
    entries = []
    for i, line in enumerate(storage.path(source).read_text().splitlines(), 1):
        try:
            entry = read(line)
        except ValueError as error:
            raise ConstraintError(f"{source}, line {i}: {error}") from error
        if entry is not None:
            entries.append(entry)
    return entries


def _phones(line: str) -> tuple | None:
    """Read `word  P1 P2 ...`; further pronunciations are `word(2)`."""
    if line.startswith(";;;") or not line.strip():
        return None
    word, _, spoken = line.partition(" ")
    spoken = spoken.partition("#")[0].strip()
    if not spoken:
        raise ValueError(f"write a word and its phones, not {line!r}")
    return word.partition("(")[0] or word, spoken


def _vector(line: str) -> tuple | None:
    """Read `word x1 x2 ...`; the first line may give counts."""
    word, *numbers = line.split()
    return (word, [float(x) for x in numbers]) if len(numbers) > 1 else None
