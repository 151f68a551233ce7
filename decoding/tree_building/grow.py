"""Growing a tree with a language model: what the model-based drafters share."""

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array, lax

from decoding import base, tree
from models.base import ALL, Block, Visibility, causal_block, pack_bits
from models.errors import MethodError

LAWS = (base.IID, base.NO_REPLACE)  # the draws whose laws a verifier must know


def empty(ctx: base.Context, topology: base.Topology) -> base.TokenTree:
    """The root, and room for the topology's nodes."""
    batch, nodes = ctx.tokens.shape[0], sum(topology.widths)
    tokens = jnp.zeros((batch, nodes), jnp.int32).at[:, 0].set(ctx.root)
    kind = jnp.zeros((batch, nodes), jnp.int32).at[:, 0].set(base.CANDIDATE)
    parents = jnp.zeros((batch, nodes), jnp.int32).at[:, 0].set(-1)
    return base.TokenTree(
        tokens,
        parents,
        kind,
        draw=topology.draw,
        depth=topology.depth,
        linear=topology.linear,
    )


def put(
    nodes: base.TokenTree,
    widths: tuple[int, ...],
    level: int,
    tokens: Array,
    local: Array,
    there: Array,
    laws: Array,
) -> base.TokenTree:
    """Write the level below `level`: its nodes' tokens, parents and existence, [B, w].

    `local` are the parents' places in `level`, whose `laws` are kept where the draw
    needs them.
    """
    here = sum(widths[:level])
    below = here + widths[level]
    span = slice(below, below + widths[level + 1])
    kind = jnp.where(there, base.CANDIDATE, base.PAD).astype(jnp.int32)
    nodes = replace(
        nodes,
        tokens=nodes.tokens.at[:, span].set(tokens),
        parents=nodes.parents.at[:, span].set(here + local),
        kind=nodes.kind.at[:, span].set(kind),
    )
    if nodes.logits is None:
        return nodes
    at = slice(here, here + laws.shape[1])
    return replace(nodes, logits=nodes.logits.at[:, at].set(laws))


def catch_up(
    model: Any, params: Any, cache: Any, ctx: base.Context, size: int
) -> tuple[Any, Array]:
    """The cache with all committed tokens but the last, or the last two; and the calls.

    For drafters that do not ask their model every round, or whose drafts are not all
    their model's: it may be any number of tokens behind. `size` tokens are read a call.
    """
    none = jnp.zeros((ctx.length.shape[0], 0), jnp.int32)

    def body(carry: tuple) -> tuple:
        cache, calls = carry
        count = jnp.clip(ctx.length - 1 - cache.length, 0, size)
        at = cache.length[:, None] + jnp.arange(size, dtype=jnp.int32)
        tokens = jnp.take_along_axis(ctx.tokens, at, 1, mode="clip")
        block = causal_block(tokens, cache.length, count, cache.size)
        _, cache = model(params, cache, block)
        return cache.commit(none, count - 1, linear=True), calls + 1

    def behind(carry: tuple) -> Array:
        return (ctx.length - 2 > carry[0].length).any()

    return lax.while_loop(behind, body, (cache, jnp.int32(0)))


def root_logits(
    model: Any, params: Any, cache: Any, ctx: base.Context, size: int = 2
) -> tuple[Array, Any]:
    """The raw logits float32[B, V] of the root, whose keys the cache then holds.

    They lie in the slot after the cache's committed part, where `grow` wants them. The
    cache may lack `size` tokens, the root among them.
    """
    logits, _, cache = root(model, params, cache, ctx, (), size)
    return logits, cache


def taps(topology: base.Topology) -> tuple[str, ...]:
    """The states of a draft model that the topology watches."""
    return () if topology.watch is None else ("norm",)


def root(
    model: Any,
    params: Any,
    cache: Any,
    ctx: base.Context,
    wanted: tuple[str, ...] = (),
    size: int = 2,
) -> tuple[Array, Any, Any]:
    """`root_logits`, and between logits and cache the root's `own` (see `sprout`).

    `wanted`: `taps` of the topology; without any `own` is ().
    """
    pending = ctx.length - cache.length
    at = cache.length[:, None] + jnp.arange(size, dtype=jnp.int32)
    tokens = jnp.take_along_axis(ctx.tokens, at, 1, mode="clip")
    block = causal_block(tokens, cache.length, pending, cache.size, logits_at=ALL)
    out, cache = model(params, cache, block, wanted)
    at = (pending - 1)[:, None, None]
    logits = jnp.take_along_axis(out.logits, at, 1, mode="clip")[:, 0]
    own = _own(out, wanted)
    own = jax.tree.map(lambda x: jnp.take_along_axis(x, at, 1, mode="clip"), own)
    return logits, own, replace(cache, length=ctx.length - 1)


