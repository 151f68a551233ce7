"""The kit's cases as parameters of tests."""

import pytest

from decoding import Method

# Cases that differ from others in little (of heads, in arithmetic that their own tests
# hold against whole texts): they run with `-m long`.
RARE = (
    "clover-static",
    "copyspec_model-eagle2",
    "easyspec-eagle2",
    "fspad-eagle2",
    "lud",
    "model-confidence_stop",
    "model-dyspec",
    "model-hardware_aware",
    "model-rsd_s",
    "rapid-eagle2",
    "rasd-eagle2",
    "oracle-static",
)


def each(cases: dict[str, Method]) -> list:
    """The cases as parameters of a test."""
    return [
        pytest.param(method, id=name, marks=[pytest.mark.long] * (name in RARE))
        for name, method in cases.items()
    ]
