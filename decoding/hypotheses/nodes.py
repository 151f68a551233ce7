"""The tree of a search: its nodes, and what a search method sees and returns.

`B` requests · `M` nodes · `K` lanes, the leaves that run in a round · `J` nodes that a
lane runs as one · `F` new leaves a round · `P` finished texts · `V` vocabulary. Node 0
is the prompt's last token; a node's depth is the number of generated tokens up to it.
"""

from collections.abc import Callable
from typing import Any, NamedTuple

import jax.numpy as jnp
from flax import struct
from jax import Array

from decoding import base, vocab
from decoding.hypotheses.pool import Pool


@struct.dataclass
class Nodes:
    """All hypotheses. Records of dead branches stay, because pools name them.

    Nodes that ran as one (`Mix`) have one slot, and their children see it.
    """

    tokens: Array  # int32[B, M]
    parents: Array  # int32[B, M]; of node 0: -1
    depth: Array  # int32[B, M]
    slot: Array  # int32[B, M]: scratch slot of its key; -1: never run, or committed
    given: Array  # float32[B, M]: log-probability under the raw target
    total: Array  # float32[B, M]: the sum of `given` on the path to the node
    value: Array  # float32[B, M]: by the reward's `node`; NaN: never run
    ended: Array  # bool[B, M]: EOS, a stop or the limit: a text ends with it
    size: Array  # int32[B]: nodes in use


@struct.dataclass
class Texts:
    """Texts that a search asks the worth of, as those of a `Pool`."""

    node: Array  # int32[A]: -1: none
    last: Array  # int32[A]: the token behind the node; -1: the node ends the text


@struct.dataclass
class Mix:
    """The nodes that each lane runs as one, and their shares of its input.

    The lane's input is the weighted sum of the rows of the embedding table of the
    nodes' tokens. It has one key and one law, which all of them share.
    """

    node: Array  # int32[K, J]: equally deep, and the lane's own among them; -1: none
    weight: Array  # float32[K, J]: of sum 1; 0 where there is none


@struct.dataclass
class View:
    """What `select` sees of one request after a round; nothing has a `B`."""

    lanes: Array  # int32[K]: the nodes that ran; -1: none
    logits: Array  # float32[K, V]: after the transform, in `Select.domain`
    raw: Array  # float32[K, V]: log-probabilities under the target
    hidden: dict[Any, Array]  # tap -> [K, D]
    aux: dict[str, Array]  # stream -> float32[K, V]
    mass: Array  # float32[K]: log of what constraints leave; 0 if not `Select.weighs`
    values: Array  # float32[A]: of the texts that were asked for in the round before
    nodes: Nodes
    limit: Array  # int32[]: generated tokens at most
    sampled: Array  # bool[]: the temperature is above 0
    round: Array  # int32[]: rounds before this one
    pool: Pool
    _stops: Callable = struct.field(pytree_node=False)
    _noise: Callable = struct.field(pytree_node=False)

    @property
    def depth(self) -> Array:
        """Generated tokens up to each lane's node, int32[K]."""
        return self.nodes.depth[jnp.maximum(self.lanes, 0)]

    @property
    def node_values(self) -> Array:
        """The values of the lanes' nodes by the reward's `node`, float32[K]."""
        return self.nodes.value[jnp.maximum(self.lanes, 0)]

    def ends(self, lane: Array, token: Array) -> Array:
        """Tell whether `token` int32[C] behind lanes int32[C] ends a text, bool[C].

        EOS, a stop token, a stop string or the limit does.
        """
        return self.stops(lane, token) | (self.depth[lane] + 1 >= self.limit)

    def stops(self, lane: Array, token: Array) -> Array:
        """Tell whether anything but the limit ends a text there, bool[C]."""
        return self._stops(self.lanes[lane], token)

    def ends_below(self, node: Array, token: Array) -> Array:
        """Tell whether `token` int32[C] behind nodes int32[C] ends a text, bool[C]."""
        depth = self.nodes.depth[jnp.maximum(node, 0)] + 1
        return self._stops(node, token) | (depth >= self.limit)

    def ids(self, there: Array) -> Array:
        """Return the ids that leaves `there` bool[F] will get, int32[F]; else -1."""
        return jnp.where(there, self.nodes.size + jnp.cumsum(there) - 1, -1)

    def noise(self, stream: Array) -> Array:
        """Draw the Gumbel noise of the tokens behind every lane, float32[K, V].

        It is that of text `stream` int32[K] of `generate(n=)` at the lane's position,
        and 0 at temperature 0.
        """
        return self._noise(stream)


