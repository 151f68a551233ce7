"""How often the target's next token is among a node's drafts, by where the node is.

On the spine all drafts of the path are their parents' first; elsewhere the path has
taken a sibling. A tree that is conditioned on its path should be as right behind a
sibling as on the spine; a marginal one was made for the spine.
"""

from collections.abc import Sequence
from typing import Any

import jax
import numpy as np

from decoding import base
from decoding.loops import engines
from experiments.measurement.workbench import Bench, Case

SPINE, SIBLING = "spine", "sibling"


def counts(
    bench: Bench, case: Case, prompts: Sequence[list[int]], seed: int
) -> dict[str, list[int]]:
    """Decode the prompts round by round.

    Returns:
        By place, [nodes of accepted paths whose next token was drafted, such nodes that
        have drafts].
    """
    found = {SPINE: [0, 0], SIBLING: [0, 0]}
    parts = bench.compose(case)
    engine, params = engines.engine(parts), bench.params(bench.lm)
    for part, keys in bench.batches(prompts, seed):
        limits = [len(p) + bench.new_tokens for p in part]
        state = engine.start(params, parts, part, limits, keys, bench.size, None)
        while True:
            state, outcome = engine.step(params, state)
            tree, verdict, active, length = jax.device_get(
                (outcome.tree, outcome.verdict, outcome.active, state.length)
            )
            if not active.any():
                break
            # A text that is full may have cut its path: what comes next is not known.
            for row in np.flatnonzero(active & (length < limits)):
                _add(found, tree, verdict, int(row))
    return found


def _add(found: dict[str, list[int]], tree: Any, verdict: Any, row: int) -> None:
    """Count the nodes of one row's accepted path."""
    parents, kind = tree.parents[row], tree.kind[row]
    count, place, node = int(verdict.count[row]), SPINE, 0
    for i in range(max(count, -1) + 1):
        drafts = np.flatnonzero((parents == node) & (kind == base.CANDIDATE))
        drafts = drafts[drafts > 0]
        if len(drafts):
            found[place][0] += i < count
            found[place][1] += 1
        if i < count:
            node = int(verdict.path[row, i])
            if node != drafts[0]:
                place = SIBLING
