"""Numbers by which a program on the device names objects of the host."""

import itertools
import weakref
from typing import Generic, TypeVar

T = TypeVar("T")
NONE = 0  # the number of no object


class Numbers(Generic[T]):
    """The numbers of some objects; each holds as long as its object lives."""

    def __init__(self) -> None:
        self._count = itertools.count(NONE + 1)
        self._numbers: weakref.WeakKeyDictionary[T, int] = weakref.WeakKeyDictionary()
        self._named: weakref.WeakValueDictionary[int, T] = weakref.WeakValueDictionary()

    def of(self, named: T | None) -> int:
        """Return an object's number, the same at every call."""
        if named is None:
            return NONE
        if named not in self._numbers:
            self._numbers[named] = next(self._count)
            self._named[self._numbers[named]] = named
        return self._numbers[named]

    def get(self, number: int) -> T | None:
        """Return the object of a number; None: there is none, or no more."""
        return self._named.get(number)
