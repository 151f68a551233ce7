"""The BibTeX of the papers that the methods are from: papers.bib, by key.

BibTeX lies in a file of its own, not in the cards: several methods share a paper, and
LaTeX, reference managers and people read the file as it is.
"""

import functools
import importlib.resources
import re

from models.errors import MethodError, hint

ENTRY = re.compile(r"^@\w+\{([\w-]+),\n.*?^\}$", re.M | re.S)


@functools.cache
def entries() -> dict[str, str]:
    """Map every key of papers.bib to its entry."""
    file = importlib.resources.files("decoding") / "papers.bib"
    return {match[1]: match[0] for match in ENTRY.finditer(file.read_text("utf-8"))}


def entry(key: str) -> str:
    """Return the BibTeX of a key of `Card.sources`.

    Raises:
        MethodError: papers.bib has no such key.
    """
    if key not in entries():
        raise MethodError(
            f"no entry {key!r} in decoding/papers.bib{hint(key, entries())}; a package "
            "of your own gives its BibTeX as Card.cite"
        )
    return entries()[key]
