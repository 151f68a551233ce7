"""The card of a method."""

from dataclasses import dataclass


@dataclass(frozen=True)
class Card:
    """What a method file says about itself."""

    paper: str
    guarantee: str
    needs: tuple[str, ...] = ()
    trained: bool = False
