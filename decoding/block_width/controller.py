"""The block width of every round, for any drafter: the most tokens a second.

A round that drafts d levels and verifies n nodes takes t(n, d) milliseconds, measured
on this device; a round without a draft takes t_0. With

    a(d, r)  = how often the r-th child of an accepted node of depth d is accepted
    value(v) = product of a over the path of v        (the root's is 1)
    E(n, d)  = sum of the n greatest values among nodes at most d deep

the nodes of greatest value are verified, in the width, and next round drafted to the
depth, of the greatest E(n, d) / t(n, d). The rates are those of recent rounds, each
row's drawn towards the batch's. E counts tokens as Sequoia's optimiser does (Chen et
al., 2024, arXiv 2402.12374, section 4.2); measuring, cutting and pausing are ours.

If the tokens that recent drafts committed took longer than without a draft, the drafter
pauses: rounds are plain decoding. A pause ends with a short draft, a look. An account
of the time that drafts won or lost keeps their cost below `LOOK` of the time: plain
rounds pay that share in, and a pause lasts until the account covers the next look.

Which nodes are verified depends on earlier rounds and on the tree's form, never on the
tokens of the tree: under a lossless verifier the law does not change, and under a
Gumbel-coupled one neither does the text.

Cost: some thirty operations on [B, N] and [D, W, N] numbers a round; none in a pause.
"""

import functools
from dataclasses import replace

import jax
import jax.numpy as jnp
import numpy as np
from flax import struct
from jax import Array, lax

from decoding import base, tree
from decoding.block_width.costs import Costs, round_times

RANKS = 4  # siblings counted apart; the last rank pools the higher ones
FORGET = 0.94  # weight of the counts of before in each drafted round
PRIOR = 0.6  # rate of a first child that was never seen; each sibling has a third
FAITH = 2.0  # rounds that a prior weighs
GAIN = 1.15  # by which drafting is believed to pay before it is tried
SHORTEST, LONGEST = 8, 256  # rounds of a pause
FADE = 0.3  # weight of older counts after a pause, and at the start of a call
LOOK = 0.015  # share of the time that drafts which do not pay may cost
SAVED = 4.0  # rounds' time that drafts may lose at first, or after they have won more
FIRST = 0.03  # share of the time that a call's first look may cost
LADDER = (1, 2, 4, 8, 16, 64, 256)  # each is compiled: beyond 16 few are worth it
APART = 0.8  # a width that is a larger share of the whole draft's is left out


@struct.dataclass
class Rates:
    """Decayed counts of one row's drafts by depth and rank."""

    hits: Array  # float32[B, D, R]
    tries: Array  # float32[B, D, R]


@struct.dataclass
class Plan:
    """The plan for all rows, and what recent drafts earned."""

    costs: Costs
    depth: Array  # int32[]: levels to draft; 0: a pause
    then: Array  # int32[]: levels to draft in the next round
    wait: Array  # int32[]: rounds of the pause that are left; -1: a look has come
    account: Array  # float32[]: what drafts have won, in plain rounds' time
    spent: Array  # float32[1 + W]: milliseconds by `costs`: without a draft, by width
    tokens: Array  # float32[]: committed a row by drafted rounds, decayed
    time: Array  # float32[]: their milliseconds, decayed
    forced: Array  # int32[2]: index of the width, and depth; -1: chosen


