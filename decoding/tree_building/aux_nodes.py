"""Chains of AUX nodes behind every node of a tree, which guess the tokens after it.

PPD's prompt tokens and Hidden Transfer's pseudo states are forwarded in the very call
that verifies a tree: `copies` chains of `length` nodes hang on every candidate. AUX
node j (from 0) of a node at position p stands at p + 1 + j. It sees the path to its
node and the AUX nodes before it, and its logits guess token p + 2 + j. The logits
behind the last accepted node are the laws of the next round's drafts. Only AUX nodes
see AUX nodes, so the text does not depend on them.

A *plan* (PPD's dynamic tree) gives the number of AUX nodes that every node carries, for
each number that the last accepted node had: the fewer laws, the smaller the tree.
"""

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

import jax.numpy as jnp
import numpy as np
from flax import struct
from jax import Array

from decoding import base, tree
from decoding.tree_building import draft_head, draft_model, grow
from models.errors import MethodError

Plan = Sequence[Sequence[int]]


class AuxNodes:
    """The places in the block of the AUX nodes of a tree of `size` nodes.

    The tree's nodes come first; their AUX nodes follow, node by node, chain by chain.
    AUX node j of copy c bears the id `vocab + j * copies + c`.

    Args:
        size: nodes of the tree.
        length: AUX nodes of a chain.
        copies: chains behind a node.
        vocab: size of the vocabulary.
        plan: `plan[s - 1][i]` is the number of AUX nodes behind node i when s laws are
            known, -1 if node i is absent; node 0 always carries all.
    """

    def __init__(
        self, size: int, length: int, copies: int, vocab: int, plan: Plan = ()
    ):
        self.size, self.length, self.copies = size, length, copies
        self.vocab = vocab
        shape = (size, copies, length)
        self.index = size + np.arange(size * copies * length).reshape(shape)
        self.parents = self.index - 1
        self.parents[:, :, 0] = np.arange(size)[:, None]
        step, copy = np.arange(length), np.arange(copies)[:, None]
        ids = vocab + step * copies + copy
        self.tokens = np.broadcast_to(ids, shape)
        self.nodes = size * (1 + copies * length)
        self.planned = bool(plan)
        if plan:
            self._check(plan)
            root = (length, *(-1,) * (size - 1))
            self._select([root, *plan])

    def _check(self, plan: Plan) -> None:
        for s, counts in enumerate(plan, 1):
            wrong = [n for n in counts if not -1 <= n <= self.length]
            if len(counts) != self.size or wrong or counts[0] != self.length:
                raise MethodError(
                    f"plan[{s - 1}]={tuple(counts)}: give each of the {self.size} "
                    f"nodes -1 to {self.length} AUX nodes, and node 0 all of them"
                )
        if len(plan) != self.length:
            raise MethodError(
                f"a plan of {len(plan)} states for {self.length} AUX nodes: give one "
                f"state for each number of known laws, 1 to {self.length}"
            )

    def _select(self, plan: Plan) -> None:
        """Tabulate, by state, the nodes present and the place of each."""
        chosen = []
        for counts in plan:
            there = np.asarray(counts)[:, None, None] > np.arange(self.length)
            aux = self.index[np.broadcast_to(there, self.index.shape)]
            nodes = np.flatnonzero(np.asarray(counts) >= 0)
            chosen.append(np.concatenate([nodes, aux]))
        num_all, self.nodes = self.nodes, max(map(len, chosen))
        present = np.full((len(plan), self.nodes), -1, np.int32)
        place = np.full((len(plan), num_all), -1, np.int32)
        for s, nodes in enumerate(chosen):
            present[s, : len(nodes)] = nodes
            place[s, nodes] = np.arange(len(nodes))
        self.kept, self.place = jnp.asarray(present), jnp.asarray(place)

    def attach(self, drawn: base.TokenTree, known: Array) -> base.TokenTree:
        """Append the AUX nodes to a tree.

        `known` int32[B] is the number of levels whose laws are known; deeper nodes
        become padding.
        """
        batch = drawn.tokens.shape[0]
        deep = tree.depths(drawn) > known[:, None]
        kind = jnp.where(deep, base.PAD, drawn.kind)
        carried = jnp.where(kind == base.CANDIDATE, base.AUX, base.PAD)
        carried = jnp.repeat(carried, self.copies * self.length, 1)

        def join(field: Array, aux: np.ndarray) -> Array:
            flat = jnp.asarray(aux.reshape(-1), jnp.int32)
            return jnp.concatenate(
                [field, jnp.broadcast_to(flat, (batch, flat.size))], 1
            )

        logits = drawn.logits
        if logits is not None:
            logits = jnp.pad(logits, ((0, 0), (0, carried.shape[1]), (0, 0)))
        whole = replace(
            drawn,
            tokens=join(drawn.tokens, self.tokens),
            parents=join(drawn.parents, self.parents),
            kind=jnp.concatenate([kind, carried], 1).astype(jnp.int32),
            logits=logits,
            slots=None,
            depth=drawn.depth + self.length,
            linear=False,
            aux=True,
        )
        return tree.select(whole, self.kept[known]) if self.planned else whole

    def nothing(self, ctx: base.Context, grown: Any = ()) -> "Row":
        """Return the rows' state before the first round: no law is known."""
        batch = ctx.tokens.shape[0]
        laws = jnp.zeros((batch, self.length, self.vocab), jnp.float32)
        return Row(laws, jnp.zeros((batch,), jnp.int32), grown)

    def read(
        self, outcome: base.Outcome, laws: Array, known: Array
    ) -> tuple[Array, Array]:
        """Read the laws [B, length, V] behind the last accepted node, and their number.

        `laws` and `known` are the previous round's, which idle rows keep. The logits of
        the copies are averaged.
        """
        node = tree.last_node(outcome.verdict)[:, None]
        if self.planned:
            node = jnp.take_along_axis(self.kept[known], node, 1)
        at = jnp.asarray(self.index, jnp.int32)[node[:, 0]]  # [B, copies, length]
        if self.planned:
            flat = at.reshape(at.shape[0], -1)
            at = jnp.take_along_axis(self.place[known], flat, 1).reshape(at.shape)
        raw: Any = outcome.target.logits
        rows = jnp.arange(at.shape[0])[:, None, None]
        logits = raw[rows, jnp.maximum(at, 0)].mean(1)
        there = outcome.tree.kind[rows[..., 0], jnp.maximum(at[:, 0], 0)] == base.AUX
        count = ((at[:, 0] >= 0) & there).sum(-1).astype(known.dtype)
        moved = outcome.active & (outcome.verdict.count >= 0)
        logits = jnp.where(moved[:, None, None], logits.astype(laws.dtype), laws)
        return logits, jnp.where(moved, count, known)

    def learn(
        self, topology: base.Topology, own: base.State, outcome: base.Outcome
    ) -> base.State:
        """Return the topology's state after a round; a plan leaves it unchanged."""
        if self.planned:
            return own
        seen = draft_model.part(
            outcome, topology, outcome.verdict.count, outcome.active
        )
        return topology.adapt(own, seen)


