"""Bad steps: a loss or gradient that is not finite, or a far too large gradient norm.

`stop` ends the run and names the last good checkpoint. `skip` leaves weights, optimiser
and average as they were, on the device and without a wait, and continues with the next
batch. `roll_back` restores the last good checkpoint and continues with the batch after
the bad one: the updates between are dropped (Chowdhery et al., *PaLM*, 2022, arXiv
2204.02311, section 5.1). The count of steps and the data are not turned back.
"""

import math
from typing import Any, NamedTuple

import jax.numpy as jnp
from jax import Array

from models.errors import ConfigError

STOP, SKIP, ROLL_BACK = "stop", "skip", "roll_back"
ACTIONS = (STOP, SKIP, ROLL_BACK)


class Policy(NamedTuple):
    """Which steps are bad, and the action on one.

    A gradient norm, before clipping, above `norm_limit` is bad (0: any finite one is
    good). The run ends after `patience` bad steps in a row, or as many roll-backs
    without a good checkpoint between them.
    """

    action: str = STOP
    norm_limit: float = 0.0
    patience: int = 10

    def check(self) -> None:
        """Raise `ConfigError` for an unknown action or a limit out of its range."""
        if self.action not in ACTIONS:
            raise ConfigError(f"bad_steps={self.action!r}: use one of {ACTIONS}")
        if not self.norm_limit >= 0 or self.patience < 1:
            raise ConfigError(
                f"norm_limit={self.norm_limit}, patience={self.patience}: use at least "
                "0 and 1"
            )

    def good(self, loss: Array, norm: Array) -> Array:
        """Compute bool[], whether a step is good; runs inside the step's program."""
        finite = jnp.isfinite(loss) & jnp.isfinite(norm)
        return finite & (norm <= self.norm_limit) if self.norm_limit else finite

    def bad(self, row: dict[str, float]) -> bool:
        """Decide from a step's metrics whether it was bad."""
        if self.action == SKIP:
            return row["skipped"] > 0
        finite = math.isfinite(row["loss"]) and math.isfinite(row["grad_norm"])
        return not finite or 0 < self.norm_limit < row["grad_norm"]


def from_config(train: Any) -> Policy:
    """Read a policy from a recipe's `train` fields, with defaults for missing ones."""
    fields = {n: train.get(n, v) for n, v in zip(Policy._fields, Policy())}
    return Policy(**{**fields, "action": train.get("bad_steps", STOP)})