def _own(out: Any, wanted: tuple[str, ...]) -> Any:
    """What the nodes of a draft model hand on: a watched state, or nothing."""
    return out.hidden[wanted[0]] if wanted else ()


def read_prompt(model: Any, params: Any, cache: Any, outcome: base.Outcome) -> Any:
    """The draft model's cache after a chunk of the prompt."""
    verdict = outcome.verdict
    count = verdict.count + 1
    block = causal_block(outcome.tree.tokens, cache.length, count, cache.size)
    _, cache = model(params, cache, block)
    return cache.commit(verdict.path, verdict.count, linear=True)


def part(
    outcome: base.Outcome, topology: base.Topology, count: Array, active: Array
) -> base.Outcome:
    """A round as the model sees it that grew only the first nodes of its tree.

    `count` int32[B] accepted drafts lie in that part; -1 where its model did not run.
    `active` bool[B]: rows from which the topology may learn.
    """
    nodes, deep = topology.nodes, topology.depth
    whole, verdict = outcome.tree, outcome.verdict
    index = jnp.arange(deep, dtype=jnp.int32)
    tokens = tree.committed(whole, verdict)[0]
    following = jnp.take_along_axis(tokens, jnp.maximum(count, 0)[:, None], 1)[:, 0]
    assert outcome.target.logits is not None and outcome.warped is not None
    return base.Outcome(
        replace(
            whole,
            tokens=whole.tokens[:, :nodes],
            parents=whole.parents[:, :nodes],
            kind=whole.kind[:, :nodes],
            logits=None if whole.logits is None else whole.logits[:, :nodes],
            slots=None if whole.slots is None else whole.slots[:, :nodes],
            depth=deep,
            linear=topology.linear,
        ),
        base.Verdict(
            jnp.where(index < count[:, None], verdict.path[:, :deep], 0),
            count,
            following,
        ),
        replace(outcome.target, logits=outcome.target.logits[:, :nodes]),
        outcome.warped[:, :nodes],
        active,
    )


def grow(
    model: Any,
    params: Any,
    cache: Any,
    ctx: base.Context,
    topology: base.Topology,
    keys: Array,
    state: base.State,
    logits: Array,
    own: Any = (),
) -> tuple[base.TokenTree, base.State, Any]:
    """Expand level by level; one call of `model` a level, the last level's excepted.

    `cache` is the model's, the root's keys in slot `cache.length`; `logits`
    float32[B, V] are the root's, raw, and `own` what `root` gives.
    """
    wanted = taps(topology)

    def call(cache: Any, above: Any, block: Block, level: int) -> tuple:
        out, cache = model(params, cache, block, wanted)
        return out.logits, _own(out, wanted), cache

    return sprout(call, cache, cache.length, ctx, topology, keys, state, logits, own)


def sprout(
    call: Callable[[Any, Any, Block, int], tuple[Array, Any, Any]],
    cache: Any,
    prefix: Array,
    ctx: base.Context,
    topology: base.Topology,
    keys: Array,
    state: base.State,
    logits: Array,
    own: Any = (),
) -> tuple[base.TokenTree, base.State, Any]:
    """Expand level by level with whatever gives the laws of a level's nodes.

    `call(cache, above, block, level) -> raw logits, own, cache` is made for the `w`
    nodes of each level but the root's and the last: `own` [B, w, ...] is what those
    nodes hand to their children, `above` what they were handed, first the root's `own`
    [B, 1, ...]. `logits` float32[B, V] are the root's, raw. The block's slots are
    `prefix` int32[B] and on, level by level, the root in the first; node `i` of those
    that are run is bit `i` of its ancestors. `calls` counts the calls made, and so is
    -1 where the root was not run either.
    """
    nodes, run = empty(ctx, topology), topology.run
    eye = pack_bits(jnp.eye(sum(run), dtype=bool))
    if topology.draw in LAWS:
        laws = jnp.zeros((*nodes.tokens.shape, logits.shape[-1]), jnp.float32)
        nodes = replace(nodes, logits=laws)
    batch = nodes.tokens.shape[0]
    bits = jnp.broadcast_to(eye[:1], (batch, 1, eye.shape[1]))
    at = base.State(
        jax.tree.map(lambda x: x[:, None], ctx.transform.row), ctx.transform.shared
    )
    raw, start, slot = logits[:, None], 0, 0
    live = jnp.ones((batch,), bool)
    ran = [jnp.broadcast_to(grows(topology, state), (batch,))]

    def noise(level: Array) -> Array:
        return ctx.noise(ctx.length + level)

    for level in range(topology.depth):
        end = start + topology.widths[level]
        if topology.more is not None:
            live = live & topology.more(state, level)
        if level:
            span = slice(start, start + run[level])
            index = jnp.arange(slot, slot + run[level], dtype=jnp.int32)
            positions = (ctx.length + level - 1)[:, None]
            block = Block(
                nodes.tokens[:, span],
                jnp.broadcast_to(positions, (batch, run[level])),
                prefix[:, None] + index,
                Visibility(prefix, bits),
                logits_at=ALL,
            )
            raw, own, cache = _call(call, cache, own, block, level, live, topology)
            ran.append(live)
        if topology.watch is not None:
            _check(own)
            state = topology.watch(ctx.params, state, own, level)
        fold = jax.vmap(jax.random.fold_in, in_axes=(0, None))
        laws = ctx.warp(raw, at)
        nodes, state = topology.expand(
            fold(keys, level), state, nodes, laws, noise, level
        )
        below = slice(end, end + topology.widths[level + 1])
        if topology.more is not None:
            kind = jnp.where(live[:, None], nodes.kind[:, below], base.PAD)
            nodes = replace(nodes, kind=nodes.kind.at[:, below].set(kind))
        if level + 1 == topology.depth:
            break
        slot += run[level]
        below = slice(end, end + run[level + 1])
        local = nodes.parents[:, below] - start
        seen = eye[slot : slot + run[level + 1]]
        bits = jnp.take_along_axis(bits, local[..., None], 1) | seen
        own = jax.tree.map(lambda x, local=local: tree.pick(x, local), own)
        at = _follow(ctx, at, local, nodes.tokens[:, below], raw)
        start = end
    calls = jnp.stack(ran).sum(0) - 1 if topology.more else len(ran) - 1
    return _finish(topology, replace(nodes, calls=calls), state, ran), state, cache


