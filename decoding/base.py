"""The types and interfaces of decoding; every letter and sentinel is defined here.

`B` rows · `N` nodes of a block, root included · `D` deepest draft of a tree (its width
in `path`) · `V` vocabulary · `S` cache slots · `T` token buffer · `L` layers ·
`K` hypotheses · `Q` automaton states.

Node 0 of a tree is the root: the last committed token, which is the only committed
token that the cache does not hold. A node's *depth* is its distance from the root.

Functions marked ★ are written for ONE row; the loop vmaps them. They hold no `lax.cond`
that is meant to save work and no `pallas_call`.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, NamedTuple, Required, TypedDict

import jax
import jax.numpy as jnp
from flax import struct
from jax import Array

from models.base import ModelOutput

# Guarantees, strongest first: a method is as strong as its weakest part.
LAW = "LAW"  # the output law is that of plain decoding under the same transform
ARGMAX = "ARGMAX"  # greedy output is plain decoding's
LOSSY = "LOSSY"  # neither
GUARANTEES = (LAW, ARGMAX, LOSSY)

# Kinds of node.
PAD, CANDIDATE, AUX = 0, 1, 2

# How the children of a node were drawn from the node's law q.
IID = "iid"  # independent samples, duplicates possible
NO_REPLACE = "no_replace"  # samples without replacement, in draw order
POINT = "point"  # chosen by a rule that never looks at the target's randomness
COUPLED = "coupled"  # the best of log q + noise(position), the verifier's own noise
DRAWS = (IID, NO_REPLACE, POINT, COUPLED)


@struct.dataclass
class State:
    """State of a component. `row` leaves have a leading `B`; `shared` leaves do not.

    Numbers that a sweep may change (a temperature, a penalty) live here, so that a
    compiled loop serves every value. Large tables and what outlives a request are
    shared. A ★ function sees one row's `row` and the whole `shared`, which it must
    return as it is.
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


@struct.dataclass
class Verdict:
    """The accepted nodes `path[:count]`, and the one extra token that follows them."""

    path: Array  # int32[B, D]: node indices; entries past `count` are 0
    count: Array  # int32[B]; -1 for a row that commits nothing
    token: Array  # int32[B]
    drafted: Array | None = None
    """bool[B]: the extra token is a draft too (its node is not on `path`); None: it
    never is, the target chose it."""


@struct.dataclass
class Outcome:
    """One round as a drafter may learn from it.

    A chunk of the prompt (`is_prompt`) comes in the same form: a chain whose nodes are
    all accepted and whose extra token is the next of the prompt. Its logits are None
    unless the drafter sets `prompt_logits`; `warped` is None. Rows with `active` false
    commit nothing.
    """

    tree: TokenTree
    verdict: Verdict
    target: ModelOutput  # raw
    warped: Array | None  # float32[B, N, V]: after the transform
    active: Array  # bool[B]
    is_prompt: bool = struct.field(pytree_node=False, default=False)


@dataclass(frozen=True)
class Context:
    """What every component may read; made anew each round, never carried."""

    params: Params
    tokens: Array  # int32[B, T]
    length: Array  # int32[B]: committed tokens, prompt included
    cache: Any  # the target's cache; a drafter that runs the target returns its own
    law: "LogitsTransform"  # the transform in force, and
    transform: State  # its state after the last committed token
    noise: Callable[[Array], Array]
    """position[B] -> float32[B, V]: the Gumbel noise of the token at an absolute
    position, the same for every drafter and verifier; may be used again and again."""
    active: Array  # bool[B]: rows that are not done

    @property
    def root(self) -> Array:
        """int32[B]: the last committed token."""
        at = jnp.maximum(self.length - 1, 0)[:, None]
        return jnp.take_along_axis(self.tokens, at, 1)[:, 0]

    def warp(self, logits: Array, at: State | None = None) -> Array:
        """Apply the transform to a draft's logits, [B, V] or [B, M, V].

        `at` are the states of the `M` nodes (`row` leaves [B, M, ...]) where the
        transform is stateful; None: the state after the last committed token.
        """
        apply = lambda state, logits: self.law.apply(state, logits, {})
        state = self.transform if at is None else at
        if logits.ndim == 3:
            inner = State(None, None) if at is None else ROWS
            apply = jax.vmap(apply, in_axes=(inner, 0))
        return jax.vmap(apply, in_axes=(ROWS, 0))(state, logits)


