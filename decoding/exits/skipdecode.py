"""SkipDecode: the later a token of the text, the fewer layers it takes.

Del Corro, Del Giorno, Agarwal, Yu, Awadallah, Mukherjee, *SkipDecode: Autoregressive
Skip Decoding with Batching and Caching for Efficient LLM Inference*, 2023, arXiv
2307.02628. The token that predicts the text's token i (i = 0: the prompt's last, and
all before it) takes

    active(i) = round(max - (max - min) i / (T - 1)),     i < T; min from there on

of L layers: the first w, and the last active(i) - w. What lies between is skipped, not
the end, so that upper layers read what earlier tokens computed with more layers. active
never rises, so a token's layers are among those of every token before it: wherever a
token attends, no key is missing.

max → `most`; min → `least`; T → `tokens`; w → `warm`, the paper's warm-up layers. The
layers are a function of a token's place. So nodes of a tree have those of their
positions, and the text of any drafter is plain decoding's under the same schedule.

Deviations from the paper: its model is fine-tuned with the schedule; any target may be
given here, and one that was not trained so loses quality. i counts the text's tokens,
from the end of each row's own prompt, which takes max layers. Which max, min and T a
target bears is to be measured: `least` and `tokens` have no defaults. w = 1 is ours.

Cost per call: the layers that any node of any row needs: a batch whose texts are as
long, and drafts of depth d, run active(i) of the earliest node.
"""

from typing import Any

import jax.numpy as jnp
import numpy as np
from flax import struct
from jax import Array

from decoding import base
from decoding.catalogue import Card
from models.base import LanguageModel
from models.errors import MethodError

CARD = Card(
    paper="SkipDecode, arXiv 2307.02628",
    guarantee=base.LOSSY,
    family="layer skipping",
    data=("least", "tokens", "most", "warm"),
    needs=("model",),
    examples={"least": 1, "tokens": 20, "warm": 0},
    sources=("delcorro2023skipdecode",),
)


@struct.dataclass
class Row:
    """One request's schedule."""

    prompt: Array  # int32[B]: tokens of the prompt
    most: Array  # int32[B]
    least: Array  # int32[B]
    tokens: Array  # int32[B]
    warm: Array  # int32[B]


def exit_policy(
    model: LanguageModel,
    least: int,
    tokens: int,
    most: int | None = None,
    warm: int = 1,
) -> base.ExitPolicy:
    """Let the layers of a token shrink with its place in the text.

    Args:
        model: the target.
        least: min, layers from the text's token T - 1 on.
        tokens: T, tokens of the text over which the layers shrink.
        most: max, layers of the prompt and the text's first token; None: all.
        warm: w, first layers that are never skipped; below `least`, so that the last
            layer is not either.
    """
    depth = model.config.n_layers
    most = depth if most is None else most
    if not 1 <= least <= most <= depth:
        raise MethodError(
            f"least={least}, most={most} of a target of {depth} layers: use 1 <= least "
            f"<= most <= {depth}"
        )
    if tokens < 2:
        raise MethodError(f"tokens={tokens}: the layers shrink over at least 2 tokens")
    if not 0 <= warm < least:
        raise MethodError(f"warm={warm}: use 0 to {least - 1}, below least={least}")
    # Every key that a token reads is there: its layers are among the earlier ones'.
    every = np.asarray(runs(np.arange(tokens), most, least, tokens, warm, depth))
    assert (every[:, 1:] <= every[:, :-1]).all()

    def init(ctx: base.Context) -> base.State:
        rows = lambda number: jnp.full(ctx.length.shape, number, jnp.int32)
        numbers = map(rows, (most, least, tokens, warm))
        return base.State(Row(ctx.length.astype(jnp.int32), *numbers))

    def layers(state: base.State, positions: Array) -> tuple[None, Array]:
        row: Row = state.row
        index = positions - (row.prompt[:, None] - 1)
        numbers = (row.most, row.least, row.tokens, row.warm)
        most, least, tokens, warm = (x[:, None] for x in numbers)
        return None, ~runs(index, most, least, tokens, warm, depth)

    return base.ExitPolicy(init, layers=layers)


def active(index: Any, most: Any, least: Any, tokens: Any) -> Array:
    """Return active(i) int32[...] of i `index` [...]; integers, halves rounded up."""
    last = tokens - 1
    index = jnp.clip(index, 0, last)
    return (2 * (most * last - (most - least) * index) + last) // (2 * last)


def runs(
    index: Any, most: Any, least: Any, tokens: Any, warm: Any, depth: int
) -> Array:
    """Return bool[L, ...]: the layers that run for the tokens i `index` [...]."""
    count = active(index, most, least, tokens)
    layer = jnp.arange(depth, dtype=jnp.int32).reshape(-1, *[1] * jnp.ndim(index))
    return (layer < warm) | (layer >= depth - (count - warm))