def grows(topology: base.Topology, state: base.State) -> Array:
    """bool[]: whether any row drafts this round; if none does, the root is not run."""
    if topology.more is None:
        return jnp.bool_(True)
    return topology.more(state, 0).any()


def _call(call, cache, above, block, level, live, topology):
    """The laws of a level; the call is left out where no row grows on."""
    if topology.more is None:
        return call(cache, above, block, level)
    raw, own, _ = jax.eval_shape(
        lambda cache, above, block: call(cache, above, block, level),
        cache,
        above,
        block,
    )

    def nothing(cache: Any) -> tuple:
        zeros = jax.tree.map(lambda x: jnp.zeros(x.shape, x.dtype), (raw, own))
        return (*zeros, cache)

    return lax.cond(
        live.any(), lambda cache: call(cache, above, block, level), nothing, cache
    )


def _check(own: Any) -> None:
    """One vector a node, which is what a topology can watch."""
    if [x.ndim for x in jax.tree.leaves(own)] != [3]:
        raise MethodError(
            "the topology watches the states of the draft, and this drafter shows none:"
            " use drafters/model or a head with states of its own"
        )


def _finish(topology, nodes, state, ran) -> base.TokenTree:
    """The tree as it is verified, with the slots of its nodes where they differ."""
    if topology.more is None and topology.prune is None and not topology.beam:
        return nodes
    slots, slot = [], 0
    for width, run, live in zip(topology.widths, topology.run, (*ran, ran[0])):
        own = np.where(np.arange(width) < run, slot + np.arange(width), -1)
        slots.append(jnp.where(live[:, None], jnp.asarray(own, jnp.int32), -1))
        slot += run
    nodes = replace(nodes, slots=jnp.concatenate(slots, 1))
    if topology.prune is None:
        return nodes
    return tree.select(nodes, topology.prune(state, nodes))


def commit(cache: Any, topology: base.Topology, outcome: base.Outcome) -> Any:
    """The draft model's cache, with what it has seen of the accepted path.

    It has run every node that has children, and so all of the path but its last node
    perhaps: the next round catches up. Node `i` is in slot `tree.slots[i]` past the
    cache's length, -1 if it was not run; without `slots` it is in slot `i`, and only
    the deepest level was not run.
    """
    nodes, verdict = outcome.tree, outcome.verdict
    if nodes.slots is None:
        seen = jnp.minimum(verdict.count, topology.depth - 1)
        return cache.commit(verdict.path, seen, topology.linear)
    path = jnp.take_along_axis(nodes.slots, verdict.path, 1)
    index = jnp.arange(path.shape[1], dtype=jnp.int32)
    seen = ((path >= 0) & (index < verdict.count[:, None])).sum(1)
    seen = jnp.minimum(seen.astype(jnp.int32), verdict.count)  # -1: nothing committed
    seen = jnp.where(nodes.slots[:, 0] < 0, -1, seen)
    return cache.commit(jnp.maximum(path, 0), seen, nodes.linear)


def _follow(ctx, at, local, tokens, raw) -> base.State:
    """The transform's states at the next level, from those of this one."""
    above = jax.tree.map(lambda x: tree.pick(x, local), at.row)
    parent = base.State(above, at.shared)
    if ctx.law.advance is None:
        return parent
    before = tree.pick(raw, local)
    return tree.over_nodes(ctx.law.advance, 3)(parent, tokens, before, {})
