"""Countdown: searches against equally dear samples, exactly checked."""

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

import decoding
from decoding import Method, Spec
from decoding.hypotheses.rank import Sample
from experiments.benchmarks import countdown as benchmark
from experiments.measurement import search_cost
from experiments.measurement.draft_call_cost import verdict
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
    spread,
)
from models import storage
from training.data.problems import countdown

Ask = Callable[[Sequence[Sample]], list[float]]
BEST = "best of n"
STEP, GRADED, SHUFFLED = "A*, step reward", "A*, graded", "A*, shuffled"


def check_reward(problems: Sequence[countdown.Problem]) -> Ask:
    """Make the exact checker: 1 for a right answer, else 0."""
    return lambda samples: [
        float(countdown.check(problems[s.request], s.text or "")) for s in samples
    ]


def step_reward(problems: Sequence[countdown.Problem], graded: bool = False) -> Ask:
    """Make the exact reward of steps: 1 while the target can be reached, else 0.

    A finished text has the checker's. `graded` multiplies by the share of the steps
    that were made, so that of two texts which can succeed the longer has more.
    """

    def one(sample: Sample) -> float:
        problem, text = problems[sample.request], sample.text or ""
        if sample.ended:
            return float(countdown.check(problem, text))
        steps = text.count("\n") / (len(problem.numbers) - 1)
        return countdown.step_reward(problem, text) * (steps if graded else 1.0)

    return lambda samples: [one(s) for s in samples]


def shuffled(ask: Ask, seed: int) -> Ask:
    """Give each text the worth of one asked so far, drawn at random.

    Finished texts and beginnings keep a pool each, so that the worths of either are as
    frequent as without.
    """
    rng = np.random.default_rng(seed)
    known: dict[bool, list[float]] = {True: [], False: []}

    def mixed(samples: Sequence[Sample]) -> list[float]:
        for sample, value in zip(samples, ask(samples), strict=True):
            known[sample.ended].append(value)
        pools = (known[sample.ended] for sample in samples)
        return [pool[int(rng.integers(len(pool)))] for pool in pools]

    return mixed


def solution(text: str) -> str:
    """Return an answer's steps in an order of their own: what a vote counts."""
    return "\n".join(sorted(text.split()))


def solved_row(
    lm: Any,
    problems: Sequence[countdown.Problem],
    seed: int,
    method: Method | None,
    temperature: float = 0.0,
    ask: Ask | None = None,
    n: int = 1,
) -> Row:
    """Solve problems: whether each is right, right texts of `n`, and the cost."""
    out = decoding.generate(
        lm,
        [lm.tokenizer.encode(problem.prompt) for problem in problems],
        method,
        max_new_tokens=benchmark.NEW_TOKENS,
        temperature=temperature,
        seed=seed,
        n=n,
        reward=() if ask is None else ask,
    )
    assert out.texts is not None
    texts = [[row] if n == 1 else row for row in out.texts]
    right = [[countdown.check(p, t) for t in row] for p, row in zip(problems, texts)]
    return {
        "right": [int(row[0]) for row in right],
        "count": [int(sum(row)) for row in right],
        "seconds": out.stats.seconds,
        **search_cost.spent(out, len(problems)),
    }


def problems(config: Any) -> list[countdown.Problem]:
    """Return the problems of all seeds: held-out ones, or those of a file."""
    file = config.countdown.file
    return benchmark.problems(str(storage.path(config.data) / file) if file else "")


