"""Schedules: which open positions of a canvas each forward commits.

A masked diffusion model sees a *canvas*: a row of tokens, of which some positions are
*open* (a mask stands there). A schedule is merged from parts, each of which changes
one thing: `select` chooses what to commit, `plan` where blocks end, `stop` where the
text ends, `branches` how many states one forward verifies.

`T` token buffer · `C` window · `V` vocabulary. All functions are ★: of one row.
"""

from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

import jax.numpy as jnp
from flax import struct
from jax import Array

from decoding import base
from models.errors import MethodError

BLOCK = 32  # positions of a block, unless a part plans otherwise
CONF, ENTROPY, MARGIN, PROBS = READS = ("conf", "entropy", "margin", "probs")


@struct.dataclass
class Canvas:
    """A row's text under construction; leaves have a leading `B` in the loop's state.

    Open positions are those from `start` to `limit` that are not `known`. The active
    block is [lo, hi); `hi == lo` says that it is not planned yet.
    """

    tokens: Array  # int32[T]; what stands at an open position has no meaning
    known: Array  # bool[T]: of the prompt, a suffix, or committed
    born: Array  # int32[T]: the step of its commit; -1: given
    start: Array  # int32[]: tokens of the prompt
    lo: Array  # int32[]
    hi: Array  # int32[]
    begun: Array  # int32[]: the step at which the latest planned block began
    limit: Array  # int32[]: the canvas ends here
    count: Array  # int32[]: committed positions
    step: Array  # int32[]: forwards
    window: int = struct.field(pytree_node=False)  # C: positions of a block at most

    @property
    def open(self) -> Array:
        """bool[T]."""
        index = jnp.arange(self.tokens.shape[0])
        return ~self.known & (index >= self.start) & (index < self.limit)


def fresh(
    tokens: Array,
    known: Array,
    start: Array,
    limit: Array,
    block: tuple[Array, Array],
    window: int,
) -> Canvas:
    """Make canvases of which nothing is committed; all leaves have the rows `B`."""
    zero = jnp.zeros_like(start)
    return Canvas(
        tokens=tokens,
        known=known,
        born=jnp.full_like(tokens, -1),
        start=start,
        lo=block[0],
        hi=block[1],
        begun=zero,
        limit=limit,
        count=zero,
        step=zero,
        window=window,
    )


class Proposal(NamedTuple):
    """What the model proposes for the positions lo + arange(C).

    Of the figures, those that no part `reads` are None.
    """

    guess: Array  # int32[C]: drawn from the law after the transforms
    logp: Array  # float32[C]: the guess's log-probability
    entropy: Array | None  # float32[C]: in nats
    margin: Array | None  # float32[C]: probability of the best token, less the second's
    probs: Array | None  # float32[C, V]
    open: Array  # bool[C]: may be committed: open positions of the block

    @property
    def conf(self) -> Array:
        """float32[C]: probability of the guess."""
        return jnp.exp(self.logp)


class Choice(NamedTuple):
    """What to commit of lo + arange(C), bool[C]; the loop cuts it to open positions."""

    commit: Array


def nothing(params: Any, canvas: Canvas) -> base.State:
    """Return the state of a part that has none."""
    return base.State()


class Scheduler(NamedTuple):
    """A schedule, or one part of it; None: the part leaves this to others.

    - `init(params, canvas) -> State`, before the first forward.
    - `plan(state, canvas, proposal) -> int32[]`: where the block ends that begins now
      at `lo`, after the forward that opens it. It sees the window, as if the block were
      the whole of it. None: `lo + BLOCK`.
    - `window(tokens) -> int`: positions that a block has at most, on a canvas of that
      many new tokens.
    - `select(key, state, canvas, proposal) -> Choice`. If it chooses none, the loop
      commits its best position (by `conf`).
    - `ahead(key, state, canvas, open bool[C]) -> bool[C]`: what `select` will choose
      inside a block, where that depends on no proposal; None: it does.
    - `observe(state, canvas, proposal, commit bool[C]) -> State`, with the canvas
      before the commit.
    - `stop(state, canvas, proposal) -> int32[]`: a new, never larger `limit`, from the
      canvas after the commit. The loop also stops where it cannot matter: behind an end
      of sequence that has nothing open before it.
    - `branches`: states that one forward runs (`loops/branches.py`).
    - `agrees(drafted, true) -> bool[]`: whether a drafted canvas is accepted; None:
      where it equals the true one.
    - `reads`: the figures of a proposal that its functions use, of `READS`.
    - `warped`: the figures are of the law after all transforms; else of the law before
      the temperature: the model's, after guidance and bans.
    - `guarantee`: against one token a forward with the same blocks and cache.
    """

    select: Callable[[Array, base.State, Canvas, Proposal], Choice] | None = None
    init: Callable[[Any, Canvas], base.State] = nothing
    plan: Callable[[base.State, Canvas, Proposal], Array] | None = None
    window: Callable[[int], int] | None = None
    observe: Callable[..., base.State] | None = None
    stop: Callable[[base.State, Canvas, Proposal], Array] | None = None
    branches: int = 1
    agrees: Callable[[Canvas, Canvas], Array] | None = None
    reads: frozenset[str] = frozenset()
    warped: bool = False
    guarantee: str = base.LOSSY
    ahead: Callable[[Array, base.State, Canvas, Array], Array] | None = None


