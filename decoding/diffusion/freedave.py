"""Verify the states that the rule would reach next, several in one forward.

Wu, Zhang, *Free Draft-and-Verification: Toward Lossless Parallel Decoding for Diffusion
Large Language Models*, 2025, arXiv 2510.00294.

From the last proposal follow the states that the schedule's rule would reach if no
forward changed anything. One forward runs the committed state and those drafts. From
each the rule makes its true next state; a draft that equals the true state before it is
accepted, so every forward commits one state at least, and the text is the rule's.

Deviation: the paper accepts a draft whose committed tokens agree with the true state,
which is exact only for one position a forward. Here a draft must equal it, with the
state of the rule. `match="subset"` is the paper's (FreeDave++ above one position a
forward), and LOSSY.

Cost: a forward of K states, K times the nodes, and K - 1 drafts of the rule.
"""

from decoding import base
from decoding.catalogue import Card
from decoding.denoising.schedule import Scheduler
from models.errors import MethodError

CARD = Card(
    paper="Wu, Zhang 2025, arXiv 2510.00294",
    guarantee=base.LAW,
    family="draft and verify",
    sources=("wu2025free",),
)
MATCHES = ("equal", "subset")


def scheduler(branches: int = 8, match: str = "equal") -> Scheduler:
    """Build the part, beside one that selects.

    Args:
        branches: K, states of a forward, the committed one among them.
        match: "equal" or "subset".
    """
    if branches < 1:
        raise MethodError(f"branches={branches}: use at least 1")
    if match not in MATCHES:
        raise MethodError(f"match={match!r}: use one of {MATCHES}")

    def agrees(drafted, true):
        both = drafted.known & true.known
        same = ~both | (drafted.tokens == true.tokens)
        return (same & (true.known | ~drafted.known)).all()

    is_exact = match == "equal"
    return Scheduler(
        branches=branches,
        agrees=None if is_exact else agrees,
        guarantee=base.LAW if is_exact else base.LOSSY,
    )
