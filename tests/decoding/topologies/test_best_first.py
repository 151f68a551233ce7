"""The best tree of a table against EAGLE-2's, level by level, and chains."""

import jax
import jax.numpy as jnp
import pytest

from decoding import Method, Spec, base
from decoding.conformance import kit
from decoding.loops import decode
from models.errors import MethodError

NODES, DEPTH = 11, 3
HEADS = ("dflash", "dspark", "dflash2", "treeflash", "medusa", "p_eagle")
EVERY = {"above": kit.VOCAB, "children": kit.VOCAB}


def drafted(drafter: str, topology: Spec, heads=None) -> list[list[tuple]]:
    """Of every row's first tree the paths of its nodes."""
    beside = {"heads": heads} if heads is not None else ()
    run = kit.Run(Method(kit.spec(drafter), topology=topology), 0.9, beside=beside)
    program, state = run.parts.program, run.start()

    @jax.jit
    def draft(params, state):
        ctx = decode.context(program, params, state)
        return program.drafter.draft(state.key, ctx, state.drafter)[0]

    nodes = jax.device_get(draft(run.params, state))
    return [paths(nodes, row) for row in range(len(kit.PROMPTS))]


def paths(nodes: base.TokenTree, row: int) -> list[tuple]:
    found: dict[int, tuple] = {0: ()}
    for i in range(1, nodes.tokens.shape[1]):
        if nodes.kind[row, i] == base.CANDIDATE:
            above = found[int(nodes.parents[row, i])]
            found[i] = (*above, int(nodes.tokens[row, i]))
    return [path for i, path in found.items() if i]


@pytest.mark.parametrize("draw", [base.POINT, base.COUPLED])
@pytest.mark.parametrize("name", HEADS)
def test_with_every_token_it_is_eagle2_s_tree(name, draw):
    """Both take the best nodes of all; planted: a node fewer."""
    drafter = f"drafters/{name}"
    best = Spec("topologies/best_first", nodes=NODES, depth=DEPTH, draw=draw, **EVERY)
    levels = Spec(
        "topologies/eagle2", nodes=NODES, depth=DEPTH, top_k=kit.VOCAB, draw=draw
    )
    found, wanted = drafted(drafter, best), drafted(drafter, levels)
    for row, other in zip(found, wanted):
        assert len(row) == NODES - 1 and sorted(row) == sorted(other)
        assert sorted(row[:-1]) != sorted(other)


@pytest.mark.parametrize("name", ["dflash", "dspark"])
def test_one_child_a_depth_is_the_chain(name):
    """Planted: the chain of the block alone, where a head reads the token above."""
    drafter = f"drafters/{name}"
    one = {"above": kit.VOCAB, "children": 1, "nodes": DEPTH + 1, "depth": DEPTH}
    found = drafted(drafter, Spec("topologies/best_first", **one))
    chain = drafted(drafter, Spec("topologies/chain", length=DEPTH))
    assert found == chain
    marginal = drafted("drafters/dflash", Spec("topologies/chain", length=DEPTH))
    assert (found == marginal) == (name == "dflash")


def test_a_marginal_tree_is_of_the_block_alone():
    """DSpark's block with a head that says nothing; planted: its own head."""
    own = kit.heads("drafters/dspark")
    silent = {**own, "second": jnp.zeros_like(own["second"])}
    about = {"nodes": NODES, "depth": DEPTH, **EVERY}

    def tree(heads, **fields) -> list:
        topology = Spec("topologies/best_first", **about, **fields)
        return drafted("drafters/dspark", topology, heads)

    assert tree(own, marginal=True) == tree(silent)
    assert tree(own, marginal=True) != tree(own)


def test_a_drafter_of_levels_is_refused():
    method = Method(kit.spec("drafters/model"), topology=kit.spec("topologies/jetspec"))
    with pytest.raises(MethodError, match="laws of all depths"):
        kit.Run(method, 0.9).texts()
    memory = Method(kit.spec("drafters/domino"), topology=method.topology)
    with pytest.raises(MethodError, match="laws of all depths"):
        kit.Run(memory, 0.9).texts()


@pytest.mark.parametrize("wrong", [{"nodes": 1}, {"depth": 0}, {"above": 0}])
def test_numbers_that_give_no_tree(wrong):
    with pytest.raises(MethodError, match=next(iter(wrong))):
        Spec("topologies/best_first", **wrong).build(kit.PARTS)


def test_a_tree_deeper_than_the_block():
    method = Method(
        kit.spec("drafters/dflash"), topology=Spec("topologies/best_first", depth=9)
    )
    with pytest.raises(MethodError, match="9 levels"):
        kit.Run(method, 0.0)
