"""How many random cases are tried, and what is counted."""

import json
import os

import hypothesis
import pytest

from models.errors import DecodaxError


def cases(few: int, many: int):
    """The number of cases of a test: a few by default."""
    return pytest.mark.parametrize(
        "count", [few, pytest.param(many, marks=pytest.mark.long)]
    )


def survey(what: str, count: int, strategy, attempt) -> dict[str, int]:
    """`attempt(case)` for `count` cases; how many were refused and accepted."""
    found = {"cases": 0, "refused": 0, "accepted": 0}

    @hypothesis.settings(
        max_examples=count,
        deadline=None,
        database=None,
        derandomize=True,
        suppress_health_check=list(hypothesis.HealthCheck),
        phases=(hypothesis.Phase.generate, hypothesis.Phase.shrink),
    )
    @hypothesis.given(strategy)
    def run(case) -> None:
        found["cases"] += 1
        try:
            attempt(case)
        except DecodaxError as error:
            assert str(error)
            found["refused"] += 1
        else:
            found["accepted"] += 1

    run()
    if "DECODAX_FUZZ_SUMMARY" in os.environ and count > 1000:
        with open(os.environ["DECODAX_FUZZ_SUMMARY"], "a") as file:
            file.write(json.dumps({"what": what, **found}) + "\n")
    return found
