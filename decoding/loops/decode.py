"""The decode loop: draft, forward, verify, commit, in one `lax.while_loop`.

One invariant: *the cache holds every committed token but the last; node 0 of a block is
that last token.* Slots past `length` are scratch. A chunk of the prompt is the same
round with nothing to verify.
"""

import functools
from dataclasses import dataclass, field, replace
from typing import Any

import jax
import jax.numpy as jnp
from flax import struct
from jax import Array, lax

from decoding import base, noise, tree
from decoding.block_width.policy import PAPER, WidthPolicy
from decoding.hypotheses.drafts import Lanes
from decoding.hypotheses.nodes import Select
from decoding.hypotheses.prefill import Prefill
from decoding.hypotheses.rank import Rank
from decoding.hypotheses.reward import Reward
from decoding.loops import (
    admission,
    block_choice,
    chosen_layers,
    commit,
    host_words,
    pause,
    state_sharding,
    stats,
    streams,
)
from models.base import ALL, Block, LanguageModel
from models.errors import MethodError

TARGET = "target"


@struct.dataclass
class DecodeState:
    """The carry of the loop. All leaves but the `shared` ones have a leading `B`."""

    tokens: Array  # int32[B, T]: prompt and text
    origin: Array  # int8[B, T]: depth of an accepted draft, 0 for a target's token
    logprobs: Array  # float32[B, T]: log-probability under the raw target
    length: Array  # int32[B]
    limit: Array  # int32[B]: length at which a row ends
    done: Array  # bool[B]
    key: Array  # key[B]: the requests' keys
    sampled: Array  # bool[B]: rows of a temperature above 0; the others are greedy
    ends: Array  # int32[B, E]: EOS and stop tokens, padded with -1
    roots: dict[str, Array]  # stream -> int32[B]: the stream's own last token
    caches: dict[str, Any]  # "target" and the streams
    drafter: base.State
    verifier: base.State
    transform: base.State
    policy: Any
    exit: base.State
    width: base.State
    stop: base.State  # row: int32[B], a state of the automaton of all rows, `shared`
    counters: stats.Counters

    order = None  # of commits: a canvas has one


@dataclass(frozen=True)
class Program:
    """A composed method; the compiled functions close over it."""

    model: LanguageModel  # already wrapped by the drafter and the exit
    drafter: base.Drafter
    verifier: base.Verifier
    transform: base.LogitsTransform
    policy: base.CachePolicy
    exit: base.ExitPolicy = base.WHOLE
    width: WidthPolicy = PAPER
    widths: tuple[int, ...] = ()  # of blocks to compile, in rising order
    streams: dict[str, Any] = field(default_factory=dict)
    stop: bool = False  # whether the state carries a stop automaton
    select: Select | None = None  # of a search; see `loops.search`
    rank: Rank | None = None  # rows of a prompt that are ranked
    reward: Reward | None = None  # what the search values texts by
    prefill: Prefill | None = None  # what changes the cache while prompts are read
    lanes: Lanes | None = None  # drafts for all lanes of a search, by a model
    texts: base.Drafter | None = None  # or by what each lane's text tells
    chunk: int = 0  # tokens of a prefill chunk; 0: as `prefill.chunk_size`
    is_canvas = False

    @property
    def vocab(self) -> int:
        return self.model.config.vocab_size

    @property
    def taps(self) -> tuple:
        taps = self.drafter.taps + self.verifier.taps + self.exit.taps
        return tuple(dict.fromkeys(taps + streams.taps(self.streams)))

    def weights(
        self, params: base.Params, drafter: base.State, exits: base.State
    ) -> Any:
        """Return the weights argument of the model call."""
        return self.exit.weights(self.drafter.weights(params, drafter), params, exits)


