"""The report of a broken contract."""

from typing import Any


def require(holds: Any, part: Any, broken: str) -> None:
    """Raise AssertionError that names the part and the broken property."""
    if not holds:
        raise AssertionError(f"{part}: {broken}")