def policy(widths: tuple[int, ...], pauses: bool = False) -> base.WidthPolicy:
    """Choose among the block `widths`; `pauses` tells whether the drafter can pause."""

    def init(batch: int, depth: int) -> base.State:
        none = jnp.zeros((batch, depth, RANKS), jnp.float32)
        nodes = jnp.asarray(widths, jnp.float32)
        costs = Costs(jnp.float32(1), 0.9 + 0.1 * nodes, jnp.float32(0))
        deep, zero = jnp.int32(depth), jnp.int32(0)
        free = jnp.full((2,), -1, jnp.int32)
        account, spent = jnp.float32(SAVED), jnp.zeros(len(widths) + 1, jnp.float32)
        plan = Plan(costs, deep, deep, zero, account, spent, *_trial(costs, 4), free)
        return base.State(Rates(none, none), plan)

    def plan(state: base.State) -> Array:
        chosen: Plan = state.shared
        forced = chosen.forced[1]
        return jnp.where(forced < 0, chosen.depth, forced)

    def rest(state: base.State) -> Array:
        chosen: Plan = state.shared
        left = jnp.where(chosen.forced[1] == 0, LONGEST, jnp.maximum(chosen.wait, 1))
        return jnp.where(plan(state) == 0, left, 1)

    def keep(state: base.State, nodes: base.TokenTree, sizes, active: Array):
        if not pauses:
            return best(state, nodes, sizes, active)
        root = jnp.zeros(nodes.tokens.shape, bool).at[:, 0].set(True)
        return lax.cond(
            plan(state) > 0,
            lambda: best(state, nodes, sizes, active),
            lambda: (root, jnp.int32(1), state),
        )

    def best(state: base.State, nodes: base.TokenTree, sizes, active: Array):
        chosen: Plan = state.shared
        depth, value, weight = _values(state.row, nodes)
        order = jnp.argsort(-value, axis=1, stable=True)  # parents come first
        value, depth, weight = (
            jnp.take_along_axis(x, order, 1) for x in (value, depth, weight)
        )
        limits = jnp.arange(1, nodes.depth + 1)
        inside = depth[:, None] <= limits[:, None]  # [B, D, N]
        used = jnp.cumsum(jnp.where(inside, weight[:, None], 0), 2)
        fits = (used[:, :, None] <= jnp.asarray(sizes)[:, None]) & inside[:, :, None]
        tokens = jnp.where(fits, value[:, None, None], 0).sum(3)  # [B, D, W]
        tokens = jnp.where(active[:, None, None], tokens, 0).sum(0)
        tokens = tokens / jnp.maximum(active.sum(), 1)
        rate = tokens / round_times(chosen.costs, limits, nodes.depth)
        now = jnp.maximum(plan(state), 1) - 1
        index = jnp.argmax(rate[now]).astype(jnp.int32)
        # A look is verified, whatever was counted before: else it shows nothing.
        index = jnp.where(chosen.wait < 0, _narrowest(now + 1, sizes), index)
        index = jnp.where(chosen.forced[0] < 0, index, chosen.forced[0])
        width = jnp.asarray(sizes, jnp.int32)[index]
        first = jnp.cumsum(jnp.where(inside[:, -1], weight, 0), 1) <= width
        taken = first & (value > 0)
        rows = jnp.arange(order.shape[0])[:, None]
        live = jnp.zeros(order.shape, bool).at[rows, order].set(taken)
        live = live.at[:, 0].set(True)
        if nodes.aux:
            live = live[rows, _owners(nodes)] & (nodes.kind != base.PAD)
        least = jnp.where(chosen.forced[0] < 0, 0, width)
        then = _deeper(state.row, rate, tokens, chosen.costs, now, nodes.depth)
        return live, least, base.State(state.row, replace(chosen, then=then))

    def observe(
        state: base.State,
        nodes: base.TokenTree,
        verdict: base.Verdict,
        width: Array,
        active: Array,
        rounds: Array,
    ) -> base.State:
        chosen: Plan = state.shared
        index = (width > jnp.asarray(widths[:-1], jnp.int32)).sum()
        drafted = jnp.bool_(True) if not pauses else plan(state) > 0
        rates = lax.cond(
            drafted & active.any(),
            lambda: _counted(state.row, nodes, verdict, width, active),
            lambda: state.row,
        )
        depth = state.row.hits.shape[1]
        spent = round_times(chosen.costs, plan(state), depth)[index]
        earned = jnp.where(active, verdict.count + 1, 0).sum()
        earned = earned / jnp.maximum(active.sum(), 1)
        tokens = FORGET * chosen.tokens + earned
        time = FORGET * chosen.time + spent
        won = jnp.where(drafted, earned - spent / chosen.costs.plain, LOOK * rounds)
        account = jnp.minimum(chosen.account + won, SAVED)
        after = replace(chosen, depth=chosen.then, tokens=tokens, time=time)
        plain = chosen.costs.plain * rounds
        at = jnp.where(drafted, index + 1, 0)
        total = chosen.spent.at[at].add(jnp.where(drafted, spent, plain))
        after = replace(after, account=account, spent=total)
        if pauses:
            look = _look(chosen.costs, widths, depth)
            after, rates = _pausing(chosen, after, rates, drafted, rounds, *look)
        return base.State(rates, after)

    return base.WidthPolicy(init, plan, rest, keep, observe)


@struct.dataclass
class Learned:
    """What a call leaves for the next one, as numbers of the host."""

    hits: np.ndarray  # float32[D, R]: mean over the rows
    tries: np.ndarray  # float32[D, R]
    depth: np.ndarray  # int32[]: of the last draft's plan; 0: it ended in a pause
    wait: np.ndarray  # int32[]: rounds of that pause that were left
    account: np.ndarray  # float32[]: what its drafts have won
    spent: np.ndarray  # float32[1 + W]: milliseconds by the costs that were believed


