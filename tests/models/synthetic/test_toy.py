"""The toy model: its law, and that every kind of cache or mask fault shows."""

import numpy as np
import pytest

from models import base, errors
from models.synthetic import toy
from tests.models import blocks

SIZE = 24
LM, PARAMS = toy.model(vocab=5, order=2, seed=3)


def _tokens(rng, batch, nodes):
    return rng.integers(0, 5, (batch, nodes)).astype(np.int32)


def test_block_equals_table_and_steps_bitwise():
    tokens = _tokens(np.random.default_rng(0), 3, 9)
    one = blocks.whole(LM, PARAMS, tokens, SIZE)
    np.testing.assert_array_equal(one, blocks.stepwise(LM, PARAMS, tokens, SIZE))
    for b in range(3):
        alone = blocks.whole(LM, PARAMS, tokens[b : b + 1], SIZE)
        np.testing.assert_array_equal(one[b], alone[0])
        for i in range(9):
            expected = toy.logits(PARAMS, tokens[b, : i + 1])
            np.testing.assert_array_equal(one[b, i], expected)


@pytest.mark.parametrize("order", [1, 3])
def test_other_orders(order):
    lm, params = toy.model(vocab=4, order=order, n_layers=3, d_model=6)
    tokens = _tokens(np.random.default_rng(1), 2, 7) % 4
    got = blocks.whole(lm, params, tokens, SIZE)
    np.testing.assert_array_equal(got[1, 6], toy.logits(params, tokens[1]))


def test_sequence_law_is_the_product_of_conditionals():
    joint = toy.sequence_law(PARAMS, [1, 2], 3)
    assert joint.shape == (5, 5, 5)
    np.testing.assert_allclose(joint.sum(), 1.0, atol=1e-12)
    context, p = [1, 2], 1.0
    for token in (4, 0, 3):
        p *= toy.law(PARAMS, context)[token]
        context.append(token)
    np.testing.assert_allclose(joint[4, 0, 3], p, rtol=1e-12)
    hot = toy.sequence_law(PARAMS, [1], 2, lambda x, context: x / 0.5)
    raw = toy.logits(PARAMS, [1]).astype(np.float64) * 2
    np.testing.assert_allclose(hot.sum(1), np.exp(raw) / np.exp(raw).sum(), rtol=1e-9)


def _tree(seed=0, nodes=7):
    rng = np.random.default_rng(seed)
    prompt, counts = _tokens(rng, 2, 6), [6, 3]
    _, cache = blocks.prefill(LM, PARAMS, prompt, counts, SIZE, base.NONE)
    parents = blocks.random_tree(rng, 2, nodes)
    return rng, prompt, counts, cache, parents, _tokens(rng, 2, nodes)


def test_tree_nodes_equal_their_paths():
    _, prompt, counts, cache, parents, tokens = _tree()
    block = blocks.tree_block(tokens, parents, counts)
    out, _ = blocks.call(LM)(PARAMS, cache, block)
    for b in range(2):
        for i in range(7):
            path = [0, *blocks.path_of(parents[b], i)]
            context = [*prompt[b, : counts[b]], *tokens[b, path]]
            expected = toy.logits(PARAMS, context)
            np.testing.assert_array_equal(out.logits[b, i], expected)


def test_commit_and_next_block():
    _, prompt, counts, cache, parents, tokens = _tree()
    block = blocks.tree_block(tokens, parents, counts)
    _, cache = blocks.call(LM)(PARAMS, cache, block)
    paths = [blocks.path_of(parents[b], 6) for b in range(2)]
    width = max(map(len, paths))
    path = np.array([p + [0] * (width - len(p)) for p in paths])
    count = np.array([len(p) for p in paths])
    cache = blocks.keep(cache, blocks.ints(path), blocks.ints(count))
    out, _ = blocks.prefill(LM, PARAMS, [[2], [4]], [1, 1], SIZE, cache=cache)
    for b, last in enumerate((2, 4)):
        context = [*prompt[b, : counts[b]], *tokens[b, [0, *paths[b]]], last]
        np.testing.assert_array_equal(out.logits[b, 0], toy.logits(PARAMS, context))


