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
    """The cases as parameters of a test; one worker runs all that are of one case."""
    return [
        pytest.param(
            method,
            id=name,
            marks=(pytest.mark.xdist_group(name), pytest.mark.long)
            if name in RARE
            else pytest.mark.xdist_group(name),
        )
        for name, method in cases.items()
    ]
