"""List the methods of the project and cite their papers."""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, NamedTuple

from decoding import catalogue, papers, recipes
from decoding.catalogue import Part, Spec
from decoding.method import Method
from models.errors import MethodError

BASELINE = "baseline"  # first word of `Card.paper` for a method without a paper


class Entry(NamedTuple):
    """One method file: its spec name, and its card's family, guarantee and paper."""

    name: str
    family: str
    guarantee: str
    paper: str


@dataclass(frozen=True)
class Listing:
    """Entries in the order of their folders, families and names; prints as a table."""

    entries: tuple[Entry, ...]

    def __iter__(self) -> Iterator[Entry]:
        return iter(self.entries)

    def __len__(self) -> int:
        return len(self.entries)

    def __getitem__(self, index: int) -> Entry:
        return self.entries[index]

    def __repr__(self) -> str:
        rows = [Entry._fields, *self.entries]
        widths = [max(map(len, column)) for column in zip(*rows)]
        lines = ["  ".join(map(str.ljust, row, widths)).rstrip() for row in rows]
        return "\n".join(lines)


def methods() -> Listing:
    """List every method file, grouped by folder and family, then installed packages'.

    A package names its methods as entry points of the group `decodax.methods`.

    Raises:
        MethodError: an entry point whose module cannot be imported or is no method.
    """
    folders = [*catalogue.FACTORIES]
    cards = catalogue.catalogue()
    place = lambda name: (folders.index(catalogue.folder_of(name)), cards[name].family)
    own = sorted(cards, key=lambda name: (*place(name), name))
    for name in sorted(set(recipes.installed().values())):
        cards[name] = Spec(name).card
    outside = [name for name in cards if name not in own]
    return Listing(
        tuple(
            Entry(name, cards[name].family, cards[name].guarantee, cards[name].paper)
            for name in (*own, *outside)
        )
    )


def cite(method: str | Method | Spec) -> str:
    """Return the BibTeX of a method's papers.

    Args:
        method: a `Method`, a `Spec`, a name that `generate` takes, or the name of any
            method file, such as "verifiers/rejection".

    Returns:
        One entry a paper: those that the cards name in papers.bib (`Card.sources`),
        then those that they bring (`Card.cite`). Parts whose card has neither are named
        in a comment at the end; a part without a paper (a baseline) is left out.

    Raises:
        MethodError: no part has an entry, or the name is unknown.
    """
    parts = _parts(method)
    keys = dict.fromkeys(key for s in parts for key in s.card.sources)
    texts = [papers.entry(key) for key in keys]
    texts += dict.fromkeys(s.card.cite.strip() for s in parts if s.card.cite)
    missing = [
        f"{s.name} ({s.card.paper})"
        for s in parts
        if not (s.card.sources or s.card.cite or s.card.paper.startswith(BASELINE))
    ]
    if not texts:
        names = ", ".join(missing) or "nothing: it is a baseline without a paper"
        raise MethodError(
            f"no BibTeX for {method!r}; parts without Card.sources and Card.cite: "
            f"{names}"
        )
    lines = [f"% no BibTeX yet for {name}" for name in missing]
    return "\n\n".join([*texts, *lines])


def _parts(method: Any) -> tuple[Part, ...]:
    if type(method) is Spec:
        return (method,)
    if type(method) is Method:
        return method.parts
    known = method.split("/")[0] in catalogue.FACTORIES
    if known or catalogue.is_outside(method):
        return (Spec(method),)
    return recipes.method(method).parts