@functools.partial(jax.jit, static_argnums=2)
def informed(
    state: base.State,
    costs: Costs,
    widths: tuple[int, ...],
    learned: Learned | None = None,
) -> base.State:
    """Give a fresh state a copy of the measured `costs`: a state's are donated.

    A call begins with the rates and the depth of the one before, or within its pause,
    of which at most what `FIRST` asks is left: this text may copy where that did not.
    """
    costs = jax.tree.map(jnp.array, costs)
    tokens, time = _trial(costs, 4)
    plan = replace(state.shared, costs=costs, tokens=tokens, time=time)
    if learned is None:
        return base.State(state.row, plan)
    row: Rates = state.row
    look = _look(costs, widths, row.hits.shape[1])[1]
    most = jnp.ceil((look / costs.plain - 1) / FIRST).astype(jnp.int32)
    wait = jnp.minimum(learned.wait, jnp.maximum(most, SHORTEST))
    plan = replace(plan, depth=learned.depth, then=learned.depth, wait=wait)
    plan = replace(plan, account=learned.account)
    # Added to zeros of a row each: so every row's lie where its others do.
    hits, tries = row.hits + FADE * learned.hits, row.tries + FADE * learned.tries
    return base.State(Rates(hits, tries), plan)


def learned(state: base.State) -> Learned:
    """Read on the host what a finished call has learned."""
    rates, plan = jax.device_get((state.row, state.shared))
    rest = plan.depth, plan.wait, plan.account, plan.spent
    return Learned(rates.hits.mean(0), rates.tries.mean(0), *rest)


def ladder(nodes: int) -> tuple[int, ...]:
    """Return the widths that are compiled for drafts of `nodes` nodes."""
    return (*(w for w in LADDER if w <= APART * nodes), nodes)


def _trial(costs: Costs, rounds: int) -> tuple[Array, Array]:
    """Return tokens and time of `rounds` that paid by `GAIN`, before any was run."""
    return jnp.float32(GAIN * rounds), jnp.asarray(rounds * costs.plain, jnp.float32)


def _rates(row: Rates) -> Array:
    """Estimate how often a child is accepted, float32[B, D, R], falling by rank."""
    prior = PRIOR * (1 / 3) ** jnp.arange(RANKS)
    hits, tries = row.hits.sum((0, 1)), row.tries.sum((0, 1))
    anywhere = (hits + FAITH * prior) / (tries + FAITH)
    hits, tries = row.hits.sum(0), row.tries.sum(0)
    batch = (hits + FAITH * anywhere) / (tries + FAITH)
    rates = (row.hits + FAITH * batch) / (row.tries + FAITH)
    return lax.cummin(rates, 2)


def _ranks(nodes: base.TokenTree) -> Array:
    """Return every node's rank among its siblings, int32[B, N]."""
    if nodes.linear:
        return jnp.zeros(nodes.tokens.shape, jnp.int32)
    size = nodes.tokens.shape[1]
    same = nodes.parents[:, :, None] == nodes.parents[:, None]
    older = jnp.tril(jnp.ones((size, size), bool), -1)
    there = (nodes.kind == base.CANDIDATE)[:, None]
    return (same & older & there).sum(2, dtype=jnp.int32)


def _values(row: Rates, nodes: base.TokenTree) -> tuple[Array, Array, Array]:
    """Return depth, value and number of block nodes of every node, each [B, N].

    A candidate's number counts its AUX nodes. Other nodes have the value 0.
    """
    depth = tree.depths(nodes)
    rank = jnp.minimum(_ranks(nodes), RANKS - 1)
    rates = _rates(row)
    most = rates.shape[1] - 1
    pick = lambda rates, depth, rank: rates[jnp.clip(depth - 1, 0, most), rank]
    value = jnp.where(depth > 0, jax.vmap(pick)(rates, depth, rank), 1.0)
    at, reach = jnp.maximum(nodes.parents, 0), 1
    while reach < nodes.depth + 1:
        value = value * jnp.take_along_axis(value, at, 1)
        at = jnp.take_along_axis(at, at, 1)
        reach *= 2
    candidate = nodes.kind == base.CANDIDATE
    weight = candidate.astype(jnp.int32)
    if nodes.aux:
        aux = (nodes.kind == base.AUX).astype(jnp.int32)
        add = lambda weight, owner, aux: weight.at[owner].add(aux)
        weight = jax.vmap(add)(weight, _owners(nodes), aux)
    return depth, jnp.where(candidate, value, 0), weight


def _owners(nodes: base.TokenTree) -> Array:
    """Return each node's nearest ancestor or self that is no AUX node, int32[B, N]."""
    index = jnp.arange(nodes.tokens.shape[1], dtype=jnp.int32)
    at = jnp.where(nodes.kind == base.AUX, jnp.maximum(nodes.parents, 0), index)
    reach = 1
    while reach < nodes.depth + 1:
        at = jnp.take_along_axis(at, at, 1)
        reach *= 2
    return at