def context(program: Program, params: base.Params, state: DecodeState) -> base.Context:
    """Build the context that components receive from `state`."""

    def noise_at(position: Array, ids: Array | None = None) -> Array:
        draw = functools.partial(_noise, size=program.vocab, ids=ids)
        return jax.vmap(draw)(state.key, state.sampled, position)

    return base.Context(
        params,
        state.tokens,
        state.length,
        state.caches[TARGET],
        program.transform,
        state.transform,
        noise_at,
        ~state.done,
    )


def _noise(
    key: Array, sampled: Array, position: Array, size: int, ids: Array | None = None
) -> Array:
    """★ Return the noise of the token at a position: 0 where a row is greedy."""
    return jnp.where(sampled, noise.at_position(key, position, size, ids), 0.0)


def _beside(state: DecodeState, nodes: base.TokenTree, name: str) -> Block:
    """Make the block of a round's nodes for a stream that is a model."""
    cache = state.caches[name]
    index = jnp.arange(nodes.tokens.shape[1], dtype=jnp.int32)
    return Block(
        nodes.tokens.at[:, 0].set(state.roots[name]),
        cache.length[:, None] + tree.depths(nodes),
        cache.length[:, None] + index,
        tree.visibility(nodes, cache.length),
    )


def round_(
    program: Program, params: base.Params, state: DecodeState
) -> tuple[DecodeState, base.Outcome]:
    """Run one round for every row that is not done; return its whole outcome too."""
    one, never = jnp.int32(1), jnp.int32(state.done.shape[0] + 1)
    state, _, outcome = _round(program, params, state, one, never, whole=True)
    return state, outcome


def _round(program, params, state, most, free, whole):
    """Draft, choose the block's width, and run the rest of the round at that width.

    In a pause of the drafter it runs at most `most` rounds, until `free` rows are done.
    What reads no logits runs after the choice: it is compiled once for all widths.

    Returns:
        The new state, the number of rounds, and the outcome on the `whole` draft, or
        None unless that is asked for: the loop on the device needs none.
    """
    active, reads = ~state.done, None
    if program.policy.reads is not None:
        reads = program.policy.reads(state.policy, state.caches[TARGET])
    draft, drafter, cache = _draft(program, params, state)
    caches = {**state.caches, TARGET: cache}
    state = replace(state, drafter=drafter, caches=caches)
    size = draft.tokens.shape[1]
    widths = program.widths or (size,)
    width = jnp.int32(size)
    if program.width.keep is None and len(widths) == 1:
        end = _finish(program, params, state, draft, None, size, whole)
    else:
        live, choice, state = block_choice.narrowest(program, state, draft)
        width = jnp.asarray(widths, jnp.int32)[choice]

        def at(width: int) -> Any:
            rest = (draft, live, width, whole)
            return lambda state: _finish(program, params, state, *rest)

        def plain(state: DecodeState) -> Any:
            rest = jnp.minimum(program.width.rest(state.width), most)
            about = functools.partial(context, program, params)
            step = functools.partial(_commit, program, params)
            rounds = (state, draft, rest, free, whole)
            return pause.run(program.drafter, about, step, *rounds)

        functions = [*map(at, widths)]
        pauses = program.width.plan is not None and program.drafter.pauses
        if pauses and widths[0] == 1:
            functions[0] = plain
        end = block_choice.one_of(choice, functions, state)
    state, verified, outcome = end
    draft = replace(draft, kind=verified.kind, calls=verified.calls)
    chosen = state.width
    if program.width.observe is not None:
        tested = replace(draft, kind=verified.tested)
        seen = (tested, verified.followed, width, active, verified.turns)
        chosen = program.width.observe(chosen, *seen)
    counters = commit.count(state.counters, draft, verified, active, reads)
    state = replace(state, width=chosen, counters=counters)
    return state_sharding.pinned(state), verified.turns, outcome


