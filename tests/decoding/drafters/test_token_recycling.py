"""Token Recycling: its tree, its matrix, and what survives a request."""

import jax.numpy as jnp
import numpy as np
import pytest

from decoding import Method, Spec, base
from decoding.conformance import kit as conformance
from decoding.drafters import token_recycling
from decoding.tree_design import tree_shape
from models.errors import MethodError
from tests.decoding.drafters import kit

METHOD = Method(Spec("drafters/token_recycling"))


def test_the_paper_s_tree():
    """80 nodes: 8, 21, 25, 15, 8, 3 a level; the best first candidates go deepest."""
    shape = tree_shape.Shape(token_recycling.CHOICES)
    assert [len(level) for level in shape.levels] == [1, 8, 21, 25, 15, 8, 3]
    assert shape.nodes == 81 and shape.width == 8
    deepest = [c for c in shape.choices if len(c) == 6]
    assert deepest == [(0,) * 6, (0, 0, 0, 0, 0, 1), (0, 0, 0, 1, 0, 0)]
    for inside in ((0, 0, 7), (1, 3), (7, 0), (5, 0, 0), (3, 0, 0, 0), (1, 0, 0, 0, 0)):
        assert inside in shape.choices
    for outside in ((1, 4), (6, 0, 0), (4, 0, 0, 0), (2, 0, 0, 0, 0)):
        assert outside not in shape.choices


def test_memory_is_small():
    """Under 2 MB at a vocabulary of 32,000 and 8 candidates."""
    drafter = token_recycling.drafter(32_000)
    assert drafter.init(kit.context([[1]])).shared.successors.nbytes < 2e6


def test_worked_example():
    """After 1 come 2 and 3, after 2 comes 4: the tree 1 -> (2 -> (4, ?), 3 -> (?))."""
    choices = ((0,), (1,), (0, 0), (0, 1), (1, 0))
    drafter = token_recycling.drafter(8, k=2, choices=choices)
    known = jnp.full((8, 2), -1).at[1].set(jnp.array([2, 3])).at[2, 0].set(4)
    state = base.State((), token_recycling.Shared(known))
    ctx = kit.context([[5, 1], [1, 6]])
    nodes, _, _ = drafter.draft(kit.keys(2), ctx, state)
    assert nodes.tokens[0].tolist() == [1, 2, 3, 4, 0, 0]
    assert nodes.parents[0].tolist() == [-1, 0, 0, 1, 1, 2]
    there, root = base.CANDIDATE, [base.CANDIDATE] + [base.PAD] * 5
    assert nodes.kind[0].tolist() == [there] * 4 + [base.PAD] * 2
    assert nodes.kind[1].tolist() == root  # nothing is known after 6


def first_round(start: base.State | None = None) -> tuple[set, set]:
    """The drafts after token 5, and the tokens known after a round that took none."""
    drafter = token_recycling.drafter(9, k=8)
    ctx = kit.context([[5]])
    nodes, state, _ = drafter.draft(kit.keys(1), ctx, start or drafter.init(ctx))
    there = np.asarray(nodes.kind[0, 1:]) == base.CANDIDATE
    drafts = set(np.asarray(nodes.tokens[0, 1:])[there].tolist())
    seen = kit.outcome(nodes, np.zeros((1, drafter.nodes, 9)), [True])
    learned = drafter.observe(ctx, state, seen).shared.successors
    return drafts, set(np.flatnonzero((learned > 0).any(1)).tolist())


def test_it_starts_from_zeros():
    """As the official code: the first round drafts token 0 and learns its row too."""
    assert first_round() == ({0}, {0, 5})


def test_fault_it_starts_empty():
    """Planted: a matrix without candidates drafts nothing and learns the root alone."""
    none = token_recycling.Shared(jnp.full((9, 8), -1))
    assert first_round(base.State((), none)) == (set(), {5})


def learn(tokens, kind, logits, active, vocab=8, k=2):
    """The matrix after one round from the first one."""
    drafter = token_recycling.drafter(vocab, k=k, choices=((0,), (1,), (0, 0)))
    tokens = jnp.asarray(tokens, jnp.int32)
    shape = tree_shape.Shape(((0,), (1,), (0, 0)))
    nodes = shape.tree(tokens, base.POINT)
    nodes = base.TokenTree(
        nodes.tokens, nodes.parents, jnp.asarray(kind), draw=base.POINT, depth=2
    )
    ctx = kit.context([[1]] * len(tokens))
    seen = kit.outcome(nodes, logits, active)
    return np.asarray(drafter.observe(ctx, drafter.init(ctx), seen).shared.successors)


