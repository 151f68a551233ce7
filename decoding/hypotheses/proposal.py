"""How a search draws the next token of its texts where a constraint has no mask."""

from collections.abc import Callable
from typing import NamedTuple

from jax import Array

from decoding.hypotheses.nodes import Nodes


class Paths(NamedTuple):
    """The texts behind which tokens are drawn: paths from node 0, which is no token."""

    nodes: Nodes  # of one request
    at: Array  # int32[N]: the last node of each text
    live: Array  # bool[N]: whether a token is wanted


class Proposal(NamedTuple):
    """Draws tokens with weights that are right on average.

    `propose(key, paths, logits[N, V], noise[N, V]) -> token int32[N], log weight
    float32[N]` ★: with p the law of the logits,

        E[w 1{token = x}] = p(x) 1[x may follow]

    A log weight of -inf: no token that may follow was met. The first token in the order
    of log p + noise that may follow is the one drawn.
    """

    propose: Callable[[Array, Paths, Array, Array], tuple[Array, Array]]