def _draft(program, params, state):
    """Draft, unless the width policy pauses the drafter: the tree is its root then.

    Returns:
        The tree, the drafter's state, and the target's cache.
    """
    ctx = context(program, params, state)
    keys = noise.for_role(state.key, noise.DRAFT, state.length)
    if program.width.plan is not None:
        depth = program.width.plan(state.width)
        if not program.drafter.pauses:
            depth = jnp.maximum(depth, 1)
        ctx = replace(ctx, depth=depth)

    def draft(drafter: base.State, cache: Any) -> tuple:
        tree, drafter, cache = program.drafter.draft(
            keys, replace(ctx, cache=cache), drafter
        )
        calls = jnp.asarray(tree.calls, jnp.int32)
        calls = jnp.broadcast_to(calls, state.done.shape)
        return replace(tree, calls=calls), drafter, cache

    arguments = (state.drafter, state.caches[TARGET])
    if ctx.depth is None or not program.drafter.pauses:
        return draft(*arguments)
    like = jax.eval_shape(lambda *arguments: draft(*arguments)[0], *arguments)

    def pause(drafter: base.State, cache: Any) -> tuple:
        return tree.paused(like, ctx.root), drafter, cache

    return lax.cond(ctx.depth > 0, draft, pause, *arguments)


def _finish(program, params, state, draft, live, width, whole):
    """Run a round from its draft on, with the `live` nodes in a block of `width`.

    `live` bool[B, N] are at most `width` nodes a row; None: all of them.

    Returns:
        The new state but for `width` and most `counters`, what became of the whole
        draft, and with `whole` the round's outcome on it.
    """
    drafted, kept = draft, None
    if live is not None:
        draft, kept = tree.part(drafted, live, width)
    after, outcome, drafts = _commit(program, params, state, draft)
    ctx = context(program, params, after)
    lifted = outcome if kept is None else tree.lifted(outcome, drafted, kept)
    seen = outcome if program.drafter.reads_parts else lifted
    drafter = program.drafter.observe(ctx, state.drafter, seen)
    observed = replace(after, drafter=drafter)
    verified = commit.Verified(
        lifted.tree.kind,
        jnp.asarray(outcome.tree.calls),
        lifted.verdict,
        drafts,
        outcome.active.astype(jnp.int32),
        jnp.int32(1),
        lifted.tree.kind,
        lifted.verdict,
    )
    # Pinned also within a loop of one turn, whose carry the compiler would else place.
    return state_sharding.pinned(observed), verified, lifted if whole else None


def _commit(program, params, state, draft):
    """Run a round on `draft`, but for what the drafter makes of it.

    Returns:
        The new state, the outcome, and how many committed tokens are drafts, int32[B].
    """
    active, cache = ~state.done, state.caches[TARGET]
    ctx = context(program, params, state)
    keys = noise.for_role(state.key, noise.EXIT, state.length)
    exits, cache, calls = program.exit.plan(keys, ctx, state.exit)
    calls = jnp.asarray(draft.calls + calls, jnp.int32)
    draft = replace(draft, calls=jnp.broadcast_to(calls, active.shape))
    slots, visibility = program.policy.place(state.policy, cache, draft)
    positions = state.length[:, None] - 1 + tree.depths(draft)
    block = Block(draft.tokens, positions, slots, visibility, logits_at=ALL)
    live = (draft.kind != base.PAD) & active[:, None]
    block = chosen_layers.put(program.exit, exits, block, live)
    weights = program.weights(params, state.drafter, exits)
    out, cache = program.model(weights, cache, block, program.taps)
    logits: Any = out.logits
    about = functools.partial(_beside, state, draft)
    texts = host_words.of_tree(program, state, draft)
    beside = (params, out.hidden, state.caches, about, texts)
    aux, caches = streams.run(program.streams, *beside)

    at_nodes = tree.node_states(program.transform, state.transform, draft, logits, aux)
    apply = jax.vmap(program.transform.apply, in_axes=(base.ROWS, 0, 0))
    warped = jax.vmap(apply, in_axes=(base.ROWS, 0, 0))(at_nodes, logits, aux)
    verdict = _verify(program, state, draft, out, warped)

    tokens, count = tree.committed(draft, verdict)
    new, stop, ended = commit.cut(program, state, cache, tokens, count)
    new = jnp.where(active, new, 0)
    # A draft that ends a text still counts as a draft.
    drafts = jnp.minimum(new, tree.drafted(verdict))
    token = jnp.take_along_axis(tokens, jnp.maximum(new - 1, 0)[:, None], 1)[:, 0]
    verdict = base.Verdict(verdict.path, new - 1, token, verdict.drafted)
    outcome = base.Outcome(draft, verdict, out, warped, active)

    cache, policy = program.policy.retain(state.policy, cache, outcome)
    caches[TARGET] = cache
    for name in state.roots:
        caches[name] = caches[name].commit(verdict.path, verdict.count, draft.linear)
    after = commit.write(state, outcome, tokens, new, drafts).replace(
        length=state.length + new,
        done=state.done | ended,
        roots={name: jnp.where(active, token, r) for name, r in state.roots.items()},
        caches=caches,
        transform=_advance(program, state, at_nodes, aux, outcome),
        policy=policy,
        stop=stop,
        counters=chosen_layers.count(state.counters, block, outcome),
    )
    ctx = context(program, params, after)
    return (
        replace(after, exit=program.exit.observe(ctx, exits, outcome)),
        outcome,
        drafts,
    )


