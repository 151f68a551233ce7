"""A pushdown machine over tokens on the device: which tokens may follow, and the step.

All functions are ★, pure, and of fixed shapes. The tables of many grammars lie in one
`Tables`, so rows differ by their state alone. State `FREE` reads every token.

A mask costs the packed words of a state, and a scatter into them of the tokens that
depend on the stack; these are settled together, a calling state a step. A token is read
by its bytes: as many steps as it has bytes, calls and returns.
"""

from typing import Any, NamedTuple

import jax.numpy as jnp
from flax import struct
from jax import Array, lax

from decoding import vocab
from decoding.automata.byte_machine import ANY_LENGTH, BODY, CALL, OVER, POP, STRING
from decoding.automata.finishing import FAR
from decoding.automata.rests import PUSHES, SHIFT, WHOLE

FREE, FIRST = 0, 1  # the state that reads everything; the first of STRING's
DEAD, DONE = -1, -2


class Lists(NamedTuple):
    """Lists by state, of `room` places at most."""

    at: Array  # int32[Q, 2]: first, length
    values: Array  # int32[X, columns], `room` unused ones at its end


@struct.dataclass
class Tables:
    """Grammars over tokens; `arena` pads every length but V and W."""

    row: Array  # int32[Q]: of `fixed`; 0: none, 1: all tokens
    fixed: Array  # uint32[M, W]: tokens that are read whole
    plain: Array  # uint32[M, W]: of these, those that need no more of the stack
    own: Lists  # the same, listed: token, whether it is plain
    returns: Lists  # tokens in which a value ends: token, index of its pair
    pairs: Lists  # label << SHIFT | rest
    jumps: Lists  # tokens of the text that must follow
    code_row: Array  # int32[Q]: of `code`
    code: Array  # int32[T, U]: of the rest of a token
    rise: Array  # int32[Q, 2]: of the stack, that a token (a rest) may take
    grow: Array  # int32[Q, 2]: tokens that finishing takes behind a token (a rest)
    width: Array  # uint8[STRING, V]: characters that tokens add to a string
    ends: Array  # int32[Q]
    final: Array  # int32[Q]
    back: Array  # int32[Q, L]
    span: Array  # int32[Q, 2]
    cost: Array  # int32[Q, 2]: tokens of finishing, and the first of them
    offset: Array  # int32[Q, 2]: of a state's moves, and its grammar's byte classes
    classes: Array  # uint8[G, 256]
    moves: Array  # int32[Y]
    flat: Array  # uint8[...]: the bytes of all tokens
    first: Array  # int32[V + 1]: where each token's bytes begin
    letter: Array  # int32[]: a token that adds one character to a string
    eos: Array  # int32[E]: the tokens that end a text
    end_words: Array  # uint32[W]: their set
    own_room: int = struct.field(pytree_node=False)
    returns_room: int = struct.field(pytree_node=False)
    pairs_room: int = struct.field(pytree_node=False)
    jumps_room: int = struct.field(pytree_node=False)


class Row(NamedTuple):
    """Where a row is in its text."""

    state: Array  # int32[]: DEAD: no token is masked; DONE: behind the end of sequence
    height: Array  # int32[]: calling states
    stack: Array  # int32[D]
    over: Array  # int32[D]: bits of labels: the text may end where the caller goes on
    chars: Array  # int32[]: characters of the open string
    left: Array  # int32[]: tokens that may still come
    owed: Array  # int32[D | 0]: tokens that finishing takes below; D: texts always end
    bound: Array  # int32[D | 0]: the most of that behind a token that ends the value


def init(start: Any, left: Any, depth: int, is_finished: bool) -> Row:
    """Return the row of a text that begins in state `start`, with `left` tokens."""
    zero = jnp.zeros((), jnp.int32)
    stack = jnp.zeros(depth, jnp.int32)
    limits = jnp.zeros(depth if is_finished else 0, jnp.int32)
    start = jnp.asarray(start, jnp.int32)
    left = jnp.asarray(left, jnp.int32)
    return Row(start, zero, stack, stack, zero, left, limits, limits)


def _top(values: Array, height: Array) -> Array:
    return values[jnp.maximum(height - 1, 0)]


def _span(tables: Tables, row: Row) -> tuple[Array, Array]:
    """Return the least and the most characters of the open string."""
    low, high = tables.span[_top(row.stack, row.height)]
    is_called = row.height > 0
    return jnp.where(is_called, low, 0), jnp.where(is_called, high, ANY_LENGTH[1])


def _take(lists: Lists, state: Array, room: int) -> tuple[Array, Array]:
    """Return the list of a state [room, columns], and which places it fills."""
    first, length = lists.at[state, 0], lists.at[state, 1]
    part = lax.dynamic_slice_in_dim(lists.values, first, room)
    return part, jnp.arange(room) < length


def is_final(tables: Tables, row: Row) -> Array:
    """Return whether the text may end, bool[]."""
    label = tables.final[jnp.maximum(row.state, 0)]
    below = _top(row.over, row.height) >> jnp.maximum(label, 0) & 1
    return (label >= 0) & ((row.height == 0) | (below > 0))


