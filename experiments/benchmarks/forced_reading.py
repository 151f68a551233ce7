"""Read cases with their answers under a cache policy, many tokens in a call.

    read(lm, cases, policy) -> Reading

The prompt is read in chunks, the policy finishes it, and the expected tokens are read
as chains whose nodes are all accepted, cut where the policy's `room` says. A policy
that is path-pure then gives each token the law of decoding one by one
(`long_nats.nats`) in a tenth of the calls; prompts and answers may be of any lengths.
"""

import functools
import math
from collections.abc import Sequence
from dataclasses import replace
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array, lax

from decoding import Spec, base, transform_chain, tree
from decoding.loops import initial_state, prefill
from experiments.benchmarks.long_context import Case
from models.base import ALL, NONE, Block
from models.errors import ConfigError

BLOCK = 32  # expected tokens in a call


class Reading(NamedTuple):
    """What the model makes of each case's expected tokens, each after those before."""

    nats: list[list[float]]  # -log p
    best: list[list[int]]  # the likeliest token in the place of each
    slots: list[float]  # of a layer, that an expected token's node found, on average


def read(
    lm: Any, cases: Sequence[Case], spec: Spec, block: int = BLOCK, draft: Any = None
) -> Reading:
    """Read all cases as the rows of one cache.

    Args:
        lm: a loaded transformer.
        cases: each with one expected token at least.
        spec: a cache policy.
        block: nodes of a call behind the prompt.
        draft: the model of a policy that looks ahead, which may guess as many tokens
            as a case expects.

    Raises:
        ConfigError: a policy that is not path-pure, whose figures would depend on
            `block`.
    """
    policy = built(lm, spec, draft)
    if not policy.path_pure:
        raise ConfigError(f"{spec.name} is not path-pure: use long_nats.nats")
    texts = [[*case.prompt, *case.expected] for case in cases]
    whole = np.asarray([len(text) for text in texts], np.int32)
    begins = np.asarray([len(case.prompt) for case in cases], np.int32)
    tokens = np.zeros((len(cases), whole.max()), np.int32)
    for row, text in zip(tokens, texts):
        row[: len(text)] = text
    new = int((whole - begins).max())
    dtype = jax.tree.leaves(lm.params)[0].dtype
    sizes = sizes_of(len(cases), int(begins.max()), new, block, dtype)
    cache = made(lm.model, policy, sizes, jnp.asarray(begins))
    state = policy.init(cache)
    # Weights are arguments: as constants, XLA on CPU made NaN of large batches.
    first = functools.partial(_read, policy, lm.model, size=_chunk(cache), logits=NONE)
    then = functools.partial(_read, policy, lm.model, size=block, logits=ALL)
    given = (lm.params, jnp.asarray(tokens))
    cache, state, _ = jax.jit(first)(*given, cache, state, jnp.asarray(begins))
    if policy.lookahead is not None:
        params = {"draft": draft.params, "target": lm.params}
        ahead = functools.partial(_look_ahead, policy, lm.model)
        rest = (jnp.asarray(begins), jnp.asarray(whole - begins))
        cache = jax.jit(ahead)(params, given[1], cache, state, *rest)
    if policy.finish is not None:
        cache, state = jax.jit(policy.finish)(state, cache)
    found = jax.jit(then)(*given, cache, state, jnp.asarray(whole))[2]
    nats, best, slots = jax.device_get(found)
    spans = [slice(first - 1, last - 1) for first, last in zip(begins, whole)]
    return Reading(
        [row[span].tolist() for row, span in zip(nats, spans)],
        [row[span].tolist() for row, span in zip(best, spans)],
        (slots / (whole - begins)).tolist(),
    )


def built(lm: Any, spec: Spec, draft: Any = None) -> base.CachePolicy:
    """Build a policy for a target, with the draft model that it may need."""
    parts = {"model": lm.model, "eos": tuple(lm.model.config.eos)}
    if draft is not None:
        parts["draft"] = draft.model
    return spec.build(parts)


