"""Steps that must not count: a loss or gradient that is not finite, or far too large.

`stop` ends the run and names the last good checkpoint. `skip` leaves weights, optimiser
and average as they were, on the device and without a wait, and goes on to the next
batch. `roll_back` takes the last good checkpoint and goes on with the batch after the
bad one: the updates between are dropped (Chowdhery et al., *PaLM*, 2022, arXiv
2204.02311, section 5.1), the count of steps and the data are not turned back.
"""

import math
from typing import Any, NamedTuple

import jax.numpy as jnp
from jax import Array

from models.errors import ConfigError

STOP, SKIP, ROLL_BACK = "stop", "skip", "roll_back"
ACTIONS = (STOP, SKIP, ROLL_BACK)


class Policy(NamedTuple):
    """What is done about a bad step, and which ones are.

    A gradient norm, before clipping, above `norm_limit` is bad (0: any finite one is
    good). The run ends after `patience` bad steps in a row, or as many roll-backs
    without a good checkpoint between them.
    """

    action: str = STOP
    norm_limit: float = 0.0
    patience: int = 10

    def check(self) -> None:
        """Raises `ConfigError` for a policy that is none."""
        if self.action not in ACTIONS:
            raise ConfigError(f"bad_steps={self.action!r}: use one of {ACTIONS}")
        if not self.norm_limit >= 0 or self.patience < 1:
            raise ConfigError(
                f"norm_limit={self.norm_limit}, patience={self.patience}: use at least "
                "0 and 1"
            )

    def good(self, loss: Array, norm: Array) -> Array:
        """bool[]: whether a step counts, in its program."""
        found = jnp.isfinite(loss) & jnp.isfinite(norm)
        return found & (norm <= self.norm_limit) if self.norm_limit else found

    def bad(self, row: dict[str, float]) -> bool:
        """Whether the step that these are the metrics of was bad."""
        if self.action == SKIP:
            return row["skipped"] > 0
        finite = math.isfinite(row["loss"]) and math.isfinite(row["grad_norm"])
        return not finite or 0 < self.norm_limit < row["grad_norm"]


def from_config(train: Any) -> Policy:
    """The policy of a recipe's `train` fields; those that it lacks are the defaults."""
    own = {n: train.get(n, v) for n, v in zip(Policy._fields, Policy())}
    return Policy(**{**own, "action": train.get("bad_steps", STOP)})
