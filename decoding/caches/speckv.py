"""SpecKV: keep what a draft model's guess of the answer attends to.

Galim, Ewer, Kang, Lee, Koo, Lee, *Draft-based Approximate Inference for LLMs*, 2025,
arXiv 2506.08373.

When the prompt is read, a draft model writes x_1 .. x_n behind it greedily, n =
`lookahead` at most. The target runs the prompt's last token and these once. A slot j of
KV head g is worth

    s_j = max over queries i and the group's heads of a_ij

with the softmax weights a of the last `window` queries of the prompt and of those
behind it, pooled over `kernel` neighbours. Each KV head keeps the `budget` - `window`
slots of the highest worth before the window, and the window. The keys of x are dropped.

Without a lookahead nothing is guessed: `lookahead=0, reduce="sum"` is SnapKV with
pooling="max", bit for bit.

Deviations: n is a fixed number, cut where the row's text must end and behind EOS (the
official code's default is as many as the text may have); greedy at any temperature, and
without the method's transforms; prompts are read whole (the official code may read long
ones by vertical and slash lines). Cost: the draft model reads the prompt and writes n
tokens, once, in a cache of its own that is freed then; one target call of n + 1 nodes;
one read of the keys. `out.stats.draft_calls` counts the draft model's calls.
"""

import functools
from typing import Any

import jax
import jax.numpy as jnp
from jax import Array, lax

from decoding import base
from decoding.cache_eviction import budgets, scored
from decoding.caches import snapkv
from decoding.catalogue import Card
from decoding.tree_building import draft_model
from models.base import ALL, causal_block
from models.cache_layouts import held
from models.errors import MethodError

CARD = Card(
    paper="arXiv 2506.08373",
    guarantee=base.LOSSY,
    family="eviction",
    needs=("draft", "eos"),
    sources=("galim2025draft",),
    examples={"budget": 12, "window": 4, "kernel": 3, "lookahead": 6},
)

CHUNK = 128  # tokens of the prompt that the draft model reads a call
MOST = 1023  # tokens: a block of a model call has 1,024 at most


def policy(
    draft: Any = None,
    eos: tuple[int, ...] = (),
    budget: budgets.Budget = 256,
    window: int = 32,
    kernel: int = 7,
    lookahead: int = 64,
    pooling: str = "max",
    reduce: str = "max",
    layers: budgets.Layers = budgets.UNIFORM,
) -> base.CachePolicy:
    """Evict once, by what the prompt's last queries and a guess of the text saw.

    Args:
        draft: a `LanguageModel` whose params are `params["draft"]`.
        eos: tokens that end a guess.
        budget: slots of a KV head, or a share of the prompt.
        window: the last queries of the prompt, whose keys are kept.
        kernel: slots that the worth is pooled over; odd.
        lookahead: tokens to guess; 0: none, which needs no `draft`.
        pooling: "max" or "mean".
        reduce: "max" or "sum", over queries and the heads of a group.
        layers: "uniform", "pyramid", or each layer's weight.

    Raises:
        MethodError: a number out of range, or no draft model.
    """
    if not 0 <= lookahead <= MOST:
        raise MethodError(f"lookahead={lookahead}: use 0 to {MOST} tokens")
    if reduce not in ("max", "sum"):
        raise MethodError(f"reduce={reduce!r}: use 'max' or 'sum'")
    ahead = lookahead + 1 if lookahead else 0  # with the prompt's last token
    rule = snapkv.rule(window, kernel, pooling, ahead, reduce)
    made = scored.policy(rule, budget, layers=layers)
    if not lookahead:
        return made
    if draft is None:
        raise MethodError(
            f"caches/speckv guesses lookahead={lookahead} tokens by a draft model: "
            'pass drafts={"draft": models.load(...)} to generate'
        )
    guess = functools.partial(guessed, draft, eos, lookahead)
    return made._replace(lookahead=guess)


def guessed(
    model: Any, eos: tuple[int, ...], size: int, ctx: base.Context, most: Array
) -> tuple[Array, Array, Array]:
    """Write up to `size` tokens behind each prompt, greedily.

    Args:
        model: the draft model.
        eos: tokens behind which a row ends.
        size: M.
        ctx: the rows, whose prompts are read.
        most: int32[B], tokens that a row may have.

    Returns:
        Tokens int32[B, M], how many of them a row has int32[B], and the calls that it
        took int32[B].
    """
    params = ctx.params["draft"]
    batch, slots = ctx.tokens.shape
    dtype = jax.tree.leaves(params)[0].dtype
    make = functools.partial(model.init_cache, batch, slots, dtype)
    cache = held.windowed(make, held.windows_of(model.config), CHUNK)
    cache, _ = draft_model.catch_up(model, params, cache, ctx, CHUNK, lag=1)
    most = jnp.clip(most, 0, size)
    ends = jnp.asarray(eos, jnp.int32)
    none = jnp.zeros((batch, 0), jnp.int32)

    def write(carry: tuple) -> tuple:
        cache, tokens, count, last, live = carry
        block = causal_block(
            last[:, None], cache.length, live.astype(jnp.int32), cache.size, ALL
        )
        out, cache = model(params, cache, block)
        token = jnp.argmax(out.logits[:, 0], -1).astype(jnp.int32)
        cache = cache.commit(none, jnp.where(live, 0, -1), linear=True)
        at = jnp.where(live, count, size)
        tokens = tokens.at[jnp.arange(batch), at].set(token, mode="drop")
        count = count + live
        live &= (count < most) & ~(token[:, None] == ends).any(1)
        return cache, tokens, count, token, live

    start = (jnp.zeros((batch, size), jnp.int32), jnp.zeros((batch,), jnp.int32))
    carry = (cache, *start, ctx.root, most > 0)
    _, tokens, count, _, _ = lax.while_loop(lambda c: c[4].any(), write, carry)
    read = -(-(ctx.length - 1) // CHUNK)
    return tokens, count, read + count
