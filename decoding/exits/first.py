"""FiRST: the prompt decides, by a vote of its tokens, which layers its text takes.

Jain, Sharma, Mukherjee, Pal, *FiRST: Finetuning Router-Selective Transformers for
Input-Adaptive Latency Reduction*, 2025, arXiv 2410.12513. A router a layer
(models/predictors/layer_router.py) reads the state h that enters it. The prompt takes
all layers. Its text takes layer l if

    mean over the prompt's tokens of  sigmoid(w_l . h + b_l)  >=  1/2

and the choice stays. A skipped layer keeps the prompt's keys alone, which no token of
the text reads: none is missing.

1/2 → `threshold`, w and b → `params["exits"]`, trained by
training/objectives/predictors/first.py, whose second stage changes the target, too
(LoRA). Layers are chosen by row, before the text, so that the text of any drafter is
plain decoding's under the same routers and prompt.

Deviations from the paper: the prompt's last token, from which the text starts, takes
all layers but has no vote, since it is read after the choice. Prompts of one token skip
nothing. Votes are probabilities, as in training.

Cost per call: the layers that any row chose; at the prompt, a product with D numbers a
token and layer.
"""

from dataclasses import replace

import jax
import jax.numpy as jnp
from flax import struct
from jax import Array

from decoding import base
from decoding.catalogue import Card
from models.base import LanguageModel
from models.errors import MethodError
from models.predictors import layer_router

CARD = Card(
    paper="FiRST, arXiv 2410.12513",
    guarantee=base.LOSSY,
    family="layer skipping",
    data=("threshold",),
    needs=("exits", "model"),
    trained=True,
    examples={"threshold": 0.5},
    sources=("jain2025first",),
)


@struct.dataclass
class Row:
    """One request's vote."""

    votes: Array  # float32[B, L]: the sum of the prompt's g so far
    voters: Array  # int32[B]: tokens that voted
    prompt: Array  # int32[B]: tokens of the prompt
    threshold: Array  # float32[B]


def exit_policy(exits, model: LanguageModel, threshold: float = 0.5) -> base.ExitPolicy:
    """Leave out the layers that a prompt's tokens do not ask for.

    Args:
        exits: params of the routers.
        model: the target.
        threshold: mean vote from which on a layer is kept; at 0 all are.
    """
    depth = model.config.n_layers
    layer_router.check(exits, depth, model.config.d_model)
    if not 0 <= threshold <= 1:
        raise MethodError(f"threshold={threshold}: use a probability, 0 to 1")

    def init(ctx: base.Context) -> base.State:
        length = ctx.length.astype(jnp.int32)
        row = Row(
            jnp.zeros((length.shape[0], depth), jnp.float32),
            jnp.zeros_like(length),
            length,
            jnp.full(length.shape, threshold, jnp.float32),
        )
        return base.State(row)

    def observe(
        ctx: base.Context, state: base.State, outcome: base.Outcome
    ) -> base.State:
        if not outcome.is_prompt:
            return state
        row, hidden = state.row, outcome.target.hidden
        odds = [
            layer_router.log_odds(ctx.params["exits"], i, hidden[i])
            for i in range(depth)
        ]
        index = jnp.arange(outcome.tree.tokens.shape[1], dtype=jnp.int32)
        votes = index < outcome.verdict.count[:, None] + 1  # bool[B, N]
        each = jnp.where(votes[..., None], jax.nn.sigmoid(jnp.stack(odds, -1)), 0.0)
        row = replace(
            row, votes=row.votes + each.sum(1), voters=row.voters + votes.sum(1)
        )
        return replace(state, row=row)

    def layers(state: base.State, positions: Array) -> tuple[None, Array]:
        row: Row = state.row
        # Below the threshold; without voters nothing is.
        skipped = row.votes < (row.threshold * row.voters)[:, None]
        is_text = positions >= row.prompt[:, None]
        return None, skipped.T[:, :, None] & is_text

    return base.ExitPolicy(
        init, observe=observe, taps=tuple(range(depth)), layers=layers
    )
