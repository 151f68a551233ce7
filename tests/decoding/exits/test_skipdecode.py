"""The schedule in exact arithmetic, what it counts, and trees under it."""

from fractions import Fraction
from math import floor

import jax.numpy as jnp
import numpy as np
import pytest

import decoding
from decoding import Method, Spec, base
from decoding.conformance import exits, kit, peaked
from decoding.exits import skipdecode
from models.errors import MethodError

NAME = "exits/skipdecode"
EXAMPLE = kit.spec(NAME)


def layers_by_hand(i, most, least, tokens, warm, depth) -> set[int]:
    """The layers of the text's token i, by the paper's formula in fractions."""
    i = min(i, tokens - 1)
    active = most - Fraction((most - least) * i, tokens - 1)
    active = floor(active + Fraction(1, 2))
    return {*range(warm), *range(depth - (active - warm), depth)}


def test_schedule_by_hand():
    for most, least, tokens, warm, depth in (
        (8, 3, 20, 1, 8),
        (7, 2, 11, 0, 8),
        (5, 5, 2, 4, 6),
        (32, 10, 2048, 2, 32),
    ):
        index = np.arange(tokens + 3)
        runs = skipdecode.runs(index, most, least, tokens, warm, depth)
        for i, column in enumerate(np.asarray(runs).T):
            due = layers_by_hand(i, most, least, tokens, warm, depth)
            assert set(np.flatnonzero(column)) == due, i
    # Planted: the text's end is skipped, not the middle.
    assert set(np.flatnonzero(~column)) != {*range(10, 32)}


def test_wrong_numbers():
    build = lambda **arguments: Spec(NAME, **arguments).build(
        {"model": peaked.functions()}
    )
    for arguments, words in (
        ({"least": 0, "tokens": 9}, "least=0"),
        ({"least": 1, "tokens": 9, "most": 3}, "most=3 of a target of 2"),
        ({"least": 1, "tokens": 1, "warm": 0}, "tokens=1"),
        ({"least": 1, "tokens": 9}, "warm=1"),
    ):
        with pytest.raises(MethodError, match=words):
            build(**arguments)


def generate(method: Method, new: int = peaked.NEW, **fields):
    drafts = {"draft": peaked.model(4)} if method.drafter else None
    prompts = fields.pop("prompts", peaked.PROMPTS)
    return decoding.generate(
        peaked.model(), prompts, method, new, drafts=drafts, **fields
    )


def test_layers_are_counted_and_numbers_are_data():
    """`layer_evals` is the mean of active(i); in plain decoding as many layers run."""
    numbers = {"least": 1, "tokens": 20, "warm": 0}
    out = generate(Method(exit=Spec(NAME, **numbers)))
    due = [len(layers_by_hand(i, 2, 1, 20, 0, 2)) for i in range(peaked.NEW)]
    assert out.stats.layer_evals == pytest.approx(np.mean(due))
    assert out.stats.layers_run == pytest.approx(np.mean(due))
    assert out.guarantee == base.under(base.ARGMAX, "skipdecode")
    other = generate(Method(exit=Spec(NAME, least=1, tokens=8, warm=0)))
    assert other.stats.compile_seconds == 0 and other.tokens != out.tokens
    assert other.stats.layer_evals < out.stats.layer_evals
    dense = generate(Method())
    assert dense.stats.layer_evals is None and dense.tokens != out.tokens
    whole = generate(Method(exit=Spec(NAME, least=2, tokens=20)))
    assert (whole.tokens, whole.logprobs) == (dense.tokens, dense.logprobs)
    assert whole.stats.compile_seconds == 0


@pytest.fixture(scope="module")
def drafted():
    return exits.of_peaked(exits.tree(EXAMPLE))


@pytest.fixture(scope="module")
def plain():
    return exits.of_peaked(Method(exit=EXAMPLE))


@pytest.mark.long
def test_trees_count_the_layers_of_what_is_committed(drafted, plain):
    """The committed tokens' layers are plain decoding's; what ran is less: a round's
    layers serve all its tokens."""
    counts = []
    for run in (plain, drafted):
        state = run.advance(exits.peaked_start(run))
        counts.append(np.asarray(state.counters.layers))
    np.testing.assert_array_equal(counts[0][:, 0], counts[1][:, 0])
    np.testing.assert_array_equal(*counts[0].T)
    assert (counts[1][:, 1] < counts[1][:, 0]).any()


@pytest.mark.long
def test_fault_all_nodes_take_the_layers_of_the_root(plain):
    run = exits.at_the_root(exits.of_peaked(exits.tree(EXAMPLE)))
    with pytest.raises(AssertionError, match="a draft changes the text"):
        exits.drafts_keep_the_text(EXAMPLE, run, plain, exits.peaked_texts)


def rising(run: kit.Run) -> kit.Run:
    """Plant a fault: the later a token, the more layers it takes."""
    policy = run.parts.program.exit

    def layers(state, positions):
        first = state.row.prompt[:, None] - 1
        return policy.layers(state, jnp.maximum(2 * first + 19 - positions, first))

    return run.alter(exit=policy._replace(layers=layers))


def test_fault_later_tokens_miss_keys():
    """Both the contract and the toy model, which checks every cache, find it."""
    with pytest.raises(AssertionError, match="misses earlier keys"):
        exits.layers_depend_on_the_place(
            EXAMPLE, rising(exits.of_peaked(Method(exit=EXAMPLE)))
        )


@pytest.mark.long
def test_an_evicted_cache_under_fewer_layers():
    """Two path-pure parts together: the tree's text is plain decoding's."""
    policy = Spec("caches/h2o", budget=12, every=4)
    alone = generate(Method(exit=EXAMPLE, policy=policy))
    tree = generate(
        Method(
            Spec("drafters/model"),
            topology=kit.spec("topologies/static"),
            exit=EXAMPLE,
            policy=policy,
        )
    )
    assert tree.tokens == alone.tokens
    assert tree.guarantee == base.under(base.ARGMAX, "h2o and skipdecode")
    # Planted: either part alone has another text.
    assert alone.tokens != generate(Method(exit=EXAMPLE)).tokens
    assert alone.tokens != generate(Method(policy=policy)).tokens
