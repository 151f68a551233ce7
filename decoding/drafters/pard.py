"""PARD: a draft model guesses several tokens in one pass, behind masks.

An et al., *PARD: Accelerating LLM Inference with Low-Cost PARallel Draft Model
Adaptation*, 2025, arXiv 2504.18583, section 3.1. A small model of the target's family,
trained for it (`training/objectives/language_models/pard.py`), reads the tokens that
the last round committed and K - 1 masks m behind them:

    q_j = softmax(draft(prefix, m, .., m)),    j = 0 .. K - 1 masks

is the law of the children of *every* node at depth j; K is the topology's depth. It
reads nothing of the target, so one draft serves a family of targets. The masks' keys
are dropped. With K = 1 it is `drafters/model`.

Cost per call: one draft call of as many nodes as a round commits at most, and K - 1;
K products with the draft's head.
"""

import functools
from dataclasses import replace
from typing import Any

import jax
import jax.numpy as jnp

from decoding import base
from decoding.catalogue import Card
from decoding.tree_building import draft_head, draft_model
from models.base import NONE, causal_block
from models.cache_layouts import held
from models.errors import MethodError

CARD = Card(
    paper="PARD, arXiv 2504.18583",
    guarantee=base.LAW,
    family="draft model",
    needs=("draft", "topology"),
    trained=True,
    sources=("an2025pard",),
    examples={"mask": 1},
)

CHUNK = 16  # tokens of a block that catches up after rounds without a draft


def drafter(draft, topology: base.Topology, mask: int) -> base.Drafter:
    """Draft with `draft`, a `LanguageModel` whose params are `params["draft"]`.

    Args:
        draft: the draft model.
        topology: of the trees.
        mask: the id of the token that it was trained to read for an unknown one;
            `pard_token` in the config.json of a published draft.

    Raises:
        MethodError: `mask` is outside the draft's vocabulary.
    """
    model, vocab_size = draft, draft.config.vocab_size
    if not 0 <= mask < vocab_size:
        raise MethodError(
            f"mask={mask} is no token of a draft with {vocab_size}: give the id that "
            "it was trained with (`pard_token` in a published config.json)"
        )
    masks = topology.depth - 1
    fresh = topology.depth + 1  # tokens that a round commits at most

    def init(ctx: base.Context) -> tuple:
        batch, size = ctx.tokens.shape
        dtype = jax.tree.leaves(ctx.params["draft"])[0].dtype
        block = fresh + masks
        make = functools.partial(model.init_cache, batch, size + block, dtype)
        margin = max(block, CHUNK) + 2
        return (), held.windowed(make, held.windows_of(model.config), margin)

    def start(ctx: base.Context, own: Any, cache: Any) -> draft_head.Start:
        params = ctx.params["draft"]
        cache, late = draft_model.catch_up(model, params, cache, ctx, CHUNK, fresh)
        pending = ctx.length - cache.length
        index = jnp.arange(fresh + masks, dtype=jnp.int32)
        at = cache.length[:, None] + index
        known = jnp.take_along_axis(ctx.tokens, at, 1, mode="clip")
        tokens = jnp.where(index < pending[:, None], known, mask)
        block = causal_block(tokens, cache.length, pending + masks, cache.size, NONE)
        out, cache = model(params, cache, block, ("norm",))
        at = pending[:, None] - 1 + jnp.arange(masks + 1, dtype=jnp.int32)
        states = jnp.take_along_axis(out.hidden["norm"], at[..., None], 1, mode="clip")
        laws = model.head(params, states)
        # The masks' keys lie behind what is committed: the next round overwrites them.
        cache = replace(cache, length=ctx.length)
        return draft_head.marginal(ctx, topology, laws, cache, late)

    def read(ctx: base.Context, own: Any, cache: Any, outcome: base.Outcome) -> tuple:
        if outcome.is_prompt:
            params = ctx.params["draft"]
            cache = draft_model.read_prompt(model, params, cache, outcome)
        return own, cache  # the next draft reads what a round committed

    return draft_head.drafter(topology, init, start, read, (), calls=1)