def test_update_by_hand():
    """Rows of the tree alone change; of equal tokens the deepest node wins."""
    logits = np.zeros((2, 4, 8))
    logits[0, 0, [5, 6]] = 2, 1  # node 0, token 1: 5 then 6
    logits[0, 1, [7, 4]] = 2, 1  # node 1, token 2
    logits[0, 3, [3, 0]] = 2, 1  # node 3, token 2 again, deeper
    logits[0, 2, [1, 2]] = 2, 1  # node 2, token 4, but padding
    tokens = [[1, 2, 4, 2], [6, 6, 6, 6]]
    kind = np.full((2, 4), base.CANDIDATE)
    kind[0, 2] = base.PAD
    learned = learn(tokens, kind, logits, [True, False])
    expected = np.zeros((8, 2))
    expected[1], expected[2] = (5, 6), (3, 0)
    assert learned.tolist() == expected.tolist()


@pytest.mark.parametrize("fault", ["padding", "finished rows"])
def test_fault_rows_outside_the_tree(fault):
    """Planted: padding or finished rows are taken for real and write to the matrix."""
    kind = np.full((2, 4), base.CANDIDATE)
    if fault != "padding":
        kind[0, 2] = base.PAD
    active = [True, fault != "padding"]
    learned = learn([[1, 2, 4, 2], [6, 6, 6, 6]], kind, np.zeros((2, 4, 8)), active)
    rows = set(np.flatnonzero(learned.any(1)).tolist())
    assert rows == ({1, 2, 4} if fault == "padding" else {1, 2, 6}) != {1, 2}


def test_small_vocabularies_are_padded():
    """With 3 tokens a row has 3 candidates and no more; 8 are asked for."""
    drafter = token_recycling.drafter(3)
    ctx = kit.context([[1]])
    nodes, state, _ = drafter.draft(kit.keys(1), ctx, drafter.init(ctx))
    logits = np.zeros((1, drafter.nodes, 3))
    state = drafter.observe(ctx, state, kit.outcome(nodes, logits, [True]))
    rows = [[0, 1, 2], [0, 1, 2], [0] * 8]  # 0 and 1 were seen, 2 was not
    found = state.shared.successors.tolist()
    assert found == [row + [-1] * (8 - len(row)) for row in rows]
    nodes, _, _ = drafter.draft(kit.keys(1), ctx, state)
    there = np.flatnonzero(nodes.kind[0] == base.CANDIDATE).tolist()
    order = ((), *tree_shape.Shape(token_recycling.CHOICES).choices)

    def known(path: tuple[int, ...]) -> bool:
        token = 1
        for rank in path:
            if rank >= len(rows[token]):
                return False
            token = rows[token][rank]
        return True

    assert [order[i] for i in there] == [path for path in order if known(path)]


def test_best_successor_comes_first_and_memory_lasts():
    """A greedy text teaches its bigrams; told again, it takes fewer calls."""
    first = conformance.generate(METHOD)
    known = np.asarray(first.memory.successors)
    for prompt, text in zip(conformance.PROMPTS, first.tokens):
        assert known[[prompt[-1], *text[:-1]]].any(1).all()
    again = conformance.generate(METHOD, memory=first.memory)
    assert again.tokens == first.tokens
    assert again.stats.target_calls.sum() <= first.stats.target_calls.sum()


def test_prompts_teach_where_asked():
    """The matrix knows every token of the prompt before the first round, or none."""
    prompt = [[1, 2, 3, 4, 5]] * 4
    for learn_prompt in (False, True):
        spec = Spec("drafters/token_recycling", learn_prompt=learn_prompt)
        state = conformance.Run(Method(spec)).start(prompt)
        rows = np.asarray(state.drafter.shared.successors)
        known = set(np.flatnonzero(rows.any(1)).tolist())
        assert known == ({1, 2, 3, 4} if learn_prompt else set())


def test_bad_arguments():
    with pytest.raises(MethodError, match="k=2"):
        token_recycling.drafter(100, k=2)
