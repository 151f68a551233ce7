"""PPD: train prompt embeddings on the frozen target's later distributions.

Chen et al., *PPD*, 2024, arXiv 2405.18628, section 3.3. With q_i the distribution at
prompt i after x_t, and p the target's distribution on the text,

    L = 1 / m sum_i decay^(i - 1) mean_t KL(p_{t+i} || q_i),    i = 1 .. m

Only the prompts are trained: the gradient passes through the target's layers.

Deviations from the paper: prompts stand behind `points` random positions of every
text, not behind one, and attend only to the text before it. p is taken on the text's
own tokens, which is the paper's target where the target generated the text. Prompts
begin as embeddings of random tokens, not of a phrase.

Metrics: `hit_i` and `alpha_i` by depth from 0.
"""

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import jax.numpy as jnp
from jax import Array

from decoding import Method, Spec
from decoding.tree_design import ppd_sparse_trees
from models.errors import ConfigError
from models.heads import ppd
from models.heads.modules import aux_chains
from training import draft_metrics, losses
from training.loop.train_step import Objective
from training.teacher.outputs import Teacher, ahead, predicted

# For tests of all heads: small, depth 3, no noise that depends on a batch's shape.
EXAMPLE: dict = {"init": {}, "objective": {"points": 0}}


def init(key: Array, model: Any, target: Any, prompts: int = 3, copies: int = 1) -> Any:
    """Initialise `prompts` prompt tokens, `copies` of each."""
    return ppd.init(key, model, target, prompts, copies)


def tree(method: Method, hits: Sequence[Sequence[float]], budget: int) -> Method:
    """Return the method with sparse trees of `budget` tokens, built from the hits."""
    trees = ppd_sparse_trees.sparse(hits, budget)
    topology = Spec("topologies/static", choices=trees.choices)
    return replace(method.with_drafter(plan=trees.plan), topology=topology)


def objective(
    model: Any,
    points: int = 32,
    decay: float = 0.8,
    seed: int = 0,
    part: int = 0,
    remat: bool = False,
) -> Objective:
    """Build the paper's loss behind `points` positions of a text (0: all).

    Logits of `part` positions exist at a time (0: all). `remat` recomputes the target's
    layers in the backward pass. `decay` weighs a prompt relative to the one before;
    `seed` is that of the positions.
    """
    if points < 0:
        raise ConfigError(f"points={points}: use 0 (every position) or more")

    def loss(params: Any, batch: dict[str, Array], teacher: Teacher) -> tuple:
        prompts = ppd.counts(params)[0]
        at = aux_chains.points(batch, points, seed, prompts + 1)
        total: Any = 0.0
        metrics = {}
        chains = behind(params, batch, teacher, at, remat)
        for i, (states, draft) in enumerate(chains):
            law = ahead(teacher.law, 1 + i)
            law = jnp.take_along_axis(law, at[..., None], 1)
            weights = jnp.take_along_axis(predicted(batch, 2 + i), at, 1)
            sums = draft_metrics.against_teacher(
                teacher, draft, states, law, weights, losses.kl, part
            )
            total = total + decay**i * draft_metrics.mean(sums, "loss") / prompts
            metrics[f"hit_{i}"] = draft_metrics.mean(sums, "hit")
            metrics[f"alpha_{i}"] = draft_metrics.mean(sums, "alpha")
        return total, metrics

    taps = tuple(range(model.config.n_layers))

    def quantity(params: Any) -> str:
        count = ppd.counts(params)[0]
        return f"mean over {count} prompt tokens times {decay:g}^i, KL in nats a token"

    return Objective(
        loss, lambda batch: predicted(batch, 2).sum(), taps, quantity=quantity
    )


def guesses(
    params: Any, model: Any, batch: dict[str, Array], teacher: Teacher, depth: int
) -> list:
    """Return, by depth, states [B, T, copies, D] and the mean of the copies' logits."""
    every = aux_chains.points(batch, 0, 0, 0)
    return behind(params, batch, teacher, every)[:depth]


def behind(params, batch, teacher, at, remat=False) -> list:
    """Return the same behind positions `at` int32[B, P]: states [B, P, copies, D]."""
    chains = ppd.sequence(
        params,
        teacher.model,
        teacher.params,
        teacher.hidden,
        at,
        batch["tokens"].shape,
        batch.get("segments"),
        remat,
    )

    def draft(states: Array) -> Array:
        return teacher.head(states).mean(-2)

    return [(chains[..., i, :], draft) for i in range(chains.shape[-2])]