def _settled(tables: Tables, row: Row, pairs: Array, valid: Array) -> Array:
    """Return which pairs the calling states go on with, bool[P]."""
    depth = row.stack.shape[0]

    def go_on(carry: tuple) -> Array:
        return carry[2].any()

    def step(carry: tuple) -> tuple:
        level, code, open_, good = carry
        label, rest = code >> SHIFT, code & (1 << SHIFT) - 1
        at = jnp.maximum(level, 0)
        state = tables.back[row.stack[at], label]
        live = jnp.maximum(state, 0)
        then = tables.code[tables.code_row[live], rest]
        has_room = at + tables.rise[live, 1] <= depth
        whole = (then == WHOLE) | (then == PUSHES) & has_room
        inside = (level >= 0) & (state >= 0)
        good |= open_ & jnp.where(level < 0, rest == 0, inside & whole)
        return level - 1, then, open_ & inside & (then >= 0), good

    start = (row.height - 1, pairs, valid, jnp.zeros_like(valid))
    return lax.while_loop(go_on, step, start)[3]


def allowed(tables: Tables, row: Row) -> Array:
    """Return which tokens may follow, bool[V]; all in a dead state.

    The end of sequence may where the text may end, and where nothing else may.
    """
    state = jnp.maximum(row.state, 0)
    depth = row.stack.shape[0]
    is_near = row.height + tables.rise[state, 0] > depth
    index = tables.row[state]
    words = jnp.where(is_near, tables.plain[index], tables.fixed[index])
    few, valid = _take(tables.own, state, tables.own_room)
    listed = valid & (~is_near | (few[:, 1] > 0))
    pairs, valid = _take(tables.pairs, state, tables.pairs_room)
    settled = _settled(tables, row, pairs[:, 0], valid)
    ending, valid = _take(tables.returns, state, tables.returns_room)
    lexer = jnp.clip(state - FIRST, 0, STRING - 1)
    in_string = (state >= FIRST) & (state < FIRST + STRING)
    low, high = _span(tables, row)
    added = tables.width[lexer, ending[:, 0]].astype(jnp.int32)
    long = ~in_string | (row.chars + added >= low)
    returned = valid & settled[ending[:, 1]] & long
    tokens = jnp.concatenate([few[:, 0], ending[:, 0]])
    good = jnp.concatenate([listed, returned])
    # Words hold none of these tokens, and no token is listed twice: a sum is a union.
    bits = jnp.where(good, jnp.uint32(1) << (tokens & 31).astype(jnp.uint32), 0)
    words = words.at[tokens >> 5].add(bits.astype(jnp.uint32))
    if row.owed.shape[0]:
        words = jnp.where(_must_finish(tables, row), _exit(tables, row), words)
    words = jnp.where(row.state == DONE, 0, words)
    ends = (row.state == DONE) | (row.state == FREE) | is_final(tables, row)
    ends |= ~(words != 0).any()
    words = jnp.where(ends, words | tables.end_words, words & ~tables.end_words)
    words = jnp.where(row.state == DEAD, jnp.uint32(2**32 - 1), words)
    # A byte a token: what is read of the vocabulary stays small.
    most = jnp.where(in_string, jnp.clip(high - row.chars, 0, 255), 255)
    fits = tables.width[lexer] <= most.astype(jnp.uint8)
    return vocab.members(words, tables.width.shape[1]) & fits


def forced(tables: Tables, row: Row) -> tuple[Array, Array]:
    """Return the tokens of the text that must follow, int32[F], and their count."""
    state = jnp.maximum(row.state, 0)
    values, valid = _take(tables.jumps, state, tables.jumps_room)
    return values[:, 0], jnp.where(row.state > FREE, valid.sum(), 0).astype(jnp.int32)


def _must_finish(tables: Tables, row: Row) -> Array:
    """Return whether a token of the mask may leave too few to finish, bool[]."""
    state = jnp.maximum(row.state, 0)
    below = jnp.where(row.height > 0, _top(row.owed, row.height), 0)
    bound = jnp.where(row.height > 0, _top(row.bound, row.height), 0)
    most = jnp.maximum(tables.grow[state, 0] + below, bound)
    in_string = (state >= FIRST) & (state < FIRST + STRING)
    low, _ = _span(tables, row)
    most += jnp.where(in_string, jnp.maximum(low - row.chars, 0), 0)
    return (row.state > FREE) & (row.left - 2 < most)


