"""Lookahead decoding: its window, its pool, and that both come from the model."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from decoding import Method, Spec, tree
from decoding.conformance import kit as conformance
from decoding.drafters import lookahead
from models.errors import MethodError
from models.synthetic import toy
from tests.decoding.drafters import kit

SMALL = {"ngram": 3, "window": 3, "guesses": 3}
METHOD = Method(Spec("drafters/lookahead", **SMALL))


def test_worked_example():
    """N = 4, W = 3: at first five columns of one level; two n-grams share a start."""
    drafter = lookahead.drafter(10, (), ngram=4, window=3, guesses=3)
    ctx = kit.context([[5, 5, 1]])
    state = drafter.init(ctx)
    pool = state.shared.pool.at[1, 1:].set(jnp.array([[2, 3, 4], [2, 3, 6]]))
    nodes, state = kit.jitted(drafter)(
        [[5, 5, 1]], state.replace(shared=lookahead.Shared(pool))
    )
    assert nodes.parents[0, :5].tolist() == [-1, 0, 1, 2, 3]
    assert nodes.kind[0, :9].tolist() == [1, 2, 2, 2, 2, 0, 0, 0, 0]
    assert kit.paths(nodes) == [(2,), (2, 3), (2, 3, 4), (2, 3, 6)]
    assert set(state.row.window.ravel().tolist()) <= {5, 1}  # tokens of the text
    assert int(state.row.window[0, 0, 0]) == 1


def test_blocks_while_the_window_fills():
    """N = 4, W = 3: five columns, then two levels of four, then three of three."""
    drafter = lookahead.drafter(100, (), ngram=4, window=3, guesses=1)
    tokens = [[5, 5, 1]] * 3
    start = drafter.init(kit.context(tokens))
    grid = 10 * jnp.arange(3)[:, None] + jnp.arange(5)
    row = lookahead.Row(jnp.stack([grid] * 3), jnp.array([1, 2, 3]))
    nodes, _ = kit.jitted(drafter)(tokens, start.replace(row=row))
    seen = [
        [(int(token), depth) for token, depth, kind in zip(*row) if kind]
        for row in zip(nodes.tokens, tree.depths(nodes).tolist(), nodes.kind)
    ]
    level = list(zip((1, 1, 2, 3, 4), range(5)))  # the root is the text's last token
    up = [[(10 * up + c, up + c) for c in range(5)] for up in range(3)]
    assert seen[0] == level
    assert seen[1] == level[:4] + up[1][:4]
    assert seen[2] == level[:3] + up[1][:3] + up[2][:3]


def test_the_pool_forgets_the_oldest():
    """Three entries of a key: one said again becomes the newest, a fourth replaces."""
    pool = jnp.full((4, 3, 2), -1, jnp.int32)
    grams = [[1, 1], [2, 2], [3, 3], [2, 2], [1, 0], [3, 0]]
    keys = jnp.array([0, 0, 0, 0, 0, 3])
    valid = jnp.array([True] * 5 + [False])
    pool = jax.jit(lookahead.insert)(pool, keys, jnp.array(grams), valid)
    assert pool[0].tolist() == [[3, 3], [2, 2], [1, 0]]
    assert (pool[1:] == -1).all()


def moved(levels: int, best=(90, 91, 92, 93, 94)) -> list:
    """A window of N = 4, W = 3 (tokens 10 l + c) after a round; `best` is new."""
    window = 10 * jnp.arange(3)[:, None] + jnp.arange(5)
    row = lookahead.Row(window[None], jnp.array([levels]))
    row = lookahead._move(row, jnp.array([best]))
    assert row.levels.tolist() == [min(levels + 1, 3)]
    width = 3 + 3 - min(levels + 1, 3)
    return row.window[0, : levels + 1, :width].tolist()


def test_the_window_moves_by_one_position():
    """A full one loses a level; one being filled, a column."""
    assert moved(3) == [[10, 11, 12], [20, 21, 22], [90, 91, 92]]
    assert moved(3, (90, -1, 92, 0, 0))[2] == [90, -1, 92]  # an end of text
    assert moved(1) == [[1, 2, 3, 4], [91, 92, 93, 94]]
    assert moved(2) == [[1, 2, 3], [11, 12, 13], [91, 92, 93]]


def after_a_round(accepted: int) -> list:
    """The full window after a round that accepted `accepted` drafts of the pool."""
    drafter = lookahead.drafter(100, (), ngram=4, window=3, guesses=1)
    ctx = kit.context([[5, 5, 1]])
    window = 10 * jnp.arange(1, 4)[:, None] + jnp.arange(5)
    start = drafter.init(ctx)
    row = lookahead.Row(window[None], jnp.array([3]))
    nodes, state, _ = drafter.draft(kit.keys(1), ctx, start.replace(row=row))
    logits = jax.nn.one_hot(jnp.arange(90, 90 + drafter.nodes)[None] % 100, 100)
    seen = kit.outcome(nodes, logits, [True])
    count = jnp.array([accepted], jnp.int32)
    seen = seen.replace(verdict=seen.verdict.replace(count=count))
    return drafter.observe(ctx, state, seen).row.window[0, :, :3].tolist()


@pytest.mark.long
def test_accepted_drafts_do_not_move_the_window():
    """As the official code (ALWAYS_FWD_ONE): one position, with and without drafts."""
    stays = [[20, 21, 22], [30, 31, 32], [96, 97, 98]]  # nodes 6 .. 8: the top level
    assert after_a_round(0) == after_a_round(3) == stays


def test_fault_accepted_drafts_move_the_window(monkeypatch):
    """Planted: the columns follow the text (the code with ALWAYS_FWD_ONE = 0)."""
    sound = lookahead._move

    def follows(row, best):
        window = sound(row, best).window[:, :, 1:]
        window = jnp.pad(window, ((0, 0), (0, 0), (0, 1)), constant_values=-1)
        return row.replace(window=window)

    stays = after_a_round(1)
    monkeypatch.setattr(lookahead, "_move", follows)
    assert after_a_round(1) == [[21, 22, 23], [31, 32, 33], [97, 98, 98]] != stays


def predicted(shared, params) -> list[bool]:
    """Of every n-gram x .. y z in the pool: whether z is the model's own after x y.

    The toy model looks at two tokens, and with N = 3 these are the n-gram's others.
    """
    pool = np.asarray(shared.pool)
    return [
        int(toy.logits(params, [key, int(y)]).argmax()) == z
        for key in range(len(pool))
        for y, z in pool[key]
        if y >= 0
    ]


@pytest.mark.long
def test_the_pool_is_the_model_s():
    """All n-grams are steps of the model, also at temperature 0.8; they are used."""
    params = conformance.TARGET.params
    for temperature in (0.0, 0.8):
        out = conformance.generate(METHOD, temperature)
        right = predicted(out.memory, params)
        assert len(right) > 8 and all(right)
    greedy = conformance.generate(METHOD)
    again = conformance.generate(METHOD, memory=greedy.memory)
    assert again.tokens == greedy.tokens
    assert greedy.stats.tokens_per_call > 1
    assert again.stats.target_calls.sum() < greedy.stats.target_calls.sum()


def test_fault_the_neighbour_s_logits():
    """Planted: the window reads the logits of the node before; the pool is not it."""
    run = conformance.Run(METHOD)
    sound = run.parts.program.drafter

    def observe(ctx, state, outcome):
        if outcome.is_prompt:
            return sound.observe(ctx, state, outcome)
        target = outcome.target
        target = target.replace(logits=jnp.roll(target.logits, 1, 1))
        return sound.observe(ctx, state, outcome.replace(target=target))

    run.alter(drafter=sound._replace(observe=observe))
    state = run.advance(run.start())
    assert not all(predicted(state.drafter.shared, conformance.TARGET.params))


def test_prompts_fill_the_pool_where_asked():
    """Of the prompt's n-grams the pool holds the last three of each token."""
    prompt = [1, 2, 3, 1, 2, 4, 1, 2, 3, 1, 5, 1, 6, 2]
    expected: dict[int, list] = {}
    for key, *gram in zip(prompt, prompt[1:], prompt[2:]):
        entry = expected.setdefault(key, [])
        if gram in entry:
            entry.remove(gram)
        expected[key] = [*entry, gram][-3:]
    method = Method(Spec("drafters/lookahead", pool_from_prompt=True, **SMALL))
    state = conformance.Run(method).start([prompt] * 4)
    pool = np.asarray(state.drafter.shared.pool)
    for key in range(conformance.VOCAB):
        there = pool[key][pool[key, :, 0] >= 0].tolist()
        assert there == expected.get(key, [])
    state = conformance.Run(METHOD).start([prompt] * 4)
    assert (np.asarray(state.drafter.shared.pool) == -1).all()


def test_bad_arguments():
    with pytest.raises(MethodError, match="ngram=2"):
        lookahead.drafter(10, ngram=2)
    with pytest.raises(MethodError, match="guesses=0"):
        lookahead.drafter(10, guesses=0)