class Drafter(NamedTuple):
    """Proposes a tree of `nodes` nodes (root included) and at most `depth` a round."""

    init: Callable[[Context], State]
    draft: Callable[[Array, Context, State], tuple[TokenTree, State, Any]]
    observe: Callable[[Context, State, Outcome], State]
    nodes: int
    depth: int
    taps: tuple = ()
    wrap: Callable[[Any], Any] = lambda lm: lm
    weights: Callable[[Params, State], Any] = lambda params, state: params["target"]
    """Of all params and the drafter's state, what the wrapped model is called with."""
    prompt_logits: bool = False  # ask for logits of the prompt's chunks
    scratch: int = 0  # slots of the target's cache that drafting itself takes
    blocks: tuple[int, ...] = ()  # narrower blocks to compile, see `decode.forward`


class Target(NamedTuple):
    """The target's view of one row's tree, as a verifier gets it."""

    logits: Array  # float32[N, V]: after the transform
    hidden: dict[Any, Array]  # tap -> [N, D]
    noise: Callable[[Array], Array]  # depth -> float32[V]: of the token that follows


class Topology(NamedTuple):
    """Which nodes a model-based drafter grows, level by level.

    `expand(keys, state, tree, logits, noise, level) -> tree, state` gets the warped
    laws `logits[B, w, V]` of the nodes of `level` that were run and writes the tokens,
    parents and kinds of the next level (and, where the draw needs them, the laws into
    `tree.logits`). `noise(level)` is the position noise of those children.
    `adapt(state, outcome) -> state` learns from a round.

    Dynamic trees have more to say. `beam`: only the first nodes of a level are run, and
    the others are leaves. `more(state, level) -> bool[B]` (or [1], for all): whether a
    row grows below `level`; where none does, nothing is run. `prune(state, tree) ->
    int32[B, kept]`: the nodes that are verified, in rising order, root first, parents
    with their children, -1 past the last. `blocks`: widths that are worth a program of
    their own; the target runs the narrowest that holds every row's nodes.
    `watch(params, state, own, level) -> state` is shown, before `expand`, the params of
    `generate` and what the nodes of `level` that were run hand to their children: of a
    draft model its normed states [B, w, D], of EAGLE its features.
    """

    init: Callable[[int], State]  # (batch) -> state
    expand: Callable[..., tuple[TokenTree, State]]
    adapt: Callable[[State, Outcome], State]
    widths: tuple[int, ...]  # nodes of each level, the root's 1 first
    draw: str
    linear: bool = False
    beam: int = 0  # 0: all of a level are run
    more: Callable[[State, int], Array] | None = None
    prune: Callable[[State, TokenTree], Array] | None = None
    kept: int = 0  # nodes that `prune` keeps
    blocks: tuple[int, ...] = ()
    watch: Callable[[Params, State, Any, int], State] | None = None

    @property
    def nodes(self) -> int:
        """Nodes that are verified, root included."""
        return self.kept if self.prune else sum(self.widths)

    @property
    def run(self) -> tuple[int, ...]:
        """How many nodes of each level are run; of the last, none."""
        return (*(min(w, self.beam or w) for w in self.widths[:-1]), 0)

    @property
    def depth(self) -> int:
        return len(self.widths) - 1