def _verify(program, state, draft, out, warped):
    keys = noise.for_role(state.key, noise.VERIFY, state.length)

    if draft.draw not in program.verifier.draws:
        raise MethodError(
            f"the draft's draw is {draft.draw!r} and the verifier takes "
            f"{program.verifier.draws}: choose another verifier, or leave it out"
        )

    def one(key, request, sampled, length, verifier, nodes, logits, hidden):
        def at(depth: Array) -> Array:
            return _noise(request, sampled, length + depth, program.vocab)

        target = base.Target(logits, hidden, at, sampled)
        return program.verifier.verify(key, verifier, nodes, target)

    rows = (keys, state.key, state.sampled, state.length)
    return jax.vmap(one, in_axes=(0, 0, 0, 0, base.ROWS, 0, 0, 0))(
        *rows, state.verifier, draft, warped, out.hidden
    )


def _advance(program, state, at_nodes, aux, outcome):
    """Return the transform's state after the last committed token."""
    transform = program.transform
    if transform.advance is None:
        return state.transform
    node = tree.last_node(outcome.verdict)
    row = jax.tree.map(lambda x: tree.pick(x, node), at_nodes.row)
    before = base.State(row, at_nodes.shared)
    logits, aux = jax.tree.map(
        lambda x: tree.pick(x, node), (outcome.target.logits, aux)
    )
    step = tree.over_rows(transform.advance, 3)
    moved = step(before, outcome.verdict.token, logits, aux)
    return tree.masked(outcome.active, moved, state.transform)


def idle(state: DecodeState) -> DecodeState:
    """Return the state with no request in any row."""
    return replace(state, done=jnp.ones_like(state.done))


def advance(
    program: Program,
    params: base.Params,
    state: DecodeState,
    rounds: Array,
    free: Array,
) -> DecodeState:
    """Run rounds on the device until `free` rows are done or `rounds` have passed.

    `rounds` and `free` are int32[]: numbers of rounds and of finished rows.
    """

    def more(carry: tuple) -> Array:
        i, state = carry
        return (i < rounds) & (state.done.sum() < free)

    def body(carry: tuple) -> tuple:
        i, state = carry
        most = rounds - i
        state, turns, _ = _round(program, params, state, most, free, whole=False)
        if program.rank is not None and program.rank.retire is not None:
            state = admission.retired(program.rank, program.rank.retire, state)
        return i + turns, state

    return lax.while_loop(more, body, (jnp.int32(0), state))[1]
