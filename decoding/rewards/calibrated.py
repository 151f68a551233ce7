"""Calibrated rewards: another reward's rank among samples of the target.

Balashankar, Sun, Berant, Eisenstein, Collins, Hutter, Lee, Nagpal, Prost, Sinha,
Suresh, Beirami, *InfAlign: Inference-Aware Language Model Alignment*, 2025, arXiv
2412.19792, section 4. With rewards r_1 .. r_K of the target's texts for the prompt,

    C = (1 / K) sum_k [r_k < r] + [r_k = r] / 2
    Phi = C    or    e^(t C) (best of N)    or    -e^(-t C) (worst of N)

r_k -> reference; t -> t; Phi -> form. Under the target C is uniform, whatever the scale
of the other reward is.

Deviations: the decoding side alone; the paper trains a policy by Phi.
Cost: none beside the other reward; the reference is given.
"""

import math
from collections.abc import Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from flax import struct
from jax import Array

from decoding import base
from decoding.catalogue import Card
from decoding.hypotheses import reward as rewards
from decoding.hypotheses.rank import Sample
from decoding.hypotheses.reward import Reward
from models.errors import MethodError

CARD = Card(
    paper="InfAlign, arXiv 2412.19792",
    guarantee=base.LOSSY,
    family="wrapper",
    needs=("inner",),
    data=("reference", "t"),
    examples={"reference": (-3.0, -2.0, -1.0, 0.0)},
    sources=("balashankar2025infalign",),
)

FORMS = ("identity", "best_of_n", "worst_of_n")


@struct.dataclass
class Row:
    inner: Any
    reference: Array  # float32[P, K], rising
    t: Array  # float32[P]


def rank(reference: Any, value: Any, xp: Any = jnp) -> Any:
    """Return C of a value among rising references [K], by NumPy or JAX."""
    below = xp.searchsorted(reference, value, side="left")
    upto = xp.searchsorted(reference, value, side="right")
    return (below + upto) / (2.0 * len(reference))


def reward(
    inner: Reward, reference: Sequence[Any], form: str = "best_of_n", t: float = 10.0
) -> Reward:
    """Value texts by their rank among references.

    Args:
        inner: the other reward.
        reference: its values of the target's texts, K for all prompts or K for each.
        form: "identity", "best_of_n" or "worst_of_n".
        t: how steep (10 is near the best for N = 4).
    """
    if form not in FORMS:
        raise MethodError(f"form={form!r}: use one of {FORMS}")
    if not math.isfinite(t) or t <= 0:
        raise MethodError(f"t={t}: use a finite number above 0")
    try:
        table = np.sort(np.atleast_2d(np.asarray(reference, np.float32)), -1)
    except (TypeError, ValueError) as error:
        raise MethodError(
            f"reference={reference!r}: give K numbers, or K for each prompt"
        ) from error
    if table.ndim != 2 or not table.size or np.isnan(table).any():
        raise MethodError(
            f"reference has the shape {table.shape}: give K numbers, or K for each "
            "prompt, and no nan"
        )

    def init(prompts: int) -> base.State:
        if len(table) not in (1, prompts):
            raise MethodError(
                f"reference has {len(table)} rows for {prompts} prompts: give one for "
                "all, or one a prompt"
            )
        state = inner.init(prompts)
        rows = jnp.broadcast_to(jnp.asarray(table), (prompts, table.shape[1]))
        return base.State(
            Row(state.row, rows, jnp.full(prompts, t, jnp.float32)), state.shared
        )

    def formed(c: Any, t: Any, xp: Any) -> Any:
        if form == "identity":
            return c
        return xp.exp(t * c) if form == "best_of_n" else -xp.exp(-t * c)

    def of(state: base.State) -> base.State:
        return base.State(state.row.inner, state.shared)

    def phi(state: base.State, value: Array) -> Array:
        """★ Return Phi of a value, float32[]."""
        return formed(rank(state.row.reference, value), state.row.t, jnp)

    made = inner._replace(init=init)
    if inner.ask is not None:
        ask_inner = inner.ask

        def ask(samples: Sequence[Sample]) -> list[float]:
            values = rewards.asked(ask_inner, samples)
            rows = [table[s.request if len(table) > 1 else 0] for s in samples]
            return [
                float(formed(rank(row, np.float32(v), np), t, np))
                for row, v in zip(rows, values)
            ]

        return made._replace(ask=ask)
    if inner.score is not None:
        score_inner = inner.score

        def score(state: base.State, *text: Array) -> Array:
            return phi(state, score_inner(of(state), *text))

        return made._replace(score=score)
    node_inner, reduce_inner = inner.node, inner.reduce
    assert node_inner is not None

    def node(params: base.Params, state: base.State, hidden: dict) -> Array:
        values = node_inner(params, of(state), hidden)
        if reduce_inner is not None:
            return values
        of_rows = jax.vmap(jax.vmap(phi, (None, 0)), (base.ROWS, 0))
        return of_rows(state, values)

    if reduce_inner is None:
        return made._replace(node=node)

    def reduce(state: base.State, *text: Array) -> Array:
        return phi(state, reduce_inner(of(state), *text))

    return made._replace(node=node, reduce=reduce)