def merged(parts: Mapping[str, Scheduler]) -> Scheduler:
    """Merge the parts of a schedule, by name.

    Raises:
        MethodError: two parts do the same thing, or none selects.
    """
    names, own = list(parts), list(parts.values())

    def only(field: str, none: Any = None) -> int:
        """Return the index of the one part that has a field; -1: none has."""
        found = [i for i, part in enumerate(own) if getattr(part, field) != none]
        if len(found) > 1:
            raise MethodError(
                f"{[names[i] for i in found]} all have a {field!r} of their own: keep "
                "one of them"
            )
        return found[0] if found else -1

    selects = only("select")
    if selects < 0:
        raise MethodError(
            f"the schedule {names} chooses no positions: add a part that does, such as "
            "diffusion/llada"
        )
    if len({part.warped for part in own if part.reads}) > 1:
        raise MethodError(
            f"the parts of {names} read different laws, before and after transforms: "
            "keep those that read one"
        )
    at = {name: only(name) for name in ("plan", "stop", "agrees")}
    branches = only("branches", 1)
    at_window = at["plan"] if at["plan"] >= 0 else selects

    def state_of(state: base.State, i: int) -> base.State:
        return base.State(state.row[i], state.shared[i])

    def init(params: Any, canvas: Canvas) -> base.State:
        states = [part.init(params, canvas) for part in own]
        rows, shared = ([getattr(s, n) for s in states] for n in ("row", "shared"))
        return base.State(tuple(rows), tuple(shared))

    def choose(name: str) -> Callable | None:
        i = at[name]
        if i < 0:
            return None
        return lambda state, *rest: getattr(own[i], name)(state_of(state, i), *rest)

    rule: Any = own[selects].select

    def select(key, state, canvas, proposal):
        return rule(key, state_of(state, selects), canvas, proposal)

    early: Any = own[selects].ahead

    def ahead(key, state, canvas, is_open):
        return early(key, state_of(state, selects), canvas, is_open)

    def observe(state, canvas, proposal, commit):
        seen = [state_of(state, i) for i in range(len(own))]
        after = [
            s if part.observe is None else part.observe(s, canvas, proposal, commit)
            for part, s in zip(own, seen)
        ]
        return base.State(tuple(s.row for s in after), state.shared)

    watches = any(part.observe is not None for part in own)
    return Scheduler(
        select,
        init,
        choose("plan"),
        own[at_window].window,
        observe if watches else None,
        choose("stop"),
        own[max(branches, 0)].branches,
        own[at["agrees"]].agrees if at["agrees"] >= 0 else None,
        frozenset().union(*(part.reads for part in own)),
        any(part.warped for part in own),
        base.weakest(*(part.guarantee for part in own)),
        None if early is None else ahead,
    )


def ranks(values: Array, among: Array) -> Array:
    """★ Rank positions by falling value, int32[C]; ties: the lower position first.

    Positions that are not `among` bool[C] come behind all others.
    """
    order = jnp.lexsort((-values, ~among))  # a value may be -inf
    size = values.shape[0]
    return jnp.zeros(size, jnp.int32).at[order].set(jnp.arange(size, dtype=jnp.int32))


def best(values: Array, among: Array, quota: Array | int) -> Array:
    """★ Choose the `quota` best positions `among` bool[C], bool[C]."""
    return among & (ranks(values, among) < quota)