def _exit(tables: Tables, row: Row) -> Array:
    """Return words of the token that begins the shortest ending, or of none.

    There is none where the text is over.
    """

    def go_on(carry: tuple) -> Array:
        state, height = carry
        return (tables.cost[state, 1] < 0) & (height > 0)

    def step(carry: tuple) -> tuple:
        state, height = carry
        label = jnp.maximum(tables.final[state], 0)
        after = tables.back[_top(row.stack, height), label]
        return jnp.maximum(after, 0), height - 1

    state = jnp.maximum(row.state, 0)
    in_string = (state >= FIRST) & (state < FIRST + STRING)
    low, _ = _span(tables, row)
    is_short = (state == FIRST + BODY) & in_string & (row.chars < low)
    end, _ = lax.while_loop(go_on, step, (state, row.height))
    token = jnp.where(is_short, tables.letter, tables.cost[end, 1])
    bit = jnp.uint32(1) << (token & 31).astype(jnp.uint32)
    words = jnp.zeros(tables.end_words.shape, jnp.uint32)
    return words.at[jnp.maximum(token, 0) >> 5].set(jnp.where(token >= 0, bit, 0))


def advance(tables: Tables, row: Row, token: Array) -> Row:
    """Return the row behind `token` int32[]."""
    first, last = tables.first[token], tables.first[token + 1]
    is_end = (token == tables.eos).any()

    def go_on(carry: tuple[Row, Array]) -> Array:
        at, index = carry
        state = jnp.maximum(at.state, 0)
        over = (tables.ends[state] >= 0) & (at.height > 0)
        return (at.state > FREE) & ((index < last) | over)

    def step(carry: tuple[Row, Array]) -> tuple[Row, Array]:
        at, index = carry
        state = jnp.maximum(at.state, 0)
        over = (tables.ends[state] >= 0) & (at.height > 0)
        offset, space = tables.offset[state, 0], tables.offset[state, 1]
        byte = tables.flat[jnp.minimum(index, tables.flat.shape[0] - 1)]
        to = tables.moves[offset + tables.classes[space, byte]]
        pops = over | (to >= 0) & (to & POP > 0)
        calls = ~over & (to >= 0) & (to & CALL > 0)
        reads = ~pops & ~calls
        label = jnp.where(over, tables.ends[state], to - POP)
        after, has_caller = _called_back(tables, at, state, jnp.maximum(label, 0))
        counts = reads & (state == FIRST + BODY) & (to != FIRST + OVER)
        chars = jnp.where(calls, 0, at.chars + counts)
        fits = ~counts | (chars <= _span(tables, at)[1])
        full = calls & (at.height >= at.stack.shape[0])
        goes = jnp.where(pops, after, jnp.where(calls, to - CALL, to))
        live = jnp.where(pops, has_caller, fits & ~full)
        moved = at._replace(
            state=jnp.where(live, goes, DEAD).astype(jnp.int32),
            height=at.height + calls - pops,
            chars=chars,
        )
        return _pushed(tables, at, moved, state, calls), index + reads

    start = jnp.where(is_end | (row.state <= FREE), last, first)
    moved, _ = lax.while_loop(go_on, step, (row, start))
    is_lost = tables.cost[jnp.maximum(moved.state, 0), 0] >= FAR
    spelled = jnp.where((first == last) | is_lost, DEAD, moved.state)
    ended = jnp.where(is_end, DONE, spelled)
    kept = (row.state == FREE) | (row.state == DEAD) | (row.state == DONE) & is_end
    state = jnp.where(kept, row.state, jnp.where(row.state == DONE, DEAD, ended))
    return moved._replace(state=state, left=row.left - 1)


def _called_back(
    tables: Tables, at: Row, state: Array, label: Array
) -> tuple[Array, Array]:
    """Return where the caller goes on, and whether it does."""
    caller = _top(at.stack, at.height)
    low, high = _span(tables, at)
    in_string = (state >= FIRST) & (state < FIRST + STRING)
    fits = ~in_string | ((low <= at.chars) & (at.chars <= high))
    after = tables.back[caller, label]
    return after, (at.height > 0) & (after >= 0) & fits


def _pushed(tables: Tables, at: Row, moved: Row, state: Array, calls: Array) -> Row:
    """Put the calling state on the stack, where one `calls`."""
    place = jnp.minimum(at.height, at.stack.shape[0] - 1)
    put = lambda values, new: values.at[place].set(
        jnp.where(calls, new, values[place]).astype(values.dtype)
    )
    after = tables.back[state]
    ends = jnp.where(after >= 0, tables.final[jnp.maximum(after, 0)], -1)
    below = _top(at.over, at.height) >> jnp.maximum(ends, 0) & 1
    can_end = (ends >= 0) & ((at.height == 0) | (below > 0))
    bits = jnp.where(can_end, 1 << jnp.arange(after.shape[0]), 0).sum()
    moved = moved._replace(stack=put(at.stack, state), over=put(at.over, bits))
    if not at.owed.shape[0]:
        return moved
    live = jnp.maximum(after, 0)
    owed = jnp.where(at.height > 0, _top(at.owed, at.height), 0)
    bound = jnp.where(at.height > 0, _top(at.bound, at.height), 0)
    worst = jnp.where(after >= 0, tables.cost[live, 0], 0).max()
    behind = jnp.where(after >= 0, tables.grow[live, 1], 0).max()
    return moved._replace(
        owed=put(at.owed, owed + worst),
        bound=put(at.bound, jnp.maximum(bound, owed + behind)),
    )
