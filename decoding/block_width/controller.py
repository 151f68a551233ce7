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
pauses: rounds are plain decoding. A pause ends with a short draft, a look. The rounds
after it are plain too, and the draft is compared with what they commit: it was accepted
as far as the text follows it, where its tokens are a point or coupled. So a look costs
its draft alone. Other draws are verified. An account of the time that drafts won or
lost keeps their cost below `LOOK` of the time: plain rounds pay that share in, and a
pause lasts until the account covers the next look.

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

from decoding import base
from decoding.block_width import acceptance
from decoding.block_width.acceptance import Rates
from decoding.block_width.costs import Costs, round_times
from decoding.block_width.policy import WidthPolicy

FORGET = 0.94  # weight of the counts of before in each drafted round
WATCHED = 0.5  # the same in a draft that is only compared with the text
GAIN = 1.15  # by which drafting is believed to pay before it is tried
SPAN, LONGEST = 16, 256  # rounds of a pause: spans that the loop runs at once, and most
FADE = 0.3  # weight of older counts after a pause, and at the start of a call
LOOK = 0.015  # share of the time that drafts which do not pay may cost
SAVED = 4.0  # rounds' time that drafts may lose at first, or after they have won more
PROMISE = 1.2  # of a watched draft; a block between plain rounds runs with cold caches
CAUTION = 0.1  # more gain that a watched draft must promise, for each round's time owed
FIRST = 0.03  # share of the time that a call's first look may cost
WATCHABLE = (base.POINT, base.COUPLED)  # accepted where the text has the same token
LADDER = (1, 2, 4, 8, 16, 64, 256)  # each is compiled: beyond 16 few are worth it
APART = 0.8  # a width that is a larger share of the whole draft's is left out


@struct.dataclass
class Plan:
    """The plan for all rows, and what recent drafts earned."""

    costs: Costs
    depth: Array  # int32[]: levels to draft; 0: a pause
    then: Array  # int32[]: levels to draft in the next round
    wait: Array  # int32[]: rounds of the pause that are left; -1: a look has come
    watched: Array  # bool[]: the draft of this round is only compared with the text
    account: Array  # float32[]: what drafts have won, in plain rounds' time
    spent: Array  # float32[1 + W]: milliseconds by `costs`: without a draft, by width
    tokens: Array  # float32[]: committed a row by drafted rounds, decayed
    time: Array  # float32[]: their milliseconds, decayed
    forced: Array  # int32[2]: index of the width, and depth; -1: chosen


