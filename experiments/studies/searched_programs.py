"""Programs from examples: planning by public tests, against filtered texts."""

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

import decoding
from decoding import Method
from decoding.hypotheses.rank import Sample
from decoding.rewards import unit_tests
from experiments.benchmarks import programs as benchmark
from experiments.measurement import search_cost
from experiments.run_folder import RunFolder
from experiments.studies import search_tables
from experiments.studies.search_tables import (
    NODES,
    Row,
    as_dear,
    block,
    compared,
    pooled,
    search,
)
from models.errors import ConfigError
from training.data.problems import programs

Ask = Callable[[Sequence[Sample]], list[float]]
PROGRAM = "f = lambda x: {text}\n"


def public_tests(problem: programs.Problem) -> list[str]:
    """Write the public examples as tests."""
    shown = problem.examples[: programs.PUBLIC]
    return [f"assert f({list(x)}) == {y}" for x, y in shown]


def hidden_share(problem: programs.Problem, text: str) -> float:
    """Return the share of the hidden examples that an answer passes."""
    hidden = problem.examples[programs.PUBLIC :]
    line = text.removesuffix("\n")
    return sum(programs.passes(line, each) for each in hidden) / len(hidden)


class Filter:
    """The public tests of problems as a reward that runs each program once.

    Attributes:
        asked: the different programs that were asked for since `fresh`.
    """

    def __init__(self, problems: Sequence[programs.Problem]):
        tests = [public_tests(problem) for problem in problems]
        ask = unit_tests.reward(tests, True, PROGRAM).ask
        assert ask is not None
        self._ask: Ask = lambda samples: list(ask(samples))
        self._known: dict[tuple[int, str | None], float] = {}
        self.asked: set[tuple[int, str | None]] = set()

    def fresh(self) -> "Filter":
        """Forget which programs were asked for, and keep their worths."""
        self.asked = set()
        return self

    def __call__(self, samples: Sequence[Sample]) -> list[float]:
        new = {(s.request, s.text): s for s in samples}
        self.asked |= set(new)
        new = {key: s for key, s in new.items() if key not in self._known}
        if new:
            self._known.update(zip(new, self._ask([*new.values()]), strict=True))
        return [self._known[s.request, s.text] for s in samples]


def program_row(
    lm: Any,
    problems: Sequence[programs.Problem],
    seed: int,
    method: Method | None,
    temperature: float,
    tests: Filter | None,
    n: int = 1,
) -> Row:
    """Write programs: the hidden tests that each passes, and the cost.

    Of `n` texts the first of those that pass most public tests is taken.
    """
    ranks = method is not None and n == 1
    out = decoding.generate(
        lm,
        [lm.tokenizer.encode(problem.prompt) for problem in problems],
        method,
        max_new_tokens=benchmark.NEW_TOKENS,
        temperature=temperature,
        seed=seed,
        n=n,
        reward=tests.fresh() if tests is not None and ranks else (),
    )
    assert out.texts is not None
    texts = [[row] if n == 1 else row for row in out.texts]
    chosen = [row[0] for row in texts]
    if n > 1 and tests is not None:
        every = [
            Sample([], text, [], True, request)
            for request, row in enumerate(texts)
            for text in row
        ]
        worths = np.asarray(tests.fresh()(every)).reshape(len(texts), n)
        chosen = [row[int(np.argmax(w))] for row, w in zip(texts, worths)]
    pairs = [*zip(problems, chosen)]
    return {
        "hidden": [hidden_share(*pair) for pair in pairs],
        "solved": [int(programs.check(*pair)) for pair in pairs],
        "public": [programs.public_reward(*pair) for pair in pairs],
        "programs": 0 if tests is None else len(tests.asked),
        "seconds": out.stats.seconds,
        **search_cost.spent(out, len(problems)),
    }


def problems(config: Any) -> list[programs.Problem]:
    """Return the problems of all seeds."""
    return [*benchmark.problems().values()]


def measure(config: Any, store: RunFolder, lm: Any) -> list[dict[str, Any]]:
    """Measure the part `programs` and make its tables."""
    c = config.programs
    every = problems(config)
    own = lambda place: block(every, place, c.problems)
    filters: dict[int, Filter] = {}

    def tests(place: int) -> Filter:
        if place not in filters:
            filters[place] = Filter(own(place))
        return filters[place]

    planned = search("pg_td", simulations=c.simulations, top=c.top)
    arms: dict[str, Callable[[int, int], Row]] = {
        "greedy": lambda place, seed: program_row(
            lm, own(place), seed, None, 0.0, None
        ),
        "PG-TD": lambda place, seed: program_row(
            lm, own(place), seed, planned, 0.0, tests(place)
        ),
    }
    rows = search_tables.measured(store, "programs", arms, config.seeds)
    size = as_dear(rows["PG-TD"], rows["greedy"])
    if size < 2:
        raise ConfigError(
            f"config.programs.simulations={c.simulations}: PG-TD runs no more nodes "
            "than one greedy text; use more"
        )
    beams, samples = f"beams of {size}, filtered", f"samples of {size}, filtered"
    others: dict[str, Callable[[int, int], Row]] = {
        beams: lambda place, seed: program_row(
            *(lm, own(place), seed, search("beam", width=size), 0.0),
            *(tests(place), size),
        ),
        samples: lambda place, seed: program_row(
            *(lm, own(place), seed, search("best_of_n", samples=size)),
            *(c.temperature, tests(place)),
        ),
    }
    rows |= search_tables.measured(store, "programs", others, config.seeds)
    return tables_of(rows, beams, samples)


def tables_of(
    rows: dict[str, list[Row]], beams: str, samples: str
) -> list[dict[str, Any]]:
    """Make the tables of programs: tests passed at equal nodes, and the claims."""
    problems = len(pooled(rows["greedy"], "hidden"))
    lines = [
        [
            name,
            f"{pooled(r, 'hidden').mean():.3f}",
            search_tables.by_seed(r, "hidden"),
            f"{pooled(r, 'solved').mean():.3f}",
            f"{pooled(r, 'public').mean():.3f}",
            f"{pooled(r, 'nodes').mean():.0f}",
            f"{np.mean([row['rounds'] for row in r]):.0f}",
            f"{sum(row['programs'] for row in r) / problems:.1f}",
        ]
        for name, r in rows.items()
    ]
    shown = search_tables.table(
        "Programs at equal model calls",
        (
            "search",
            "hidden",
            "by seed",
            "all tests",
            "public",
            "nodes",
            "rounds",
            "programs",
        ),
        lines,
        *NODES,
        f"{problems} held-out problems. hidden, public: share of these tests that the "
        "chosen program passes. programs: different ones run for a problem.",
        "filtered: of the texts the first that passes most public tests; as many texts "
        "as cost PG-TD's nodes, rounded up.",
    )
    gain = lambda field, other: compared(
        f"PG-TD ≥ {other}, {field}",
        pooled(rows["PG-TD"], field),
        pooled(rows[other], field),
    )
    found = [gain(f, o) for f in ("hidden", "solved") for o in (beams, samples)]
    found.append(gain("hidden", "greedy"))
    return [shown, search_tables.claims("Programs: claims", found)]
