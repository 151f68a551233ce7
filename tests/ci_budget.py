"""Which tests CI runs: the suite holds more than fits its minutes.

`pytest` over everything, as CI calls it, leaves out the tests that `beyond_ci.txt`
names. A file, a directory or `-m` runs all of theirs; `pytest -m "not long"` all that
are not of minutes. The list is written from measured costs:

    pytest -n 2 --dist loadfile -m "not long" --costs=costs.json
    python -m tests.ci_budget costs.json

Until `BUDGET` is spent there stay, the cheapest first: the cases in `KEPT`; those of at
most `CHEAP` seconds; the cheapest case of each test function, if it costs at most
`MOST`; all others. So a method more moves dear tests beyond CI, and not the minutes.
"""

import json
import pathlib
import sys

LIST = pathlib.Path(__file__).parent / "beyond_ci.txt"
# Seconds of processor time, by the whole run; the tests that stay also pay for the
# programs that others had compiled for them (1,250 became 1,839).
BUDGET = 860.0
CHEAP = 0.3  # seconds of a test that comes before cases of other functions
MOST = 2.0  # seconds of one test, unless it is in KEPT
CONTRACTS = "tests/conformance/test_contracts.py::test_contract"
DRAFTERS = "tests/conformance/test_drafters.py::test_contract"
VERIFIERS = "tests/conformance/test_verifiers.py::test"
KEPT = (  # one of each kind, whatever it costs
    f"{DRAFTERS}[plain-sampled_text_is_plain]",
    f"{DRAFTERS}[prompt_lookup-sampled_text_is_plain]",
    f"{DRAFTERS}[token_recycling-sampled_text_is_plain]",
    f"{DRAFTERS}[medusa-static-sampled_text_is_plain]",
    f"{DRAFTERS}[eagle3-eagle2-sampled_text_is_plain]",
    f"{DRAFTERS}[model-chain-sampled_text_is_plain]",
    f"{DRAFTERS}[pearl-sampled_text_is_plain]",
    f"{CONTRACTS}[caches/h2o]",
    f"{CONTRACTS}[search/beam]",
    f"{VERIFIERS}_law_of_the_first_tokens[verifiers/rejection-iid-None]",
    f"{VERIFIERS}_law_of_the_first_tokens[verifiers/recursive_rejection-no_replace-None]",
    f"{VERIFIERS}_law_without_transforms[verifiers/rejection-point]",
    f"{VERIFIERS}_fault_bends_the_law[unwarped_target]",
    f"{VERIFIERS}_fault_bends_the_law[unwarped_bonus]",
    "tests/decoding/loops/test_copies.py::test_no_round_copies_a_cache[pearl]",
    "tests/decoding/loops/test_denoise.py::test_samples_are_the_oracle_s",
)


def beyond() -> set[str]:
    """Return the node ids of the tests that CI leaves out."""
    lines = LIST.read_text().splitlines()
    return {line for line in lines if line and not line.startswith("#")}


def left_out(
    costs: dict[str, float],
    budget: float = BUDGET,
    most: float = MOST,
    kept: tuple[str, ...] = KEPT,
) -> list[str]:
    """Return the node ids beyond the budget, sorted.

    Args:
        costs: seconds of processor time of each test.
        budget: seconds of the tests that stay; those in `kept` do in any case.
        most: seconds of a test that stays for being its function's cheapest.
        kept: tests that stay.
    """
    first: set[str] = set()
    cases: set[str] = set()  # the cheapest one of each function
    for name in sorted(costs, key=lambda name: (costs[name], name)):
        if (function := name.split("[")[0]) not in first:
            first.add(function)
            cases.add(name)

    def order(name: str) -> tuple[int, float, str]:
        is_case = name in cases and costs[name] <= most
        kinds = (name in kept, costs[name] <= CHEAP, is_case, True)
        return kinds.index(True), costs[name], name

    out, spent = [], 0.0
    for name in sorted(costs, key=order):
        spent += costs[name]
        if spent > budget and name not in kept:
            out.append(name)
    return sorted(out)


def main(file: str) -> None:
    """Write the list from the costs in `file`."""
    costs = json.loads(pathlib.Path(file).read_text())
    names = left_out(costs)
    saved = sum(costs[name] for name in names)
    head = (
        f"# {len(names)} of {len(costs)} tests, {saved:,.0f} of "
        f"{sum(costs.values()):,.0f} s of processor time; see tests/ci_budget.py.\n"
    )
    LIST.write_text(head + "".join(f"{name}\n" for name in names))
    print(head, end="")


if __name__ == "__main__":
    main(*sys.argv[1:])