@struct.dataclass
class Row:
    """One row's state of a drafter whose laws come from AUX nodes."""

    laws: Array  # float32[B, length, V]: raw logits behind the last node
    known: Array  # int32[B]: number of valid laws
    grown: Any  # the topology's row state


def passed(row: Row, outcome: base.Outcome) -> Row:
    """Forget the laws after a pause: they are of positions that have passed."""
    return replace(row, known=jnp.where(outcome.active, 0, row.known))


def drafter(
    topology: base.Topology,
    aux: AuxNodes,
    wrap: Callable[[Any], Any],
    weights: Callable[[base.Params, base.State], Any],
) -> base.Drafter:
    """Draft the next tree from the guesses of the last accepted node's AUX nodes.

    `wrap` makes the target embed AUX nodes, and `weights` gives its params. The chunks
    of a prompt carry no AUX nodes, so the first round drafts nothing.
    """

    def init(ctx: base.Context) -> base.State:
        grown = topology.init(ctx.tokens.shape[0])
        return base.State(aux.nothing(ctx, grown.row), grown.shared)

    def draft(keys, ctx: base.Context, state: base.State):
        row = state.row
        topology_state = base.State(row.grown, state.shared)
        call, at = draft_head.by_level(row.laws), ctx.length - 1
        nodes, grown, _ = grow.sprout(
            call, (), at, ctx, topology, keys, topology_state, row.laws[:, 0]
        )
        nodes = aux.attach(nodes, row.known)
        return nodes, base.State(row.replace(grown=grown.row), grown.shared), ctx.cache

    def observe(ctx: base.Context, state: base.State, outcome: base.Outcome):
        row = state.row
        if outcome.is_prompt:
            return state
        if outcome.is_pause:
            return base.State(passed(row, outcome), state.shared)
        topology_state = aux.learn(
            topology, base.State(row.grown, state.shared), outcome
        )
        laws, known = aux.read(outcome, row.laws, row.known)
        return base.State(Row(laws, known, topology_state.row), topology_state.shared)

    return base.Drafter(
        init,
        draft,
        observe,
        aux.nodes,
        topology.depth + aux.length,
        wrap=wrap,
        weights=weights,
        pauses=True,
    )
