"""Write series of real-valued tokens with a draft model, in one compiled loop.

For all rows at once, until every row has its tokens, with no work of the host:

    draft `length` tokens ─► the target's laws at all of them, in one call ─► verify
    ─► write the accepted drafts and the token behind them

A model's law of a token may depend on the noise of a trajectory
(`models/real_valued/gaussian_series.py`). That noise is a function of request and
absolute position. If `aligned`, both models read it; else the target has its own. The
noise of the last step is never shared: the draft's is a function of the position, that
of the verifier's tokens and its coins of the round. A draft behind a rejected one is
thrown away unread by any test, so its position's noise is still fresh in the next
round.

With `length` 0 this is plain decoding: one token a call.
"""

import functools
from typing import Any

import jax
import jax.numpy as jnp
from flax import struct
from jax import Array, lax

from decoding import noise
from decoding.real_valued.verifying import RealVerifier
from models.errors import MethodError
from models.real_valued.gaussian_series import Gaussian, Model


@struct.dataclass
class Series:
    """The state of the loop; B rows."""

    tokens: Array  # float32[B, T, D], prompt included
    length: Array  # int32[B]; what lies behind it is undefined
    calls: Array  # int32[B]: target calls
    tested: Array  # int32[B]: drafts that a coin was thrown for
    accepted: Array  # int32[B]
    tries: Array  # int32[B]: proposals for tokens behind a rejected draft


@functools.partial(jax.jit, static_argnums=(0, 1, 2, 6, 7, 8))
def decode(
    target: Model,
    draft: Model,
    verifier: RealVerifier,
    params: dict[str, Any],
    prompts: Array,
    keys: Array,
    new_tokens: int,
    length: int,
    aligned: bool = True,
) -> Series:
    """Write `new_tokens` tokens or up to `length` more behind every prompt.

    Args:
        target: whose law the texts have, under a verifier of LAW.
        draft: the model that drafts, of as many steps a token.
        verifier: tests the drafts.
        params: of "target" and "draft".
        prompts: float32[B, P, D], at least as long as both windows.
        keys: one a row, `noise.request_keys`.
        new_tokens: of each row.
        length: drafts of a round.
        aligned: whether both models read one trajectory's noise.
    """
    rows, size, dim = prompts.shape
    windows = target.config.window, draft.config.window
    if size < max(windows):
        raise MethodError(
            f"prompts of {size} tokens: the models read windows of {max(windows)}"
        )
    if target.config.steps != draft.config.steps:
        raise MethodError(
            f"steps={target.config.steps} of the target and {draft.config.steps} of "
            "the draft: a trajectory is shared step by step"
        )
    if length < 0 or new_tokens < 1:
        raise MethodError(
            f"length={length}, new_tokens={new_tokens}: use at least 0 and 1"
        )
    room = jnp.zeros((rows, new_tokens + length, dim), prompts.dtype)
    zero = jnp.zeros(rows, jnp.int32)
    first = Series(
        jnp.concatenate([prompts, room], 1), zero + size, zero, zero, zero, zero
    )
    limit = size + new_tokens
    advance = functools.partial(_round, target, draft, verifier, params)
    round_ = jax.vmap(lambda row, key: advance(row, key, length, aligned))

    def step(state: Series) -> Series:
        live = state.length < limit
        after = round_(state, keys)
        wide = lambda x: live.reshape(rows, *[1] * (x.ndim - 1))
        return jax.tree.map(lambda x, y: jnp.where(wide(x), x, y), after, state)

    return lax.while_loop(lambda state: (state.length < limit).any(), step, first)


def _round(
    target: Model,
    draft: Model,
    verifier: RealVerifier,
    params: dict[str, Any],
    row: Series,
    key: Array,
    length: int,
    aligned: bool,
) -> Series:
    """★ Draft, call the target, verify and write."""
    dim, steps = row.tokens.shape[-1], target.config.steps
    places = row.length + jnp.arange(length + 1, dtype=jnp.int32)

    def drawn(role: int, *shape: int) -> Array:
        """Draw standard normal numbers for every position of the round."""
        keys = jnp.broadcast_to(key, places.shape)
        draw = lambda key: jax.random.normal(key, shape)
        return jax.vmap(draw)(noise.for_role(keys, role, places))

    shared = drawn(noise.TRAJECTORY, steps, dim)
    own = shared if aligned else drawn(noise.APART, steps, dim)
    last = drawn(noise.DRAFT, dim)

    def guess(tokens: Array, turn: tuple) -> tuple[Array, tuple[Array, Gaussian]]:
        place, path, fresh = turn
        law = draft.law(params["draft"], _window(draft, tokens, place), path)
        token = law.mean + law.deviation * fresh
        return tokens.at[place].set(token), (token, law)

    turns = jax.tree.map(lambda x: x[:length], (places, shared, last))
    tokens, (drafts, q) = lax.scan(guess, row.tokens, turns)
    windows = jax.vmap(lambda place: _window(target, tokens, place))(places)
    p = target.law(params["target"], windows, own)
    coins = noise.for_role(key[None], noise.VERIFY, row.length[None])[0]
    verdict = verifier.verify(coins, drafts, q, p)
    count, is_cut = verdict.count, verdict.count < length
    return Series(
        tokens.at[row.length + count].set(verdict.token),
        row.length + count + 1,
        row.calls + 1,
        row.tested + count + is_cut,
        row.accepted + count,
        row.tries + jnp.where(is_cut, verdict.tries, 0),
    )


def _window(model: Model, tokens: Array, place: Array) -> Array:
    """★ Cut the tokens before `place` that a model reads."""
    size = model.config.window
    return lax.dynamic_slice_in_dim(tokens, place - size, size)
