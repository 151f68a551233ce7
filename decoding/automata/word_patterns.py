"""Regular expressions for texts whose every word passes filters of whole words.

Filters of a vocabulary judge tokens, which may be parts of words. Those that a regular
expression can state hold for words in `constraints/regex`, however they are cut:

    word_pattern({"banned": ["e"], "length": 3})  ->  (?:[abcdf...z]{3})(?: ...)*
"""

import re
import string
from collections.abc import Mapping, Sequence
from typing import Any

from models.errors import ConstraintError

REGULAR = ("banned", "at", "starts", "ends", "length", "longer", "shorter")


def word_pattern(
    filters: Mapping[str, Any],
    letters: str = string.ascii_lowercase,
    between: str = " ",
) -> str:
    """Write the regex of one word or more.

    Args:
        filters: as in `constraints/ctgs`; of `REGULAR`, with banned single letters and
            places counted from the beginning.
        letters: characters of a word.
        between: a regex of what stands between words.

    Raises:
        ConstraintError: a filter that is no such one, or no word passes all.
    """
    for name in filters:
        if name not in REGULAR:
            raise ConstraintError(
                f"the filter {name!r} has no regular expression here: use "
                f"constraints/ctgs, which judges tokens, or one of {REGULAR}"
            )
    banned = filters.get("banned", ())
    if any(len(letter) != 1 for letter in banned):
        raise ConstraintError(f"banned={banned!r}: in words, ban single letters")
    allowed = [c for c in letters if c not in banned]
    places = dict(enumerate(filters.get("starts", "")))
    for i, c in filters.get("at", ()):
        if i < 0 or places.setdefault(i, c) != c:
            raise ConstraintError(
                f"at={filters['at']!r}: count places from 0, and give each one letter"
            )
    end, extent = filters.get("ends", ""), max(places, default=-1) + 1
    low = max(filters.get("longer", 0) + 1, extent, len(end))
    # At this length the ending meets no fixed place: between them letters may repeat.
    free = max(low, extent + len(end))
    sizes = range(low, filters.get("shorter", free + 1))
    if "length" in filters:
        size = filters["length"]
        is_within = low <= size < filters.get("shorter", size + 1)
        sizes = range(size, size + is_within)
    grows = not {"shorter", "length"} & {*filters}
    words = []
    for size in sizes:
        word = _word(size, places, end, allowed, grows and size == free)
        if word is not None:
            words.append(word)
    if not words:
        raise ConstraintError(f"no word passes {dict(filters)!r}: change a filter")
    one = f"(?:{'|'.join(words)})"
    return f"{one}(?:{between}{one})*"


def _word(
    size: int,
    places: Mapping[int, str],
    end: str,
    allowed: Sequence[str],
    grows: bool,
) -> str | None:
    """Write the regex of words of `size` letters, or of more; None: there is none."""
    fixed = dict(places)
    for i, c in enumerate(end, size - len(end)):
        if fixed.setdefault(i, c) != c:
            return None
    if not set(fixed.values()) <= set(allowed) or not allowed:
        return None
    some = f"[{re.escape(''.join(allowed))}]"
    letters = [re.escape(fixed[i]) if i in fixed else some for i in range(size)]
    if grows:
        letters.insert(size - len(end), some + "*")
    return "".join(letters)
