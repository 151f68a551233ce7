"""The interface of verifiers of real-valued tokens.

A token is a vector in R^D. Drafts form a chain, and a node's law is a `Gaussian`: there
is no vocabulary, no tree and no logits, which `base.Verifier` is made of. ★ functions
are written for one row, and the loop vmaps them.
"""

from collections.abc import Callable
from typing import NamedTuple

from flax import struct
from jax import Array

from models.real_valued.gaussian_series import Gaussian


@struct.dataclass
class RealVerdict:
    """The outcome for one row."""

    count: Array  # int32[]: drafts accepted, the first ones
    token: Array  # float32[D]: the token behind them
    tries: Array  # int32[]: proposals drawn for that token


class RealVerifier(NamedTuple):
    """Accepts the first drafts of a chain.

    `verify(key, drafts[N, D], q, p) -> RealVerdict` ★: drafts x_i ~ q_i independently
    of `key`; `q` has N laws, and `p` has N + 1, the last of which is behind all drafts.
    `guarantee`: LAW where the committed tokens follow p.
    """

    verify: Callable[[Array, Array, Gaussian, Gaussian], RealVerdict]
    guarantee: str
