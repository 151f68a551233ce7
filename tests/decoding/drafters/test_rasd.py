"""RASD: joining by hand, pruning, and that the draft model's tree loses nothing."""

import jax
import jax.numpy as jnp
import pytest

from decoding import Method, Spec, base
from decoding.conformance import kit as conformance
from decoding.drafters import rasd
from decoding.topologies import static
from decoding.tree_building import draft_model
from models.errors import MethodError
from tests.decoding.drafters import kit

CASE = conformance.cases()["rasd-chain"]
CHAIN = Method(CASE.drafter, topology=CASE.topology)  # drafts of 3, paths of 4


def small_tree() -> base.TokenTree:
    """1 -> (2 -> 4, 3); the last node is padding that bears a 9."""
    return base.TokenTree(
        jnp.array([[1, 2, 3, 4, 9]]),
        jnp.array([[-1, 0, 0, 1, 0]]),
        jnp.array([[1, 1, 1, 1, 0]]),
        depth=2,
    )


def test_worked_example():
    """2 4 6 goes on below the tree's 2 4; 2 5 7 and 2 5 8 share their 5; 3 is there;
    9 hangs on the root, padding being no node; a path of no tokens adds nothing."""
    after = jnp.array(
        [[[2, 4, 6], [2, 5, 7], [2, 5, 8], [3, 0, 0], [9, 1, 0], [7] * 3]]
    )
    count = jnp.array([[3, 3, 3, 1, 2, 0]])
    joined = jax.jit(rasd.join)(small_tree(), after, count)
    old = [(2,), (3,), (2, 4)]
    new = [(2, 4, 6), (2, 5), (2, 5, 7), (2, 5, 8), (9,), (9, 1)]
    assert kit.paths(joined) == old + new
    assert joined.tokens.shape == (1, 5 + 18) and joined.depth == 3
    same = rasd.join(small_tree(), after, 0 * count)
    assert kit.paths(same) == old


def test_fault_a_path_that_starts_anew():
    """Planted: retrieved paths hung on the root, whatever the tree holds: a sibling
    stands twice, which the check of the worked example sees."""
    joined = rasd.join(small_tree(), jnp.array([[[2, 4, 6]]]), jnp.array([[3]]))
    tokens = joined.tokens.at[0, 5:].set(jnp.array([2, 4, 6]))
    kind = joined.kind.at[0, 5:].set(base.CANDIDATE)
    parents = joined.parents.at[0, 5:].set(jnp.array([0, 5, 6]))
    wrong = joined.replace(tokens=tokens, kind=kind, parents=parents)
    with pytest.raises(AssertionError):
        kit.paths(wrong)


def test_pruning():
    """Of first tokens 0, 3, 1, 2 the law's three best stay, the two best of them."""
    law = jnp.log(jnp.array([0.1, 0.4, 0.3, 0.2]))
    after = jnp.array([[0, 9], [3, 8], [1, 7], [2, 6]])
    count = jnp.array([2, 2, 2, 2])
    prune = jax.jit(rasd._prune, static_argnums=(3, 4))
    kept, size = prune(law, after, count, 3, 2)
    assert kept.tolist() == [[1, 7], [2, 6]] and size.tolist() == [2, 2]
    kept, size = prune(law, after, count, 1, 2)
    assert kept[0].tolist() == [1, 7] and size.tolist() == [2, 0]
    assert prune(law, after, 0 * count, 3, 2)[1].tolist() == [0, 0]


def accepted(run) -> list[int]:
    return [
        c
        for _, count, room in kit.rounds(run, conformance.PROMPTS)
        for c in count[room].tolist()
    ]


def test_no_less_than_the_draft_model():
    """The target as draft: its chain of 3 is always accepted, and retrieved tokens
    beyond it sometimes, which the draft model then reads."""
    found = accepted(conformance.Run(CHAIN, 0.0, draft=conformance.TARGET))
    assert set(found) == {3, 4}


def test_fault_retrieved_tokens_are_not_read(monkeypatch):
    """Planted: the draft's cache is taken to hold every token, retrieved ones too."""

    def forget(model, params, cache, ctx, size):
        return cache.replace(length=ctx.length - 1), jnp.int32(0)

    monkeypatch.setattr(draft_model, "catch_up", forget)
    run = conformance.Run(CHAIN, 0.0, draft=conformance.TARGET).alter()
    assert min(accepted(run)) < 3


def test_bad_arguments():
    grown = static.topology(draw=base.IID)
    model = conformance.DRAFT.model
    with pytest.raises(MethodError, match="'iid'"):
        rasd.drafter(model, grown)
    with pytest.raises(MethodError, match="places=2"):
        rasd.drafter(model, static.topology(), places=2)
    with pytest.raises(MethodError, match="iid"):
        method = Method(CHAIN.drafter, Spec("verifiers/rejection"), CHAIN.topology)
        conformance.generate(method, 0.8)
