"""Optimisers and schedules by name, for the transformer's fused weights."""

from collections.abc import Callable, Mapping
from typing import Any, TypeAlias

import jax
import optax
from optax import contrib

from models.errors import ConfigError

Dims: TypeAlias = contrib.MuonDimensionNumbers

# Weights are [in, out]; a fused one is several matrices (a query head's rows belong
# together, gate and up do not), and axes that are not named here are batch axes.
MATRICES = {
    "qkv": Dims(reduction_axis=0, output_axis=(1, 2, 3)),
    "out": Dims(reduction_axis=0, output_axis=1),
    "up": Dims(reduction_axis=0, output_axis=-1),
    "down": Dims(reduction_axis=0, output_axis=1),
}


def matrices(params: Any) -> Any:
    """Return Muon's dimension numbers by param; None where AdamW is used instead."""

    def of(path: tuple, x: Any) -> Dims | None:
        inside = path[0].key.startswith("layer_") and x.ndim >= 2
        return MATRICES.get(path[-1].key) if inside else None

    return jax.tree_util.tree_map_with_path(of, params)


def head_matrices(params: Any) -> Any:
    """Return Muon's dimension numbers by param of a draft head: its layers', and fc."""
    joint = {**MATRICES, "fuse": Dims(reduction_axis=(0, 1), output_axis=2)}

    def of(path: tuple, x: Any) -> Dims | None:
        return joint.get(path[-1].key) if x.ndim >= 2 else None

    return jax.tree_util.tree_map_with_path(of, params)


def warmup_stable_decay(
    peak: float, steps: int, warmup: int, decay: int, floor: float = 0.0
) -> optax.Schedule:
    """Make a schedule: linear warm-up, plateau, linear decay in the last `decay` steps.

    Until the decay starts the schedule does not depend on `steps`, so a run can be
    lengthened from any checkpoint before it.

    Args:
        peak: the plateau's rate.
        steps: updates in all.
        warmup: updates of the warm-up.
        decay: updates of the decay.
        floor: the last rate, as a share of `peak`.

    Raises:
        ConfigError: warm-up and decay exceed `steps`.
    """
    if warmup + decay > steps:
        raise ConfigError(
            f"warmup={warmup} and decay={decay} exceed steps={steps}: shorten them"
        )
    return optax.join_schedules(
        [
            optax.linear_schedule(peak / (warmup + 1), peak, warmup),
            optax.constant_schedule(peak),
            optax.linear_schedule(peak, floor * peak, decay),
        ],
        [warmup, steps - decay],
    )


def adamw(
    schedule: optax.Schedule,
    b1: float = 0.9,
    b2: float = 0.95,
    weight_decay: float = 0.1,
) -> optax.GradientTransformation:
    """Make AdamW that decays matrices only."""
    mask = lambda params: jax.tree.map(lambda x: x.ndim > 1, params)
    return optax.adamw(schedule, b1, b2, weight_decay=weight_decay, mask=mask)


def by_part(
    make: Callable[[float], optax.GradientTransformation], factors: Mapping[str, float]
) -> optax.GradientTransformation:
    """Make one optimiser for each part that `factors` names, and one for the rest.

    A part is an entry at the top of the param tree. Its optimiser is `make(factor)`;
    the rest's is `make(1.0)`.
    """

    def labels(params: Any) -> Any:
        unknown = sorted(set(factors) - set(params))
        if unknown:
            raise ConfigError(
                f"factors are given for {unknown}, but the params have only "
                f"{sorted(params)}: use these names"
            )
        return {name: name if name in factors else "" for name in params}

    transforms = {name: make(factor) for name, factor in factors.items()}
    return optax.multi_transform({"": make(1.0), **transforms}, labels)


def muon(
    schedule: optax.Schedule,
    adam_schedule: optax.Schedule,
    momentum: float = 0.95,
    weight_decay: float = 0.0,
    of: Callable[[Any], Any] = matrices,
) -> optax.GradientTransformation:
    """Make Muon (Jordan et al. 2024) for the layers' matrices, Adam for all others.

    `of(params)` are the matrices' dimension numbers, None for other params.
    """
    return contrib.muon(
        schedule,
        beta=momentum,
        weight_decay=weight_decay,
        adam_b1=0.9,
        adam_b2=0.95,
        adam_learning_rate=adam_schedule,
        muon_weight_dimension_numbers=of,
    )