class Verifier(NamedTuple):
    """Accepts a path of a tree. `draws[0]` is the draw it likes best."""

    init: Callable[[Any], State]  # (params) -> state of one row
    verify: Callable[[Array, State, TokenTree, Target], Verdict]  # ★ (key, state, ...)
    guarantee: str
    draws: tuple[str, ...]
    taps: tuple = ()


class LogitsTransform(NamedTuple):
    """Alters a law by what was said so far. ★ throughout.

    `init(tokens[T], length) -> State` after the whole prompt; `apply(state, logits[V],
    aux) -> logits[V]` only reads; `advance(state, token, logits, aux) -> State` writes,
    and is None where nothing is remembered. It receives the logits and the `aux` that
    `apply` received where `token` was chosen. `aux` maps the names in `streams` to the
    logits of those models at the same node; a draft has none, and `apply` then leaves
    the logits as they are. `domain` is that of what `apply` receives and returns:
    "logits" need not be normalised, "logprobs" are. `warper` marks a transform that
    belongs after the temperature (top-k, top-p, ...), as against one that belongs
    before it (penalties, bans, constraints).
    """

    init: Callable[[Array, Array], State]
    apply: Callable[[State, Array, dict[str, Array]], Array]
    advance: Callable[[State, Array, Array, dict[str, Array]], State] | None = None
    domain: str = "logits"
    warper: bool = False
    streams: tuple[str, ...] = ()


class CachePolicy(NamedTuple):
    """Which slots live. Rounds and prompt chunks pass through it alike.

    `place` and `retain` see logical slots: a tree's node i lies at `cache.length + i`,
    whatever was evicted before. `retain` commits the outcome's path and may then evict.
    `room` bounds what a round or a chunk commits: how many of `tokens` int32[B, M] (the
    root's successors) may be committed before what nodes see changes, at least 1 a row.
    A row that it cuts goes on in the next round. None: there is no bound.
    `path_pure`: what a node sees depends on its path alone; the text of a speculative
    method is then plain decoding's under the same policy.
    """

    init: Callable[[Any], Any]  # (cache) -> state
    place: Callable[[Any, Any, TokenTree], tuple[Array, Any]]
    """(state, cache, tree) -> slots int32[B, N], visibility"""
    retain: Callable[[Any, Any, "Outcome"], tuple[Any, Any]]
    """(state, cache, outcome) -> cache, state"""
    room: Callable[[Any, Any, Array], Array] | None = None
    """(state, cache, tokens int32[B, M]) -> int32[B]"""
    path_pure: bool = True


class ExitPolicy(NamedTuple):
    """Stops the target early, or leaves out some of its layers.

    `plan(keys, ctx, state) -> state, cache, calls` runs before the target's block, on
    the cache `ctx.cache`, and returns it. `wrap` makes the model that the loop calls,
    and `weights(weights, params, state)` what it is called with: `weights` are the
    drafter's, `params` all. `observe` learns from a round or a prompt chunk.
    `path_pure`: which layers a node gets depends on its path alone. One that is not
    pure serves blocks of one node, and drafters of wider ones are refused.
    """

    init: Callable[[Context], State]
    plan: Callable[[Array, Context, State], tuple[State, Any, Any]]
    observe: Callable[[Context, State, Outcome], State]
    wrap: Callable[[Any], Any]
    weights: Callable[[Any, Params, State], Any]
    taps: tuple = ()
    path_pure: bool = True


WHOLE = ExitPolicy(  # every layer, for every token
    init=lambda ctx: State(),
    plan=lambda keys, ctx, state: (state, ctx.cache, 0),
    observe=lambda ctx, state, outcome: state,
    wrap=lambda model: model,
    weights=lambda weights, params, state: weights,
)


class Stream(NamedTuple):
    """Another model run beside the target on the same committed tokens."""

    model: Any  # LanguageModel
    params: str  # key in params
    prompts: Any = None  # its own prompts (list of token lists); None: the target's


def weakest(*guarantees: str) -> str:
    """The guarantee of a composition."""
    return max(guarantees, key=GUARANTEES.index)