class Selection(NamedTuple):
    """What `select` returns: new leaves, the next lanes, finished texts."""

    parent: Array  # int32[F]: lane
    token: Array  # int32[F]
    there: Array  # bool[F]: whether the leaf exists
    run: Array  # int32[K]: nodes that run next, see `Select.holds`; -1: none
    pool: Pool
    done: Array  # bool[]
    ask: Texts | None = None  # where `Select.asks`
    mix: Mix | None = None  # of the next lanes, where `Select.mixes`
    below: Array | None = None  # int32[F]: the leaves' parents, nodes of their lanes


LANES, ALL = "lanes", "all"


class Select(NamedTuple):
    """A search method: which hypotheses go on.

    - `init(params, size) -> State`, of one request. A text has at most `size` tokens,
      its prompt included where the search reads it.
    - `select(key, state, view) -> Selection, State` ★ runs once a round. The lanes of
      the first round are node 0 and nothing else.
    - `width`, `fan`, `pool`: K, F and P.
    - `rounds(new) -> int`: rounds for texts of `new` tokens at most.
    - `holds`: whether the next lanes are new leaves, or lanes that wait and run again
      (LANES), or any node whatever (ALL), for which all keys are kept.
    - `asks`: A, the texts whose worth it asks for in a round; the values are there in
      the next, in which the lanes of a host's reward may be empty.
    - `domain`: whether the transform receives "logits" or "logprobs".
    - `samples`: whether it draws, so that a temperature means something.
    - `rewarded`: whether it chooses by a reward, which it then needs; `valued`: whether
      this must value every node.
    - `weighs`: whether it reads `View.mass` (see `transform_chain.mass`).
    - `mixes`: J, the nodes that a lane may run as one; it then gives `Selection.mix`
      and `below`, and takes no transform that reads the text. 0: a lane runs its node.
    - `read(state, hidden, count) -> State` ★ gets the states {tap: [C, D]} of `count`
      int32[] tokens of the prompt, chunk by chunk; the last token is node 0.
    """

    init: Callable[[Any, int], base.State]
    select: Callable[[Array, base.State, View], tuple[Selection, base.State]]
    width: int
    fan: int
    pool: int
    rounds: Callable[[int], int] = lambda new: new
    domain: str = "logits"
    samples: bool = False
    holds: str = LANES
    asks: int = 0
    taps: tuple = ()
    read: Callable[[base.State, dict, Array], base.State] | None = None
    rewarded: bool = False
    valued: bool = False
    weighs: bool = False
    mixes: int = 0
    guarantee: str = base.LOSSY

    def capacity(self, new: int) -> int:
        """Return `M`, the most nodes of texts of `new` tokens."""
        return 1 + self.fan * self.rounds(new)


def best(logits: Array, count: int) -> tuple[Array, Array]:
    """Return the values and ids of the `count` best tokens, [..., count], best first.

    Beyond the vocabulary's size values are -inf.
    """
    size = min(count, logits.shape[-1])
    values, tokens = vocab.top_k(logits, size)
    room = [(0, 0)] * (values.ndim - 1) + [(0, count - size)]
    return jnp.pad(values, room, constant_values=-jnp.inf), jnp.pad(tokens, room)


def alone(lanes: Array, size: int) -> Mix:
    """Mix nothing: lanes int32[..., K] run their own nodes, of at most `size`."""
    none = jnp.full((*lanes.shape, size), -1, jnp.int32)
    weight = jnp.zeros(none.shape).at[..., 0].set(1.0)
    return Mix(none.at[..., 0].set(lanes), weight)


def first(tokens: Array, size: int) -> Nodes:
    """Make trees of one node, `tokens` int32[B], with room for `size`."""
    shape = (tokens.shape[0], size)
    zeros, none = jnp.zeros(shape, jnp.int32), jnp.full(shape, -1, jnp.int32)
    return Nodes(
        tokens=zeros.at[:, 0].set(tokens),
        parents=none,
        depth=zeros,
        slot=none,
        given=jnp.zeros(shape),
        total=jnp.zeros(shape),
        value=jnp.full(shape, jnp.nan),
        ended=jnp.zeros(shape, bool),
        size=jnp.ones(shape[0], jnp.int32),
    )