def _faults():
    """Ways to break a block or its cache that a correct loop never produces."""

    def drop_ancestor(cache, block):
        see = block.visibility.ancestors & ~np.uint32(1)
        return cache, block.replace(visibility=block.visibility.replace(ancestors=see))

    def see_sibling(cache, block):
        see = block.visibility.ancestors | np.uint32(0b111)
        return cache, block.replace(visibility=block.visibility.replace(ancestors=see))

    def short_prefix(cache, block):
        return cache, block.replace(
            visibility=block.visibility.replace(prefix=block.visibility.prefix - 1)
        )

    def shifted(cache, block):
        return cache, block.replace(positions=block.positions + 1)

    def stale_layer(cache, block):
        layers = list(cache.layers)
        layers[0] = layers[0].replace(pos=layers[0].pos.at[:, 1].add(1))
        return cache.replace(layers=tuple(layers)), block

    def other_rows(cache, block):
        layers = list(cache.layers)
        layers[0] = layers[0].gather(np.array([1, 0]))
        return cache.replace(layers=tuple(layers)), block

    return [drop_ancestor, see_sibling, short_prefix, shifted, stale_layer, other_rows]


@pytest.mark.parametrize("fault", _faults(), ids=lambda f: f.__name__)
def test_faults_show(fault):
    _, _, counts, cache, _, tokens = _tree(nodes=4)
    parents = np.array([[-1, 0, 0, 1]] * 2)
    block = blocks.tree_block(tokens, parents, counts)
    good, _ = blocks.call(LM)(PARAMS, cache, block)
    bad, _ = blocks.call(LM)(PARAMS, *fault(cache, block))
    changed = (np.asarray(good.logits) != np.asarray(bad.logits)).any(-1)
    assert changed[:, 3].all(), changed


def test_skipped_layer_must_be_filled():
    run = np.array([[True, True], [False, True]])
    tokens = _tokens(np.random.default_rng(5), 1, 4)
    cache = LM.init_cache(1, SIZE)
    block = blocks.causal(
        blocks.ints(tokens), cache.length, blocks.ints([4]), SIZE, base.ALL
    )
    skipped, cache = blocks.call(LM)(PARAMS, cache, block.replace(run=run))
    full = blocks.whole(LM, PARAMS, tokens, SIZE)
    assert (np.asarray(skipped.logits) != full).any()
    x = LM.embed(PARAMS, block.tokens, block.positions)
    filled = LM.fill(PARAMS, cache, x, block, 1, 2)
    for ready, same in ((cache, False), (filled, True)):
        after = blocks.commit(ready, [4])
        out, _ = blocks.prefill(LM, PARAMS, [[1]], [1], SIZE, cache=after)
        expected = toy.logits(PARAMS, [*tokens[0], 1])
        assert np.array_equal(out.logits[0, 0], expected) == same


def test_taps_are_deterministic_and_wide():
    tokens = _tokens(np.random.default_rng(6), 2, 5)
    cache = LM.init_cache(2, SIZE)
    block = blocks.causal(
        blocks.ints(tokens), cache.length, blocks.ints([5, 5]), SIZE, base.LAST
    )
    out, _ = blocks.call(LM, (0, 1, 2, "norm"))(PARAMS, cache, block)
    assert out.logits.shape == (2, 1, 5)
    assert all(out.hidden[i].shape == (2, 5, 8) for i in (0, 1, 2))
    assert len(np.unique(np.asarray(out.hidden[2])[..., -1])) > 5


def test_bad_arguments():
    with pytest.raises(errors.ConfigError, match="order=0"):
        toy.model(order=0)
    with pytest.raises(errors.ConfigError, match="d_model=3"):
        toy.model(d_model=3)
    with pytest.raises(errors.ConfigError, match="too many"):
        toy.model(vocab=100, order=4)