def policy(widths: tuple[int, ...], pauses: bool = False) -> WidthPolicy:
    """Choose among the block `widths`; `pauses` tells whether the drafter can pause."""

    def init(batch: int, depth: int) -> base.State:
        none = jnp.zeros((batch, depth, acceptance.RANKS), jnp.float32)
        nodes = jnp.asarray(widths, jnp.float32)
        costs = Costs(jnp.float32(1), 0.9 + 0.1 * nodes, jnp.float32(0))
        deep, zero = jnp.int32(depth), jnp.int32(0)
        free = jnp.full((2,), -1, jnp.int32)
        account, spent = jnp.float32(SAVED), jnp.zeros(len(widths) + 1, jnp.float32)
        trial = _trial(costs, 4)
        plan = Plan(
            costs, deep, deep, zero, jnp.bool_(False), account, spent, *trial, free
        )
        return base.State(Rates(none, none), plan)

    def plan(state: base.State) -> Array:
        chosen: Plan = state.shared
        forced = chosen.forced[1]
        return jnp.where(forced < 0, chosen.depth, forced)

    def rest(state: base.State) -> Array:
        chosen: Plan = state.shared
        left = jnp.where(chosen.forced[1] == 0, LONGEST, jnp.maximum(chosen.wait, 1))
        left = jnp.where(chosen.watched, jnp.maximum(chosen.depth, SPAN), left)
        return jnp.where((plan(state) == 0) | chosen.watched, left, 1)

    def keep(state: base.State, nodes: base.TokenTree, sizes, active: Array):
        chosen: Plan = state.shared
        if not pauses:
            return best(state, nodes, sizes, active)
        look = (chosen.wait < 0) & (chosen.forced[0] < 0) & (plan(state) > 0)
        watched = look & (nodes.draw in WATCHABLE)
        state = base.State(state.row, replace(chosen, watched=watched))
        root = jnp.zeros(nodes.tokens.shape, bool).at[:, 0].set(True)
        return lax.cond(
            (plan(state) > 0) & ~watched,
            lambda: best(state, nodes, sizes, active),
            lambda: (root, jnp.int32(1), state),
        )

    def best(state: base.State, nodes: base.TokenTree, sizes, active: Array):
        chosen: Plan = state.shared
        expected = acceptance.expected(state.row, nodes, sizes, active)
        limits = jnp.arange(1, nodes.depth + 1)
        rate = expected.tokens / round_times(chosen.costs, limits, nodes.depth)
        now = jnp.maximum(plan(state), 1) - 1
        index = jnp.argmax(rate[now]).astype(jnp.int32)
        # A look is verified, whatever was counted before: else it shows nothing.
        index = jnp.where(chosen.wait < 0, _narrowest(now + 1, sizes), index)
        index = jnp.where(chosen.forced[0] < 0, index, chosen.forced[0])
        width = jnp.asarray(sizes, jnp.int32)[index]
        taken = (expected.used <= width) & (expected.value > 0)
        order, rows = expected.order, jnp.arange(taken.shape[0])[:, None]
        live = jnp.zeros(order.shape, bool).at[rows, order].set(taken)
        live = live.at[:, 0].set(True)
        if nodes.aux:
            live = live[rows, acceptance.owners(nodes)] & (nodes.kind != base.PAD)
        least = jnp.where(chosen.forced[0] < 0, 0, width)
        tokens, costs = expected.tokens, chosen.costs
        then = _deeper(state.row, rate, tokens, costs, now, nodes.depth)
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
        depth, plain = state.row.hits.shape[1], chosen.costs.plain
        drafted = jnp.bool_(True) if not pauses else plan(state) > 0
        watched = chosen.watched & drafted
        forget = jnp.where(width == 1, FORGET**0.5, FORGET)
        forget = jnp.where(watched, WATCHED, forget)
        rates = lax.cond(
            drafted & active.any(),
            lambda: acceptance.counted(state.row, nodes, verdict, forget, active),
            lambda: state.row,
        )
        index = (width > jnp.asarray(widths[:-1], jnp.int32)).sum()
        spent = round_times(chosen.costs, plan(state), depth)[index]
        earned = jnp.where(active, verdict.count + 1, 0).sum()
        earned = earned / jnp.maximum(active.sum(), 1)
        tokens = FORGET * chosen.tokens + earned
        time = FORGET * chosen.time + spent
        won = jnp.where(drafted, earned - spent / plain, LOOK * rounds)
        draft = jnp.maximum(spent / plain - 1, 0)
        won = jnp.where(watched, LOOK * rounds - draft, won)
        account = jnp.minimum(chosen.account + won, SAVED)
        after = replace(chosen, depth=chosen.then, tokens=tokens, time=time)
        total = chosen.spent.at[index + 1].add(jnp.where(drafted, spent, 0))
        total = total.at[0].add(plain * (rounds - drafted))
        after = replace(after, account=account, spent=total)
        if pauses:
            drafts = nodes, widths, active
            after, rates = _pausing(chosen, after, rates, drafted, rounds, drafts)
        return base.State(rates, after)

    return WidthPolicy(init, plan, rest, keep, observe)


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
    depth = row.hits.shape[1]
    levels, index = _look(costs, widths, depth)
    look = round_times(costs, levels, depth)[index]
    most = jnp.ceil((look / costs.plain - 1) / FIRST).astype(jnp.int32)
    wait = jnp.minimum(learned.wait, jnp.maximum(most, SPAN))
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


def _deeper(row, rate, tokens, costs, now, depth) -> Array:
    """Choose the levels of the next draft: of those seen, or one more if it pays."""
    limits = jnp.arange(depth)
    best = jnp.where((limits <= now)[:, None], rate, -1).max(1)
    shallow = jnp.argmax(best)
    rates = acceptance.estimated(row)[..., 0].mean(0)
    chain = jnp.cumprod(rates)
    index = jnp.argmax(rate[now])
    below = jnp.minimum(now + 1, depth - 1)
    more = tokens[now, index] + chain[below]
    wider = jnp.minimum(index + 1, costs.block.shape[0] - 1)
    pays = more / round_times(costs, below + 1, depth)[wider] > best[now]
    then = jnp.where((shallow == now) & pays, below, shallow) + 1
    return jnp.where(costs.level > 0, then, depth).astype(jnp.int32)


def _narrowest(levels: Array, widths: tuple[int, ...]) -> Array:
    """Return the index int32[] of the narrowest block for a chain of `levels`."""
    return (levels >= jnp.array(widths[:-1], jnp.int32)).sum(dtype=jnp.int32)


