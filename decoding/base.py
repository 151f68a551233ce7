"""The types and interfaces of decoding, with every dimension letter and sentinel.

`B` rows · `N` nodes of a block, root included · `D` deepest draft of a tree (its width
in `path`) · `V` vocabulary · `S` cache slots · `T` token buffer · `L` layers ·
`K` hypotheses · `Q` automaton states.

Node 0 of a tree is the root: the last committed token, which is the only committed
token that the cache does not hold. A node's *depth* is its distance from the root.

Functions marked ★ are written for ONE row; the loop vmaps them. They hold no
`pallas_call`, and no `lax.cond` to save work, because vmap turns it into a select.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, NamedTuple, Required, TypedDict

import jax
import jax.numpy as jnp
from flax import struct
from jax import Array

from decoding.denoising.holes import Holes
from models.base import ModelOutput

# Guarantees, strongest first: a method is as strong as its weakest part.
LAW = "LAW"  # the output law is that of plain decoding under the same transform
ARGMAX = "ARGMAX"  # greedy output is plain decoding's
LOSSY = "LOSSY"  # neither
GUARANTEES = (LAW, ARGMAX, LOSSY)

# Kinds of node; AUX nodes are forwarded and observed, never verified.
PAD, CANDIDATE, AUX = 0, 1, 2

# How the children of a node were drawn from the node's law q.
IID = "iid"  # independent samples, duplicates possible
NO_REPLACE = "no_replace"  # samples without replacement, in draw order
POINT = "point"  # chosen by a rule that is independent of the target's randomness
COUPLED = "coupled"  # argmax of log q + noise(position), the verifier's own noise
DRAWS = (IID, NO_REPLACE, POINT, COUPLED)


@struct.dataclass
class State:
    """State of a component. `row` leaves have a leading `B`; `shared` leaves do not.

    Numbers that a sweep may change (a temperature, a penalty) live here, so that a
    compiled loop serves every value. `shared` holds tables that outlive a request. A ★
    function gets one row's `row` and the whole `shared`, which it returns unchanged.
    """

    row: Any = ()
    shared: Any = ()


ROWS = State(0, None)  # type: ignore[arg-type]  # in_axes and out_axes of a State


class Params(TypedDict, total=False):
    """The weights that a program is called with, by the part that reads them.

    `generate(drafts=…)` fills in all but the target's. A stream (`Stream.params`) may
    read one of these or add a name of its own.
    """

    target: Required[Any]  # the decoded model's
    draft: Any  # a draft model's
    heads: Any  # a draft head's
    exits: Any  # predictors of where the target may stop
    judge: Any  # of which mismatches pass
    acceptance: Any  # of which drafts the target accepts
    filter: Any  # of which guesses of a canvas are final
    reward: Any  # a reward model's, or a value head's


def read(params: Params, name: str) -> Any:
    """Look up weights by a name that a stream gives, which may be its own."""
    return dict(params)[name]


@struct.dataclass
class TokenTree:
    """A tree of draft tokens; `parents[i] < i`, siblings in draw order.

    `logits[:, i]`, where present, is the law *after warping* from which the children of
    node `i` were drawn. AUX nodes are forwarded and observed, never verified.
    """

    tokens: Array  # int32[B, N]; node 0 is the last committed token
    parents: Array  # int32[B, N]; root: -1
    kind: Array  # int32[B, N]: PAD | CANDIDATE | AUX; the root counts as CANDIDATE
    logits: Array | None = None  # float32[B, N, V]
    calls: Array | int = 0  # int32[B] or int: model calls that made the draft
    slots: Array | None = None  # int32[B, N]: see `draft_model.commit`; None: i in i
    draw: str = struct.field(pytree_node=False, default=POINT)
    depth: int = struct.field(pytree_node=False, default=0)  # bound on node depth
    linear: bool = struct.field(pytree_node=False, default=False)  # parents[i] == i - 1
    aux: bool = struct.field(pytree_node=False, default=False)  # has AUX nodes


@struct.dataclass
class Verdict:
    """The accepted nodes `path[:count]`, and the one extra token that follows them."""

    path: Array  # int32[B, D]: node indices; entries past `count` are 0
    count: Array  # int32[B]; -1 for a row that commits nothing
    token: Array  # int32[B]
    drafted: Array | None = None  # bool[B]: so is the extra token; None: it never is


@struct.dataclass
class Outcome:
    """One round, as `observe` receives it.

    A chunk of the prompt (`is_prompt`) has the same form: a chain whose nodes are all
    accepted and whose extra token is the prompt's next. Its logits are None unless the
    drafter sets `prompt_logits`. So have the rounds of a pause together (`is_pause`):
    plain decoding's tokens, with their logits. In both `warped` is None.
    """

    tree: TokenTree
    verdict: Verdict
    target: ModelOutput  # raw
    warped: Array | None  # float32[B, N, V]: after the transform
    active: Array  # bool[B]: the other rows commit nothing
    is_prompt: bool = struct.field(pytree_node=False, default=False)
    is_pause: bool = struct.field(pytree_node=False, default=False)

    @property
    def is_round(self) -> bool:
        """Whether it is a round with a draft."""
        return not (self.is_prompt or self.is_pause)


@dataclass(frozen=True)
class Context:
    """The data that every component may read; built anew each round, never carried."""

    params: Params
    tokens: Array  # int32[B, T]
    length: Array  # int32[B]: committed tokens, prompt included
    cache: Any  # the target's cache; a drafter that runs the target returns its own
    law: "LogitsTransform"  # the transform in force
    transform: State  # its state after the last committed token
    noise: Callable[..., Array]
    """position[B] -> float32[B, V]: the Gumbel noise of the token there, the same for
    all parts, and 0 at temperature 0; (position, ids int32[M]): that of some tokens."""
    active: Array  # bool[B]: rows that are not done
    depth: Array | None = None
    """int32[]: at least 1; drafts below do not pay, and costly ones stop there."""

    @property
    def root(self) -> Array:
        """int32[B]: the last committed token."""
        at = jnp.maximum(self.length - 1, 0)
        return jnp.take_along_axis(self.tokens, at[:, None], 1)[:, 0]

    def warp(self, logits: Array, at: State | None = None) -> Array:
        """Apply the transform to a draft's logits, [B, V] or [B, M, V].

        A stateful transform takes `at`, the states of the `M` nodes (`row` leaves
        [B, M, ...]); None: the state after the last committed token.
        """
        apply = lambda state, logits: self.law.apply(state, logits, {})
        state = self.transform if at is None else at
        if logits.ndim == 3:
            inner = State(None, None) if at is None else ROWS
            apply = jax.vmap(apply, in_axes=(inner, 0))
        return jax.vmap(apply, in_axes=(ROWS, 0))(state, logits)


class Drafter(NamedTuple):
    """Proposes a tree a round: `nodes` nodes, root included, at most `depth` deep."""

    init: Callable[[Context], State]
    draft: Callable[[Array, Context, State], tuple[TokenTree, State, Any]]
    observe: Callable[[Context, State, Outcome], State]
    nodes: int
    depth: int
    taps: tuple = ()
    wrap: Callable[[Any], Any] = lambda lm: lm
    weights: Callable[[Params, State], Any] = lambda params, state: params["target"]
    """(all params, drafter's state) -> weights argument of the wrapped model"""
    prompt_logits: bool = False  # compute the logits of the prompt's chunks
    scratch: int = 0  # slots of the target's cache that drafting itself occupies
    blocks: tuple[int, ...] = ()  # narrower blocks to compile, see `decode.Program`
    pauses: bool = False
    """Rounds may leave `draft` out. `observe` gets several as one outcome, `is_pause`,
    and a round whose draft was not verified; the next draft reads what it missed."""
    reads_text: bool = False  # and raw logits, no more: the lanes of searches serve too
    reads_parts: bool = False
    """`observe` takes a round on a part of its tree, the other nodes left out; else it
    gets the whole tree, in which they are padding (their logits are zeros)."""


class Target(NamedTuple):
    """The target's view of one row's tree, as a verifier gets it."""

    logits: Array  # float32[N, V]: after the transform
    hidden: dict[Any, Array]  # tap -> [N, D]
    noise: Callable[[Array], Array]  # node depth -> float32[V]: the next token's noise
    sampled: Array | bool = True  # bool[]: the row's temperature is above 0


class Topology(NamedTuple):
    """Decides which nodes a model-based drafter grows, level by level.

    `expand(keys, state, tree, logits, noise, level) -> tree, state` gets `logits[B, w,
    V]`, the warped laws of the nodes of `level` that the drafter ran. It writes the
    tokens, parents and kinds of the next level. Where the draw needs laws, it writes
    them into `tree.logits`. `noise(level)` is the position noise of those children.
    `adapt(state, outcome) -> state` updates the state from a round.

    Dynamic trees set further fields:
    - `beam`: only the first `beam` nodes of a level are run; the others are leaves.
    - `more(state, level) -> bool[B]` (or [1], for all): whether a row grows below
      `level`. If no row does, the draft call is skipped.
    - `prune(state, tree) -> int32[B, kept]`: indices of the nodes to verify, in rising
      order, root first, parents with their children, padded with -1.
    - `blocks`: widths worth a program; the target runs the narrowest that suffices.
    - `tabled`: grow the tree of a table of all depths (`tree_building/tables.py`).
    - `watch(params, state, own, level) -> state` runs before `expand`. `own` [B, w, D]
      is what the nodes of `level` pass to their children, such as states.
    """

    init: Callable[[int], State]  # (batch) -> state
    expand: Callable[..., tuple[TokenTree, State]]
    adapt: Callable[[State, Outcome], State]
    widths: tuple[int, ...]  # nodes of each level, the root's 1 first
    draw: str
    linear: bool = False
    beam: int = 0  # 0: every node of a level is run
    more: Callable[[State, int], Array] | None = None
    prune: Callable[[State, TokenTree], Array] | None = None
    kept: int = 0  # nodes that `prune` or `tabled` keeps
    blocks: tuple[int, ...] = ()
    watch: Callable[[Params, State, Any, int], State] | None = None
    tabled: Any = None  # tree_building.tables.Tabled

    @property
    def nodes(self) -> int:
        """Number of verified nodes, root included."""
        return self.kept or sum(self.widths)

    @property
    def run(self) -> tuple[int, ...]:
        """Number of nodes that the drafter runs in each level; 0 in the last."""
        return (*(min(w, self.beam or w) for w in self.widths[:-1]), 0)

    @property
    def depth(self) -> int:
        return len(self.widths) - 1


class Verifier(NamedTuple):
    """Accepts a path of a tree. `draws` lists its draws, the preferred one first."""

    init: Callable[[Any], State]  # (params) -> state of one row
    verify: Callable[[Array, State, TokenTree, Target], Verdict]  # ★ (key, state, ...)
    guarantee: str
    draws: tuple[str, ...]
    taps: tuple = ()


class LogitsTransform(NamedTuple):
    """Changes logits as a function of the text so far. All functions are ★.

    - `init(tokens[T], length) -> State`: the state after the whole prompt. Prompts of
      one call may differ in the numbers of `row`; `shared` must then be equal.
    - `apply(state, logits[V], aux) -> logits[V]` reads the state. `aux` maps the names
      in `streams` to their logits (or words) at the same node. Drafts have no
      `aux`, and `apply` then returns the logits unchanged.
    - `free`: a constraint's `apply` without what it forbids: `transform_chain.mass`.
    - `advance(state, token, logits, aux) -> State`, None for a stateless transform,
      gets the `logits` and `aux` that `apply` received where `token` was chosen.
    - `domain`: "logits" (need not be normalised) or "logprobs" (are), in and out.
    - `warper`: it belongs after the temperature (top-k), not before it (penalties).
    - `nameless`: `apply` reads values, not whose they are; it serves a part of V too.
    - `numbers`: the streams that are masks of the host, see `matchers.Matched`.
    - `forced(state) -> tokens int32[F], count int32[]` suggests what must follow.
    - `holes`: of a constraint: the same on a canvas, which fills in any order.
    """

    init: Callable[[Array, Array], State]
    apply: Callable[[State, Array, dict[str, Array]], Array]
    advance: Callable[[State, Array, Array, dict[str, Array]], State] | None = None
    domain: str = "logits"
    warper: bool = False
    streams: tuple[str, ...] = ()
    nameless: bool = False
    free: Callable[[State, Array, dict[str, Array]], Array] | None = None
    numbers: tuple[tuple[str, Callable[[State], Array]], ...] = ()
    forced: Callable[[State], tuple[Array, Array]] | None = None
    holes: Holes | None = None


class Sizes(NamedTuple):
    """What a policy sizes its cache by: static numbers of a call's rows."""

    batch: int
    slots: int  # logical ones: a place for each token of the longest row and its block
    prompt: int  # tokens of the longest prompt
    new: int  # tokens that a row may add to its prompt
    block: int  # slots behind `length` that a round writes
    dtype: Any


class CachePolicy(NamedTuple):
    """Decides which cache slots stay, in rounds and in prompt chunks alike.

    - `make(model, sizes, length) -> cache` makes the empty cache of prompts of `length`
      int32[B] tokens; None: the model's own, which keeps every slot.
    - `init(cache) -> state`, of what does not lie in the cache.
    - `place(state, cache, tree) -> slots int32[B, N], visibility`, and `retain(state,
      cache, outcome) -> cache, state`, use logical slots: a tree's node i lies at
      `cache.length + i`, whatever was evicted before. `retain` commits the outcome's
      path and may then evict.
    - `room(state, cache, tokens) -> int32[B]` bounds the commits of a round or a chunk:
      how many of `tokens` int32[B, M] (the root's successors), at least 1, may be
      committed before what nodes see changes. A cut row goes on later. None: no bound.
    - `lookahead(ctx, most) -> tokens int32[B, M], count, calls` (int32[B]) guesses the
      next `count` <= `most` tokens; `finish` sees their keys and queries, nothing else.
    - `finish(state, cache) -> cache, state` makes decoding's arrays of the prompt's.
    - `reads(state, cache) -> float32[B]`: slots that a node of the next round reads, a
      layer and head on average; None: all tokens seen.
    - `path_pure`: what a node sees depends on its path and position alone. The text of
      a speculative method is then plain decoding's under the same policy.
    - `joint`: it reads a token's keys of several layers at once; all must have them.
    """

    init: Callable[[Any], Any]
    place: Callable[[Any, Any, TokenTree], tuple[Array, Any]]
    retain: Callable[[Any, Any, "Outcome"], tuple[Any, Any]]
    room: Callable[[Any, Any, Array], Array] | None = None
    make: Callable[[Any, Sizes, Array], Any] | None = None
    finish: Callable[[Any, Any], tuple[Any, Any]] | None = None
    reads: Callable[[Any, Any], Array] | None = None
    path_pure: bool = True
    lookahead: Callable[[Context, Array], tuple[Array, Array, Array]] | None = None
    joint: bool = False


class ExitPolicy(NamedTuple):
    """Stops the target early, or skips some of its layers.

    `plan(keys, ctx, state) -> state, cache, calls` runs before the target's block, and
    returns the cache `ctx.cache`, updated. `wrap` makes the model that the loop calls.
    `weights(weights, params, state)` makes that model's weights argument, from the
    drafter's weights and all params. `observe` updates the state after a round or a
    prompt chunk. `path_pure`: a node's layers depend on its path alone. An exit that is
    not path-pure serves blocks of one node; drafters of wider blocks are refused.

    `layers(state, positions int32[B, N]) -> run, gate` chooses the layers of a block of
    any width, also of a prompt chunk: `Block.run` and `Block.gate`, or None for either.
    A layer that no node needs is left out. A token's later readers run a subset of its
    layers, so that no key is missing.
    """

    init: Callable[[Context], State]
    plan: Callable[..., tuple] = lambda keys, ctx, state: (state, ctx.cache, 0)
    observe: Callable[..., State] = lambda ctx, state, outcome: state
    wrap: Callable[[Any], Any] = lambda model: model
    weights: Callable[[Any, Params, State], Any] = lambda own, params, state: own
    taps: tuple = ()
    path_pure: bool = True
    layers: Callable[[State, Array], tuple[Any, Any]] | None = None


WHOLE = ExitPolicy(lambda ctx: State())  # every layer, for every token


class Stream(NamedTuple):
    """Another model, run beside the target on the same committed tokens."""

    model: Any  # LanguageModel
    params: str  # key in params
    prompts: Any = None  # its own prompts (list of token lists); None: the target's


class Derived(NamedTuple):
    """A function of the target's states at the same nodes: no model, no cache."""

    taps: tuple  # the target's states that it reads
    params: str  # key in params
    logits: Callable[[Any, dict[Any, Array]], Array]
    """(params, {tap: [B, N, D]}) -> float32[B, N, V]; equal ones share programs"""


Streams = Mapping[str, Stream | Derived]


def weakest(*guarantees: str) -> str:
    """Return the weakest of the parts' guarantees, that of their composition."""
    rank = lambda name: (GUARANTEES.index(name.partition(" ")[0]), len(name))
    return max(guarantees, key=rank)


def under(guarantee: str, policy: str) -> str:
    """Return a guarantee towards plain decoding with the same cache policy or exit."""
    return guarantee if guarantee == LOSSY else f"{guarantee} under {policy}"
