"""The kit's cases as parameters of tests."""

import pytest

from decoding import Method

# Further topologies of drafters that meet another one in every run.
RARE = (
    "copyspec_model-eagle2",
    "easyspec-eagle2",
    "model-confidence_stop",
    "model-dyspec",
    "model-hardware_aware",
    "model-rsd_s",
    "online_sd-chain",
    "rapid-eagle2",
    "rasd-eagle2",
    "s2d-chain",
    "suffix_model-eagle2",
    "oracle-static",
)


def each(cases: dict[str, Method]) -> list:
    """The cases as parameters of a test."""
    return [
        pytest.param(method, id=name, marks=[pytest.mark.long] * (name in RARE))
        for name, method in cases.items()
    ]