def measure(config: Any, store: RunFolder, lm: Any) -> list[dict[str, Any]]:
    """Measure the part `countdown` and make its tables."""
    c = config.countdown
    every = problems(config)
    a_star = search(
        "a_star",
        samples=c.step_samples,
        expansions=c.expansions,
        longest=c.step_tokens,
    )
    best = search("best_of_n", samples=c.samples)
    warm, votes = c.temperature, c.votes
    own = lambda place: block(every, place, c.problems)
    go = lambda *args: lambda place, seed: solved_row(lm, own(place), seed, *args)
    asked = lambda method, ask, n=1: (
        lambda place, seed: solved_row(
            lm, own(place), seed, method, warm, ask(own(place), seed), n
        )
    )
    arms: dict[str, Callable[[int, int], Row]] = {
        "greedy": go(None),
        "beam": go(search("beam", width=votes)),
        BEST: asked(best, lambda p, seed: check_reward(p), c.samples),
        "vote": go(search("vote", samples=votes, extract=solution), warm),
        "first finish": go(search("first_finish", samples=votes), warm),
        "CNTP": go(search("cntp", trials=c.trials), warm),
        STEP: asked(a_star, lambda p, seed: step_reward(p)),
        GRADED: asked(a_star, lambda p, seed: step_reward(p, True)),
        SHUFFLED: asked(a_star, lambda p, seed: shuffled(step_reward(p, True), seed)),
    }
    rows = search_tables.measured(store, "countdown", arms, config.seeds)
    size = as_dear(rows["CNTP"], rows["greedy"])
    likely = Spec("rewards/likelihood")
    as_cntp = {
        f"beam of {size}": go(search("beam", width=size)),
        f"likeliest of {size}": go(
            Method(search=Spec("search/best_of_n", samples=size), rewards=(likely,)),
            warm,
        ),
        f"vote of {size}": go(search("vote", samples=size, extract=solution), warm),
    }
    rows |= search_tables.measured(store, "countdown", as_cntp, config.seeds)
    return tables_of(rows, c.samples, [*as_cntp])


def tables_of(
    rows: dict[str, list[Row]], samples: int, as_cntp: Sequence[str]
) -> list[dict[str, Any]]:
    """Make the tables of Countdown: accuracy at equal nodes, and the claims."""
    curve = search_cost.chances(pooled(rows[BEST], "count"), samples)
    paid = pooled(rows[BEST], "nodes") / samples
    right = {name: pooled(r, "right") for name, r in rows.items()}
    nodes = {name: pooled(r, "nodes") for name, r in rows.items()}
    at_cost = {
        name: search_cost.at_size(curve, used.mean() / paid.mean())
        for name, used in nodes.items()
    }
    lines = [
        [
            name,
            f"{right[name].mean():.3f}",
            search_tables.by_seed(r, "right"),
            f"{nodes[name].mean():.0f}",
            f"{np.mean([row['rounds'] for row in r]):.0f}",
            f"{at_cost[name].mean():.3f}",
        ]
        for name, r in rows.items()
    ]
    shown = search_tables.table(
        "Countdown at equal model calls",
        ("search", "right", "by seed", "nodes", "rounds", "best of n at these nodes"),
        lines,
        *NODES,
        f"{len(right['greedy'])} held-out problems. best of n: {samples} samples, of "
        "which the exact checker chooses. best of n at these nodes: its expected "
        "accuracy with as many samples as cost the same, at most all.",
        f"{STEP}: the exact one, 1 while the target can still be reached; so f ties, "
        "and ties go to the older text. graded: times the share of the steps that were "
        "made. shuffled: the graded reward of another text.",
        "beam, vote, first finish, CNTP and likeliest use no checker.",
    )
    finish, vote = nodes["first finish"].mean(), nodes["vote"].mean()
    found = []
    for name in (STEP, GRADED, SHUFFLED):
        times, ends, bound = search_cost.saving(curve, paid, right[name], nodes[name])
        found += [
            compared(f"{name} ≥ best of n at its nodes", right[name], at_cost[name]),
            [
                f"nodes of best of n at the accuracy of {name} ÷ its own, above 1",
                ("at least " if bound else "") + spread(times, ends, ".2f"),
                verdict(ends[0] - 1, ends[1] - 1),
            ],
        ]
    found += [
        compared(f"{GRADED} ≥ {SHUFFLED}", right[GRADED], right[SHUFFLED]),
        compared("first finish ≥ vote", right["first finish"], right["vote"]),
        compared(
            f"vote's nodes − first finish's ({finish / vote - 1:+.0%})",
            nodes["vote"],
            nodes["first finish"],
        ),
        compared("CNTP ≥ greedy", right["CNTP"], right["greedy"]),
        compared("CNTP ≥ a sample", right["CNTP"], curve[:, 1]),
        *(compared(f"CNTP ≥ {name}", right["CNTP"], right[name]) for name in as_cntp),
    ]
    return [
        shown,
        search_tables.claims(
            "Countdown: claims",
            found,
            f"{SHUFFLED} is a control: A*'s claim needs *yes* where its own reward is "
            "used and *no* with another text's. First finish against vote: either sign "
            "is a result.",
            f"{', '.join(as_cntp)}: as many beams or samples as cost CNTP's nodes, "
            "rounded up.",
        ),
    ]