def sizes_of(batch: int, prompt: int, new: int, block: int, dtype: Any) -> base.Sizes:
    """Size a cache as `generate` does for such rows."""
    slots = -(-(initial_state.bucket(prompt + new) + block) // 16) * 16
    return base.Sizes(batch, slots, prompt, new, block, dtype)


def made(model: Any, policy: base.CachePolicy, sizes: base.Sizes, length: Array) -> Any:
    """Make the empty cache of prompts of `length` int32[B] tokens."""
    if policy.make is not None:
        return policy.make(model, sizes, length)
    return model.init_cache(sizes.batch, sizes.slots, sizes.dtype)


def kv_bytes(
    lm: Any,
    spec: Spec,
    prompt: int,
    new: int,
    dtype: Any,
    read: bool = True,
    draft: Any = None,
) -> int:
    """Count a row's bytes while decoding one node a call; `stats.kv_bytes` of it.

    Without `read` while its prompt is read.
    """
    policy = built(lm, spec, draft)
    sizes = sizes_of(1, prompt, new, 1, dtype)

    def whole() -> Any:
        cache = made(lm.model, policy, sizes, jnp.full((1,), prompt, jnp.int32))
        if policy.finish is None or not read:
            return cache
        return policy.finish(policy.init(cache), cache)[0]

    leaves = jax.tree.leaves(jax.eval_shape(whole))
    return sum(math.prod(x.shape) * x.dtype.itemsize for x in leaves)


def _chunk(cache: Any) -> int:
    """Return tokens of a chunk of the prompt, a power of two."""
    spans = [layer.span for layer in cache.layers if layer.span]
    most = min([prefill.CHUNK, *spans])
    return 1 << most.bit_length() - 1


def _look_ahead(
    policy: base.CachePolicy,
    model: Any,
    params: Any,
    tokens: Array,
    cache: Any,
    state: Any,
    length: Array,
    most: Array,
) -> Any:
    """Run what the policy guesses behind prompts of `length` int32[B], uncommitted.

    As `prefill.look_ahead` does; a guess has at most `most` int32[B] tokens.
    """
    assert policy.lookahead is not None
    law, noise = transform_chain.chain(), lambda position: jnp.zeros(())
    rows = (tokens, length, cache, law, base.State(), noise)
    ctx = base.Context(params, *rows, jnp.ones(length.shape, bool))
    guess, known, _ = policy.lookahead(ctx, most)
    nodes = tree.chain(ctx.root, guess, known)
    places, seen = policy.place(state, cache, nodes)
    index = jnp.arange(guess.shape[1] + 1, dtype=jnp.int32)
    places = jnp.where(index <= known[:, None], places, cache.size + index)
    at = length[:, None] - 1 + index
    block = Block(nodes.tokens, at, places, seen, logits_at=NONE)
    return model(params["target"], cache, block)[1]


def _read(
    policy: base.CachePolicy,
    model: Any,
    params: Any,
    tokens: Array,
    cache: Any,
    state: Any,
    length: Array,
    *,
    size: int,
    logits: Any,
) -> tuple:
    """Read all tokens before `length` int32[B] but the last of each row."""
    batch, width = tokens.shape
    rows = jnp.arange(batch)[:, None]
    index = jnp.arange(size, dtype=jnp.int32)
    zeros = jnp.zeros((batch, width))
    found = (zeros, zeros.astype(jnp.int32), jnp.zeros(batch))

    def body(carry: tuple) -> tuple:
        cache, state, (nats, best, slots) = carry
        start = cache.length
        block, nodes, count = prefill.chunk(tokens, length, cache, size)
        if policy.room is not None:
            coming = prefill.chunk(tokens[:, 1:], length, cache, size)[0]
            count = jnp.minimum(count, policy.room(state, cache, coming.tokens))
            nodes = tree.chain(block.tokens[:, 0], block.tokens[:, 1:], count - 1)
        held = start if policy.reads is None else policy.reads(state, cache)
        places, seen = policy.place(state, cache, nodes)
        live = index < count[:, None]
        places = jnp.where(live, places, cache.size + index)
        block = replace(block, slots=places, visibility=seen, logits_at=logits)
        out, cache = model(params, cache, block)
        if out.logits is not None:
            at = jnp.where(live, start[:, None] + index, width)
            labels = jnp.take_along_axis(tokens, at + 1, 1, mode="clip")
            logs = jax.nn.log_softmax(out.logits.astype(jnp.float32))
            own = -jnp.take_along_axis(logs, labels[..., None], 2)[..., 0]
            nats = nats.at[rows, at].set(own, mode="drop")
            best = best.at[rows, at].set(logs.argmax(-1).astype(jnp.int32), mode="drop")
            slots = slots + count * held + count * (count - 1) / 2
        path = jnp.broadcast_to(nodes.parents[:, 1:] + 1, (batch, nodes.depth))
        last = jnp.minimum(start + count, width - 1)[:, None]
        token = jnp.take_along_axis(tokens, last, 1)[:, 0]
        verdict = base.Verdict(path, count - 1, token)
        is_prompt = logits == NONE
        outcome = base.Outcome(nodes, verdict, out, None, count > 0, is_prompt)
        cache, state = policy.retain(state, cache, outcome)
        return cache, state, (nats, best, slots)

    more = lambda carry: (carry[0].length < length - 1).any()
    return lax.while_loop(more, body, (cache, state, found))
