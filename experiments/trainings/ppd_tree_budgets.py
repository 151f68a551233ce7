"""Which budget of PPD's trees is the fastest on this machine: its rounds are timed.

Chen et al., *Hardware-Aware Parallel Prompt Decoding*, 2024, arXiv 2405.18628: the
trees of every budget are made from the measured hits, and of (tokens that they are
expected to give a round) / (seconds of a round) the greatest is taken. The paper times
the target's call; here it is the whole round: draft, call, verification and commit.
"""

import statistics
from collections.abc import Sequence
from typing import Any

import ml_collections

from decoding.tree_design import ppd_sparse_trees
from experiments.measurement.workbench import Bench, Case
from models.errors import ConfigError
from training.runs import draft_head_run


def check(recipe: Any) -> None:
    """Refuse budgets that hold no tree, before anything is trained for them."""
    budgets = tuple(recipe.get("tree_budgets", ()))
    if budgets and min(budgets) <= recipe.init.prompts:
        least = recipe.init.prompts + 1
        raise ConfigError(
            f"config.tree_budgets={budgets}: a candidate and its {least - 1} prompt "
            f"tokens need {least}; give budgets from {least} on"
        )


def method(recipe: Any, hits: Sequence[Sequence[float]], budget: int) -> Any:
    """The recipe's method with the trees of one budget."""
    one = ml_collections.ConfigDict({**recipe.to_dict(), "tree_budget": budget})
    return draft_head_run.method(one, hits)


def measure(
    bench: Bench,
    recipe: Any,
    hits: Sequence[Sequence[float]],
    prompts: Sequence[list[int]],
    repeats: int,
) -> dict[str, Any]:
    """The fastest of `recipe.tree_budgets`, and what was measured of each.

    At the temperature of the hits; medians over `repeats`, in which budgets take turns.
    """
    made = {int(b): ppd_sparse_trees.sparse(hits, int(b)) for b in recipe.tree_budgets}
    law = recipe.evaluate.temperature
    cases = [Case(method(recipe, hits, budget), law) for budget in made]
    turns = [bench.interleaved(cases, prompts, recipe.seed) for _ in range(repeats)]
    seconds = {
        budget: statistics.median(turn[i].per_round for turn in turns)
        for i, budget in enumerate(made)
    }
    rounds = [
        {
            "budget": budget,
            "nodes": bench.compose(case).program.drafter.nodes,
            "ms": 1e3 * seconds[budget],
            "tokens": made[budget].tokens,
            "tokens_per_s": made[budget].tokens / seconds[budget],
        }
        for budget, case in zip(made, cases)
    ]
    return {"budget": ppd_sparse_trees.fastest(made, seconds), "rounds": rounds}


def table(found: Sequence[tuple[str, int, dict[str, Any]]]) -> dict[str, Any]:
    """(recipe, seed, what `measure` gave) of every training with budgets."""
    names = ["recipe", "seed", "budget", "nodes", "ms/round", "tokens", "tokens/s"]
    lines = []
    for name, seed, piece in found:
        for r in piece["rounds"]:
            taken = " (taken)" if r["budget"] == piece["budget"] else ""
            numbers = f"{r['ms']:.2f}", f"{r['tokens']:.2f}", f"{r['tokens_per_s']:.0f}"
            line = [name, f"{seed}", f"{r['budget']}{taken}", f"{r['nodes']}"]
            lines.append([*line, *numbers])
    notes = (
        "budget: candidates and prompt tokens; nodes: of the target's block, with the "
        "root and its own prompt tokens.",
        "ms/round: measured here. tokens: expected a round, from the hits on held-out "
        "text; the rows above say what the trees that were taken gave.",
    )
    return {"title": "Budgets", "heads": names, "lines": lines, "notes": notes}
