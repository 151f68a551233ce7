"""Log-probabilities along texts, and the mass that a constraint leaves there.

One pass of the target over finished texts, chunk by chunk (as `scoring`); the transform
follows each text behind its prompt.
"""

import functools
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array, lax

from decoding import base, compose, transform_chain, vocab
from decoding.loops import initial_state, prefill, state_sharding
from decoding.serving import scoring
from models.base import ALL
from models.distributed import sharding
from models.errors import MethodError

CHUNK = 64  # tokens of a row in a call of the target, at most


class PathMasses(NamedTuple):
    """Figures of a text of M tokens."""

    logprobs: np.ndarray  # float32[M]: of each token, under the law of `free`
    masses: np.ndarray  # float32[M]: `transform_chain.mass` where it was drawn


@dataclass(frozen=True)
class _Law:
    """A transform as an argument of a program: equal for equal compositions."""

    key: tuple
    transform: base.LogitsTransform = field(compare=False)


class _Texts(NamedTuple):
    """Prompts with their texts, and where they begin and end."""

    tokens: Array  # int32[B, T]
    prompt: Array  # int32[B]
    length: Array  # int32[B]


def measured(
    lm: Any,
    parts: compose.Composition,
    prompts: Sequence[Sequence[int]],
    texts: Sequence[Sequence[int]],
) -> list[PathMasses]:
    """Measure texts behind their prompts.

    Args:
        lm: the model.
        parts: its transform's last part is the constraint.
        prompts: token lists.
        texts: the text of each prompt.

    Raises:
        MethodError: the transform is no constraint, or reads streams.
    """
    law = parts.program.transform
    if law.free is None or law.streams:
        raise MethodError(
            "masses along a text need a constraint and no stream: the transform "
            f"{'reads ' + str(law.streams) if law.streams else 'forbids nothing'}"
        )
    rows = [[*prompt, *text] for prompt, text in zip(prompts, texts, strict=True)]
    size = initial_state.bucket(max(map(len, rows)))
    tokens = np.zeros((len(rows), size), np.int32)
    for row, values in zip(tokens, rows):
        row[: len(values)] = values
    ends = [len(prompt) for prompt in prompts]
    lengths = jnp.asarray([len(row) for row in rows], jnp.int32)
    read = _Texts(jnp.asarray(tokens), jnp.asarray(ends, jnp.int32), lengths)
    every = parts.settings * (len(rows) if len(parts.settings) == 1 else 1)
    states = [
        setting.transform.init(jnp.asarray(row), jnp.int32(end))
        for setting, row, end in zip(every, tokens, ends, strict=True)
    ]
    stacked = jax.tree.map(lambda *x: jnp.stack(x), *[s.row for s in states])
    state = base.State(stacked, states[0].shared)
    model, params, chunk = lm.model, lm.params, CHUNK
    while chunk > 16 and len(rows) * chunk * model.config.vocab_size > scoring.LOGITS:
        chunk //= 2
    dtype = jax.tree.leaves(params)[0].dtype
    make = functools.partial(model.init_cache, len(rows), size + chunk, dtype)
    with sharding.use(model.plan):
        cache = state_sharding.made(model.plan, make)
        about = (model, _Law(parts.key, law), chunk)
        found = _pass(*about, params, cache, read, state)
    logprobs, masses = (np.asarray(sharding.fetch(x)) for x in found)
    return [
        PathMasses(logprobs[i, end : len(row)], masses[i, end : len(row)])
        for i, (row, end) in enumerate(zip(rows, ends))
    ]


@functools.partial(jax.jit, static_argnums=(0, 1, 2))
def _pass(model, law: _Law, chunk: int, params, cache, texts: _Texts, state):
    """Run all chunks; return the figures of every token, float32[B, T + ...] twice."""
    batch, size = texts.tokens.shape
    room = (batch, -(-size // chunk) * chunk + 1)
    none = jnp.zeros((batch, 0), jnp.int32)
    over = functools.partial(jax.vmap, in_axes=(base.ROWS, 0, 0))

    free = law.transform.free
    assert free is not None

    def step(state: base.State, node: tuple) -> tuple:
        logits, token, place = node

        def one(state: base.State, logits: Array, token: Array) -> tuple:
            at: tuple = (state, logits, {})
            logprob = vocab.token_logprob(free(*at), token)
            mass = transform_chain.mass(law.transform, *at)
            after = state
            if law.transform.advance is not None:
                after = law.transform.advance(state, token, logits, {})
            return (logprob, mass), after.row

        figures, after = over(one)(state, logits, token)
        is_text = (place >= texts.prompt) & (place < texts.length)
        row = jax.tree.map(
            lambda new, old: jnp.where(
                is_text.reshape(-1, *[1] * (new.ndim - 1)), new, old
            ),
            after,
            state.row,
        )
        return base.State(row, state.shared), figures

    def body(carry: tuple) -> tuple:
        at, cache, row, buffers = carry
        block, _, count = prefill.chunk(texts.tokens, texts.length, cache, chunk)
        out, cache = model(params, cache, block.replace(logits_at=ALL))
        # Node i holds the token before the one that it predicts.
        where = at + 1 + jnp.arange(chunk)
        following = jnp.take(texts.tokens, where, 1, mode="clip")
        nodes = (out.logits.swapaxes(0, 1), following.T, where)
        first = base.State(row, state.shared)
        after, figures = lax.scan(step, first, nodes)  # type: tuple[base.State, Any]
        buffers = tuple(
            lax.dynamic_update_slice_in_dim(old, new.T, at + 1, 1)
            for old, new in zip(buffers, figures)
        )
        cache = cache.commit(none, count - 1, linear=True)
        return at + chunk, cache, after.row, buffers

    def more(carry: tuple) -> Array:
        return (carry[1].length < texts.length - 1).any()

    empty = (jnp.zeros(room, jnp.float32), jnp.zeros(room, jnp.float32))
    start = (jnp.int32(0), cache, state.row, empty)
    return lax.while_loop(more, body, start)[3]
