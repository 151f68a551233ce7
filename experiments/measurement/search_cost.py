"""What a search costs, and the best of n samples at the cost of another search."""

import math
from collections.abc import Sequence
from typing import Any

import numpy as np

from experiments.measurement import bootstrap


def spent(out: Any, prompts: int) -> dict[str, Any]:
    """Return the nodes that ran for each prompt, and the rounds, from an `Output`.

    A node is a token that ran through the model behind the prompt, whatever became of
    its hypothesis. A round is a call of the model for all prompts.
    """
    stats = out.stats
    if stats.nodes_run is not None:
        return {"nodes": np.asarray(stats.nodes_run).tolist(), "rounds": stats.rounds}
    calls = np.asarray(stats.target_calls).reshape(prompts, -1)
    return {"nodes": calls.sum(1).tolist(), "rounds": int(calls.max())}


Numbers = Sequence[float] | np.ndarray


def chances(right: Numbers, samples: int) -> np.ndarray:
    """Return the chance that the best of n is right, n from 0 to `samples`.

    The chance is that of n samples drawn without replacement from those at hand, of
    which an exact checker chooses:

        1 - C(samples - right, n) / C(samples, n)

    Args:
        right: of each problem, its right samples.
        samples: all samples of a problem.

    Returns:
        float64[problems, samples + 1].
    """
    sizes = range(samples + 1)
    total = [math.comb(samples, n) for n in sizes]
    lost = [samples - int(count) for count in right]
    rows = [[1 - math.comb(c, n) / total[n] for n in sizes] for c in lost]
    return np.asarray(rows, float)


def at_size(curve: np.ndarray, n: float) -> np.ndarray:
    """Interpolate chances [problems, samples + 1] at a size n that is no whole number.

    Sizes above the largest have its chances.
    """
    low = min(int(n), curve.shape[1] - 1)
    high = min(low + 1, curve.shape[1] - 1)
    share = min(n - low, 1.0)
    return (1 - share) * curve[:, low] + share * curve[:, high]


def saving(
    curve: np.ndarray,
    paid: Numbers,
    right: Numbers,
    nodes: Numbers,
) -> tuple[float, list[float], bool]:
    """Compute how many times a search's nodes the best of n needs for its accuracy.

    Args:
        curve: of `chances`.
        paid: of each problem, the nodes of one sample, on average.
        right: of each problem, whether the search solved it.
        nodes: of each problem, the search's nodes.

    Returns:
        The ratio, its 95 % interval over problems, and whether it is a lower bound
        since even all samples do not reach the accuracy.
    """
    cost, solved, used = (np.asarray(x, float) for x in (paid, right, nodes))
    sizes = np.arange(curve.shape[1])

    def ratio(at: np.ndarray) -> float:
        reached = curve[at].mean(0)
        # Chances rise strictly until all that can be solved is solved.
        size = np.interp(solved[at].mean(), reached, sizes)
        return float(size * cost[at].mean() / max(used[at].mean(), 1e-9))

    whole, ends = bootstrap.interval(ratio, len(solved))
    return whole, ends, bool(solved.mean() > curve.mean(0)[-1])
