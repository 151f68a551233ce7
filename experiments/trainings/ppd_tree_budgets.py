"""Choose the fastest budget of PPD's trees on this machine, by timing rounds.

Chen et al., *Hardware-Aware Parallel Prompt Decoding*, 2024, arXiv 2405.18628: the
trees of every budget are made from the measured hits. The budget with the greatest
(expected tokens of a round) / (seconds of a round) is chosen. The paper times the
target's call; here the whole round is timed: draft, call, verification and commit.
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
    """Raise ConfigError for budgets too small for a tree, before any training."""
    budgets = tuple(recipe.get("tree_budgets", ()))
    if budgets and min(budgets) <= recipe.init.prompts:
        least = recipe.init.prompts + 1
        raise ConfigError(
            f"config.tree_budgets={budgets}: a candidate and its {least - 1} prompt "
            f"tokens need {least}; give budgets from {least} on"
        )


def method(recipe: Any, hits: Sequence[Sequence[float]], budget: int) -> Any:
    """Build the recipe's method with the trees of one budget."""
    one = ml_collections.ConfigDict({**recipe.to_dict(), "tree_budget": budget})
    return draft_head_run.method(one, hits)


def measure(
    bench: Bench,
    recipe: Any,
    hits: Sequence[Sequence[float]],
    prompts: Sequence[list[int]],
    repeats: int,
) -> dict[str, Any]:
    """Find the fastest of `recipe.tree_budgets`; times are medians, in turns.

    Args:
        bench: the target with the trained prompt tokens.
        recipe: the heads' recipe; rounds run at the temperature of its evaluation.
        hits: [depth][rank] chance that the target picks the guess of that rank.
        prompts: token prompts of one batch.
        repeats: timings of each budget.

    Returns:
        `budget`, the fastest, and `rounds`, the figures of each budget.
    """
    trees = {int(b): ppd_sparse_trees.sparse(hits, int(b)) for b in recipe.tree_budgets}
    temperature = recipe.evaluate.temperature
    cases = [Case(method(recipe, hits, budget), temperature) for budget in trees]
    turns = [bench.interleaved(cases, prompts, recipe.seed) for _ in range(repeats)]
    seconds = {
        budget: statistics.median(turn[i].per_round for turn in turns)
        for i, budget in enumerate(trees)
    }
    rounds = [
        {
            "budget": budget,
            "nodes": bench.compose(case).program.drafter.nodes,
            "ms": 1e3 * seconds[budget],
            "tokens": trees[budget].tokens,
            "tokens_per_s": trees[budget].tokens / seconds[budget],
        }
        for budget, case in zip(trees, cases)
    ]
    return {"budget": ppd_sparse_trees.fastest(trees, seconds), "rounds": rounds}


def table(found: Sequence[tuple[str, int, dict[str, Any]]]) -> dict[str, Any]:
    """Make the table of (recipe, seed, `measure`'s result) of every training."""
    names = ["recipe", "seed", "budget", "nodes", "ms/round", "tokens", "tokens/s"]
    lines = []
    for name, seed, piece in found:
        for r in piece["rounds"]:
            mark = " (taken)" if r["budget"] == piece["budget"] else ""
            numbers = f"{r['ms']:.2f}", f"{r['tokens']:.2f}", f"{r['tokens_per_s']:.0f}"
            line = [name, f"{seed}", f"{r['budget']}{mark}", f"{r['nodes']}"]
            lines.append([*line, *numbers])
    notes = (
        "budget: candidates and prompt tokens; nodes: of the target's block, with the "
        "root and its own prompt tokens.",
        "ms/round: measured here. tokens: expected a round, from the hits on held-out "
        "text; the rows above say what the trees that were taken gave.",
    )
    return {"title": "Budgets", "heads": names, "lines": lines, "notes": notes}