def _look(costs: Costs, widths: tuple[int, ...], depth: int) -> tuple[Array, Array]:
    """Choose the levels of the draft that ends a pause, and their index of a width.

    It is the shortest that would pay if all of it were accepted: a shorter one cannot
    end the pause, whatever the text.
    """
    limits = jnp.arange(1, depth + 1)
    index = jax.vmap(lambda limit: _narrowest(limit, widths))(limits)
    times = round_times(costs, limits, depth)
    times = jnp.take_along_axis(times, index[:, None], 1)[:, 0]
    pays = (limits + 1) * costs.plain >= GAIN * times
    at = jnp.where(pays.any(), jnp.argmax(pays), depth - 1)
    return jnp.where(costs.level > 0, limits[at], depth), index[at]


def _promise(
    costs: Costs, rates: Rates, nodes: base.TokenTree, widths: tuple, active: Array
) -> tuple[Array, Array]:
    """Return a watched draft's expected gain over plain decoding, and the levels of it.

    They are those of its nodes, or of a chain that goes on below it at the same rates.
    """
    limits = jnp.arange(1, nodes.depth + 1)
    times = round_times(costs, limits, nodes.depth)
    expected = acceptance.expected(rates, nodes, widths, active)
    chain = jnp.cumprod(acceptance.estimated(rates)[..., 0].mean(0))
    index = jax.vmap(lambda limit: _narrowest(limit, widths))(limits)
    chain = (1 + jnp.cumsum(chain)) / jnp.take_along_axis(times, index[:, None], 1)[
        :, 0
    ]
    gain = costs.plain * jnp.maximum((expected.tokens / times).max(1), chain)
    is_drafted = ((nodes.kind == base.CANDIDATE).sum(1) > 1) & active
    levels = jnp.where(costs.level > 0, 1 + jnp.argmax(gain), nodes.depth)
    return jnp.where(is_drafted.any(), gain.max(), 0), levels.astype(jnp.int32)


def _pausing(
    before: Plan,
    after: Plan,
    rates: Rates,
    drafted: Array,
    rounds: Array,
    drafts: tuple[base.TokenTree, tuple[int, ...], Array],
) -> tuple[Plan, Rates]:
    """Begin, continue or end a pause."""
    costs, (nodes, widths, _) = before.costs, drafts
    is_watchable = nodes.draw in WATCHABLE
    levels, index = _look(costs, widths, nodes.depth)
    times = round_times(costs, levels, nodes.depth)
    cost = times[0 if is_watchable else index]
    watched = drafted & before.watched
    gain, deep = lax.cond(
        watched,
        lambda: _promise(costs, rates, *drafts),
        lambda: (jnp.float32(0), before.depth),
    )
    enough = PROMISE + CAUTION * jnp.maximum(-after.account, 0)
    paid = after.tokens * costs.plain >= after.time
    pays = jnp.where(watched, gain > enough, paid)
    cost = jnp.maximum(cost / costs.plain - 1, 0)
    # Half of the share is for watching; the other half pays for what promised too much.
    rounds_due = 2 * cost if is_watchable else cost - after.account
    pause = SPAN * jnp.ceil(rounds_due / LOOK / SPAN)
    pause = jnp.clip(pause, SPAN, LONGEST).astype(jnp.int32)
    stop, begin = drafted & ~pays, watched & pays
    wait = jnp.where(stop, pause, jnp.maximum(before.wait - rounds, 0))
    again = ~drafted & (wait == 0)
    tried = again | begin
    depth = jnp.where(drafted, after.depth, before.depth)
    levels = jnp.where(begin, deep, levels)
    depth = jnp.where(stop, 0, jnp.where(tried, levels, depth))
    tokens, time = _trial(costs, 1)
    plan = replace(
        after,
        depth=depth.astype(jnp.int32),
        then=jnp.where(tried, levels, after.then).astype(jnp.int32),
        wait=jnp.where(again, -1, jnp.where(begin, 0, wait)),
        watched=jnp.bool_(False),
        tokens=jnp.where(tried, tokens, jnp.where(drafted, after.tokens, 0.0)),
        time=jnp.where(tried, time, jnp.where(drafted, after.time, 0.0)),
    )
    fade = jnp.where(again, 1.0 if is_watchable else FADE, 1.0)
    return plan, Rates(fade * rates.hits, fade * rates.tries)
