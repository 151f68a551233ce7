"""The contract of topologies: well-formed trees for the loop and the verifiers."""

import jax
import numpy as np

from decoding import base
from decoding.catalogue import Spec
from decoding.conformance import kit
from decoding.conformance.require import require
from decoding.loops import decode
from decoding.method import Method
from decoding.tree_building import tables

TEMPERATURE = 0.9


def check(spec: Spec) -> None:
    """Check a topology against every contract of this file, under its first draw.

    Raises:
        AssertionError: it breaks a property; the message names it.
    """
    drafter, nodes = grown(spec)
    is_a_tree(spec, drafter, nodes)
    siblings_differ(spec, nodes)


def headed(topology: Spec) -> bool:
    """Whether it needs heads, or a table of the laws of all depths."""
    return topology.card.family == tables.FAMILY or "heads" in topology.card.needs


def grown(spec: Spec) -> tuple[base.Drafter, base.TokenTree]:
    """Grow one round's trees with the toy's draft model, one row per prompt."""
    topology = kit.spec(spec.name, **spec.arguments)
    grower = "drafters/dspark" if headed(topology) else "drafters/model"
    run = kit.Run(Method(kit.spec(grower), topology=topology), TEMPERATURE)
    program, state = run.parts.program, run.start()

    @jax.jit
    def draft(params, state):
        ctx = decode.context(program, params, state)
        return program.drafter.draft(state.key, ctx, state.drafter)[0]

    return program.drafter, jax.device_get(draft(run.params, state))


def is_a_tree(spec: Spec, drafter: base.Drafter, nodes: base.TokenTree) -> None:
    """Check sizes, kinds, the order of parents, the depth bound and the tokens."""
    rows, size = nodes.tokens.shape
    require(size == drafter.nodes, spec, f"{size} nodes, {drafter.nodes} declared")
    require(nodes.depth == drafter.depth, spec, f"its depth is not {drafter.depth}")
    for row in range(rows):
        parents, kind = nodes.parents[row], nodes.kind[row]
        require(parents[0] == -1, spec, "node 0 has a parent: it is the root")
        require(kind[0] == base.CANDIDATE, spec, "the root is not a CANDIDATE")
        require((kind[1:] == base.CANDIDATE).any(), spec, "it drafts nothing")
        depth = np.zeros(size, int)
        for i in range(1, size):
            if kind[i] == base.PAD:
                continue
            parent = int(parents[i])
            require(0 <= parent < i, spec, f"node {i} has the parent {parent}")
            require(kind[parent] != base.PAD, spec, f"the parent of {i} is padding")
            depth[i] = depth[parent] + 1
            known = 0 <= nodes.tokens[row, i] < kit.VOCAB
            require(known, spec, f"node {i} has the token {nodes.tokens[row, i]}")
        require(depth.max() <= nodes.depth, spec, f"a node at depth {depth.max()}")
        if nodes.linear:
            line = parents == np.arange(size) - 1
            require(line[kind != base.PAD].all(), spec, "linear, and it forks")


def siblings_differ(spec: Spec, nodes: base.TokenTree) -> None:
    """Require different tokens of siblings, except those drawn with replacement."""
    if nodes.draw == base.IID:
        return
    for row in range(len(nodes.tokens)):
        live = nodes.kind[row] == base.CANDIDATE
        pairs = np.stack([nodes.parents[row], nodes.tokens[row]], 1)[1:][live[1:]]
        different = len(np.unique(pairs, axis=0)) == len(pairs)
        require(different, spec, f"siblings repeat a token under {nodes.draw!r}")
