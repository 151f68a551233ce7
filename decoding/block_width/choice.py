"""What `width` means: "auto", "paper", or a number of nodes."""

import os

from decoding import base
from decoding.block_width import controller
from decoding.block_width.policy import PAPER, WidthPolicy
from models.errors import MethodError, hint

VARIABLE = "DECODAX_WIDTH"


def default() -> str | int:
    """Return the width of calls that give none: the environment's, or "auto"."""
    chosen = os.environ.get(VARIABLE, "auto")
    return int(chosen) if chosen.isdigit() else chosen


def widths(
    width: str | int, drafter: base.Drafter, guarantee: str
) -> tuple[tuple[int, ...], WidthPolicy]:
    """Return the block widths to compile, and the policy that chooses among them."""
    if not isinstance(width, int) and width not in ("auto", "paper"):
        raise MethodError(
            f'width={width!r}{hint(str(width), ("auto", "paper"))}: use "auto", '
            '"paper" or a number of nodes'
        )
    lossy = guarantee == base.LOSSY
    if width == "paper" or drafter.nodes == 1 or (width == "auto" and lossy):
        narrower = {w for w in drafter.blocks if w < drafter.nodes}
        return (*sorted(narrower), drafter.nodes), PAPER
    if not isinstance(width, int):
        ladder = controller.ladder(drafter.nodes)
        policy = controller.policy(ladder, drafter.pauses)
        return ladder, policy._replace(measured=True)
    if lossy:
        raise MethodError(
            f"width={width}: the text of this method depends on its draft's size, as "
            'its guarantee is LOSSY; use width="paper"'
        )
    if width < 1:
        raise MethodError(
            f"width={width}: a block has at least 1 node, the last token; use 1 or more"
        )
    if width >= drafter.nodes:
        return widths("paper", drafter, guarantee)
    return (width,), controller.policy((width,))