def _deeper(row, rate, tokens, costs, now, depth) -> Array:
    """Choose the levels of the next draft: of those seen, or one more if it pays."""
    limits = jnp.arange(depth)
    best = jnp.where((limits <= now)[:, None], rate, -1).max(1)
    shallow = jnp.argmax(best)
    rates = _rates(row)[..., 0].mean(0)
    chain = jnp.cumprod(rates)
    index = jnp.argmax(rate[now])
    below = jnp.minimum(now + 1, depth - 1)
    more = tokens[now, index] + chain[below]
    wider = jnp.minimum(index + 1, costs.block.shape[0] - 1)
    pays = more / round_times(costs, below + 1, depth)[wider] > best[now]
    then = jnp.where((shallow == now) & pays, below, shallow) + 1
    return jnp.where(costs.level > 0, then, depth).astype(jnp.int32)


def _counted(
    row: Rates,
    nodes: base.TokenTree,
    verdict: base.Verdict,
    width: Array,
    active: Array,
) -> Rates:
    """Add a round's drafts to the counts; only rows that are active forget.

    A round that tested no draft forgets too, half as fast: so drafts are tried again.
    """
    path = verdict.path
    rows = jnp.arange(path.shape[0])[:, None]
    index = jnp.arange(path.shape[1], dtype=jnp.int32)
    size = nodes.tokens.shape[1]
    at = jnp.where(index < verdict.count[:, None], path, size)
    hit = jnp.zeros(nodes.tokens.shape, bool).at[rows, at].set(True, mode="drop")
    reached = hit.at[:, 0].set(True) & active[:, None]
    child = (nodes.kind == base.CANDIDATE) & (nodes.parents >= 0)
    above = jnp.take_along_axis(reached, jnp.maximum(nodes.parents, 0), 1)
    tested = child & above
    level = jnp.clip(tree.depths(nodes) - 1, 0, row.hits.shape[1] - 1)
    rank = jnp.minimum(_ranks(nodes), RANKS - 1)
    forget = jnp.where(width == 1, FORGET**0.5, FORGET)
    decay = jnp.where(active, forget, 1.0)[:, None, None]

    def count(old: Array, new: Array) -> Array:
        return (decay * old).at[rows, level, rank].add(new.astype(jnp.float32))

    return Rates(count(row.hits, tested & hit), count(row.tries, tested))


def _narrowest(levels: Array, widths: tuple[int, ...]) -> Array:
    """Return the index int32[] of the narrowest block for a chain of `levels`."""
    return (levels >= jnp.array(widths[:-1], jnp.int32)).sum(dtype=jnp.int32)


def _look(costs: Costs, widths: tuple[int, ...], depth: int) -> tuple[Array, Array]:
    """Choose the levels of the draft that ends a pause, and its round's milliseconds.

    It is the shortest that would pay if all of it were accepted: a shorter one cannot
    end the pause, whatever the text.
    """
    limits = jnp.arange(1, depth + 1)
    index = jax.vmap(lambda limit: _narrowest(limit, widths))(limits)
    times = jnp.take_along_axis(round_times(costs, limits, depth), index[:, None], 1)[
        :, 0
    ]
    pays = (limits + 1) * costs.plain >= GAIN * times
    at = jnp.where(pays.any(), jnp.argmax(pays), depth - 1)
    return jnp.where(costs.level > 0, limits[at], depth), times[at]


def _pausing(
    before: Plan,
    after: Plan,
    rates: Rates,
    drafted: Array,
    rounds: Array,
    levels: Array,
    cost: Array,
) -> tuple:
    """Begin, continue or end a pause; a draft of `levels` that takes `cost` ends it."""
    costs = before.costs
    pays = after.tokens * costs.plain >= after.time
    missing = cost / costs.plain - 1 - after.account
    pause = jnp.clip(jnp.ceil(missing / LOOK), SHORTEST, LONGEST).astype(jnp.int32)
    stop = drafted & ~pays
    wait = jnp.where(stop, pause, jnp.maximum(before.wait - rounds, 0))
    again = ~drafted & (wait == 0)
    tokens, time = _trial(costs, 1)
    depth = jnp.where(drafted, after.depth, before.depth)
    depth = jnp.where(stop, 0, jnp.where(again, levels, depth))
    plan = replace(
        after,
        depth=depth.astype(jnp.int32),
        then=jnp.where(again, levels, after.then).astype(jnp.int32),
        wait=jnp.where(again, -1, wait),
        tokens=jnp.where(again, tokens, jnp.where(drafted, after.tokens, 0.0)),
        time=jnp.where(again, time, jnp.where(drafted, after.time, 0.0)),
    )
    fade = jnp.where(again, FADE, 1.0)
    return plan, Rates(fade * rates.hits, fade * rates.tries)
