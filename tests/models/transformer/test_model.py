"""The transformer as pure functions: parts, trees, commits, copies, other forms.

fp32 logits of blocks of different widths differ by rounding (about 1e-5 here), so the
comparisons across widths are to 1e-4 and those of equal programs are bitwise.
"""

import dataclasses
import re

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax

from models import base, errors, transformer
from models.transformer import modules
from models.transformer.layer import Layer
from tests.models import blocks
from tests.models.small import (
    CONFIG,
    LM,
    PARAMS,
    SIZE,
    TOLERANCE,
    causal,
    close,
    random_tokens,
)

# ---------------------------------------------------------------- the parts


@jax.jit
def by_parts(params, cache, block):
    """The same call from `embed`, `layers` in two pieces, `norm` and `head`."""
    cache = cache.open(block)
    x = LM.embed(params, block.tokens, block.positions)
    x, cache, first = LM.layers(params, cache, x, block, 0, 1, (0, 1))
    x, cache, second = LM.layers(params, cache, x, block, 1, 3, (3,))
    return LM.head(params, LM.norm(params, x)), cache, {**first, **second}


def test_parts_compose_to_the_call():
    cache, block = causal(random_tokens(0, 2, 6))
    taps = (0, 1, 2, 3, "norm")
    out, after = blocks.call(LM, taps)(PARAMS, cache, block)
    logits, split, hidden = by_parts(PARAMS, cache, block)
    close(logits, out.logits)
    for i in (0, 1, 3):
        close(hidden[i], out.hidden[i])
    for a, b in zip(jax.tree.leaves(split), jax.tree.leaves(after)):
        close(a, b)
    assert [out.hidden[t].shape for t in taps] == [(2, 6, 32)] * 5
    # A tap is the state, not a copy of its neighbour.
    assert np.abs(out.hidden[1] - out.hidden[2]).max() > 0.1


@pytest.mark.parametrize("fields", [{}, {"tied": False, "final_softcap": 0.5}])
def test_logits_of_some_tokens(fields):
    """Those of the whole head; planted: those of the tokens' neighbours."""
    lm = transformer.transformer(dataclasses.replace(CONFIG, **fields))
    params = blocks.numpy_params(lm)
    x = np.random.default_rng(5).normal(size=(2, 3, 32)).astype(np.float32)
    ids = random_tokens(6, 2, 3, 4)
    whole, some = jax.jit(lambda p, x, i: (lm.head(p, x), lm.logits_of(p, x, i)))(
        params, x, ids
    )
    close(some, np.take_along_axis(np.asarray(whole), ids, -1))
    other = np.take_along_axis(np.asarray(whole), (ids + 1) % 50, -1)
    assert np.abs(some - other).max() > 0.1


BIASED = {"norm": "layer", "gated": False, "activation": "gelu", "mlp_bias": True}
BLOCKS = ({}, BIASED, {"post_norms": True, "norm_offset": 1.0, "embed_scale": 5.0})


@pytest.mark.parametrize("fields", BLOCKS, ids=("rms", "layer", "post_norms"))
def test_what_the_last_feed_forward_reads(fields):
    """By hand from the state after attention; planted: that state without the norm."""
    config = dataclasses.replace(CONFIG, **fields)
    lm = transformer.transformer(config)
    params, (_, block) = blocks.numpy_params(lm), causal(random_tokens(7, 2, 5))
    call, cache = blocks.call(lm, (base.FFN_INPUT, 3)), lm.init_cache(2, SIZE)
    run = jnp.ones((3, 2), bool).at[2, 1].set(False)
    out, _ = call(params, cache, block)
    without, _ = call(params, cache, block.replace(run=run))
    x = np.asarray(without.hidden[3])  # the last feed-forward is left out
    norm = params["layer_2"]["mlp_norm"]
    centred = x - x.mean(-1, keepdims=True) if config.norm == "layer" else x
    scaled = centred / np.sqrt((centred**2).mean(-1, keepdims=True) + config.norm_eps)
    want = scaled * (norm["scale"] + config.norm_offset) + norm.get("bias", 0.0)
    for hidden in (out.hidden, without.hidden):
        close(hidden[base.FFN_INPUT], want)
    assert np.abs(out.hidden[base.FFN_INPUT] - x).max() > 0.1
    layer, last = Layer(config), {"params": params["layer_2"]}
    close(out.hidden[3], x + layer.apply(last, x, method="feed_forward"))


def test_logits_only_where_asked():
    cache, block = causal(random_tokens(1, 2, 6))
    out, after = blocks.call(LM)(PARAMS, cache, block)
    last, same = blocks.call(LM)(PARAMS, cache, block.replace(logits_at=base.LAST))
    none, _ = blocks.call(LM)(PARAMS, cache, block.replace(logits_at=base.NONE))
    assert last.logits.shape == (2, 1, 50) and none.logits is None
    close(last.logits[:, 0], out.logits[:, -1])
    close(same.layers[2].k, after.layers[2].k)


@jax.jit
def by_hand(params, cache, block, run):
    """Layers 0..2 with what `run` leaves out written as a Python choice by `where`."""
    cache = cache.open(block)
    x = LM.embed(params, block.tokens, block.positions)
    layer = Layer(CONFIG)
    mask = base.dense_mask(block.visibility, SIZE)
    distance = block.positions[:, :, None] - cache.pos[:, None]
    rotation = modules.rotations(CONFIG, block.positions, SIZE)[0]
    stores = list(cache.layers)
    for i in range(3):
        variables = {"params": params[f"layer_{i}"]}
        q, k, v = layer.apply(variables, x, rotation, method="project")
        store = stores[i].append(block.slots, k, v)
        seen = mask & (distance < 5) if i == 1 else mask
        out = modules.attend(CONFIG, q, *store.read(), seen)
        y = x + layer.apply(variables, out, method="merge")
        keep = lambda a, b, on: jax.tree.map(lambda a, b: jnp.where(on, a, b), a, b)
        x, stores[i] = keep((y, store), (x, stores[i]), run[i, 0])
        y = x + layer.apply(variables, x, method="feed_forward")
        x = keep(y, x, run[i, 1])
    return LM.head(params, LM.norm(params, x)), stores


def test_run_mask_skips_what_it_says():
    cache, block = causal(random_tokens(2, 2, 5))
    full, _ = blocks.call(LM)(PARAMS, cache, block)
    for bits in (0b111111, 0b110111, 0b011011, 0b001100, 0):
        run = jnp.array([(bits >> i) & 1 for i in range(6)], bool).reshape(3, 2)
        out, after = blocks.call(LM)(PARAMS, cache, block.replace(run=run))
        logits, stores = by_hand(PARAMS, cache, block, run)
        close(out.logits, logits)
        for a, b in zip(after.layers, stores):
            close(a.k, b.k)
        assert (np.abs(out.logits - full.logits).max() < 1e-4) == (bits == 0b111111)


def test_layers_that_may_be_skipped_share_the_mask_of_their_window():
    """All run; planted: the second does not."""
    lm = transformer.transformer(dataclasses.replace(CONFIG, windows=(5, 5, 0)))
    cache, block = causal(random_tokens(2, 2, 9))
    full, _ = blocks.call(lm)(PARAMS, cache, block)
    run = jnp.ones((3, 2), bool)
    out, _ = blocks.call(lm)(PARAMS, cache, block.replace(run=run))
    close(out.logits, full.logits)
    less, _ = blocks.call(lm)(PARAMS, cache, block.replace(run=run.at[1, 0].set(False)))
    assert np.abs(less.logits - full.logits).max() > 0.1


def test_fill_writes_what_the_layers_would():
    """With every attention and MLP skipped, x passes through: fill must agree."""
    cache, block = causal(random_tokens(3, 1, 4))
    x = LM.embed(PARAMS, block.tokens, block.positions)
    filled = jax.jit(lambda c: LM.fill(PARAMS, c.open(block), x, block, 0, 3))(cache)
    for i in range(3):
        params = {**PARAMS, "layer_0": PARAMS[f"layer_{i}"]}
        _, after = blocks.call(LM)(params, cache, block)
        close(filled.layers[i].k, after.layers[0].k)
        close(filled.layers[i].v, after.layers[0].v)


# ---------------------------------------------------------------- rows and trees


def test_ragged_rows_equal_rows_alone():
    tokens, counts = random_tokens(4, 3, 9), [9, 4, 1]
    out, cache = blocks.prefill(LM, PARAMS, tokens, counts, SIZE)
    more = random_tokens(5, 3, 2)
    after, _ = blocks.prefill(LM, PARAMS, more, [2, 2, 2], SIZE, cache=cache)
    for b, count in enumerate(counts):
        row = np.concatenate([tokens[b, :count], more[b]])[None]
        alone = blocks.whole(LM, PARAMS, row, SIZE)[0]
        close(out.logits[b, :count], alone[:count])
        close(after.logits[b], alone[count:])


def tree_case(seed, nodes=9):
    """Two rows of 7 and 4 committed tokens, and a random tree behind each."""
    rng = np.random.default_rng(seed)
    prompt, counts = random_tokens(seed, 2, 7), [7, 4]
    _, cache = blocks.prefill(LM, PARAMS, prompt, counts, SIZE, base.NONE)
    parents = blocks.random_tree(rng, 2, nodes)
    tokens = random_tokens(seed + 100, 2, nodes)
    return prompt, counts, cache, parents, tokens


def logits_of_paths(prompt, counts, parents, tokens, b):
    """Sequential logits at every node of row b, each on its own path."""
    out = []
    for i in range(parents.shape[1]):
        path = [0, *blocks.path_of(parents[b], i)]
        row = np.array([[*prompt[b, : counts[b]], *tokens[b, path]]])
        out.append(blocks.whole(LM, PARAMS, row, SIZE)[0, -1])
    return np.stack(out)


@pytest.mark.parametrize("seed", [0, 1, 2])
def test_tree_nodes_equal_their_paths(seed):
    prompt, counts, cache, parents, tokens = tree_case(seed)
    block = blocks.tree_block(tokens, parents, counts)
    out, _ = blocks.call(LM)(PARAMS, cache, block)
    wrong = block.visibility.replace(ancestors=block.visibility.ancestors | 7)
    bad, _ = blocks.call(LM)(PARAMS, cache, block.replace(visibility=wrong))
    for b in range(2):
        want = logits_of_paths(prompt, counts, parents, tokens, b)
        close(out.logits[b], want)
        assert np.abs(bad.logits[b] - want).max() > 100 * TOLERANCE  # planted


def test_tree_in_levels_equals_tree_at_once():
    """Nodes 0..3 and then 4..8 of one tree: bits are tree indices, not block ones."""
    _, counts, cache, parents, tokens = tree_case(3)
    block = blocks.tree_block(tokens, parents, counts)
    out, _ = blocks.call(LM)(PARAMS, cache, block)
    for lo, hi in ((0, 4), (4, 9)):
        part = dataclasses.replace(
            block,
            tokens=block.tokens[:, lo:hi],
            positions=block.positions[:, lo:hi],
            slots=block.slots[:, lo:hi],
            visibility=block.visibility.replace(
                ancestors=block.visibility.ancestors[:, lo:hi]
            ),
        )
        got, cache = blocks.call(LM)(PARAMS, cache, part)
        close(got.logits, out.logits[:, lo:hi])


def committed(seed):
    prompt, counts, cache, parents, tokens = tree_case(seed)
    block = blocks.tree_block(tokens, parents, counts)
    _, cache = blocks.call(LM)(PARAMS, cache, block)
    paths = [blocks.path_of(parents[b], 8 - b) for b in range(2)]
    width = max(map(len, paths))
    path = np.array([p + [0] * (width - len(p)) for p in paths])
    count = np.array([len(p) for p in paths])
    rows = [[*prompt[b, : counts[b]], *tokens[b, [0, *paths[b]]]] for b in range(2)]
    return cache, path, count, rows


@pytest.mark.parametrize("seed", [4, 5])
def test_commit_equals_a_fresh_prefill(seed):
    cache, path, count, rows = committed(seed)
    cache = blocks.keep(cache, blocks.ints(path), blocks.ints(count))
    lengths = [len(row) for row in rows]
    padded = np.zeros((2, 17), np.int32)
    for b, row in enumerate(rows):
        padded[b, : len(row)] = row
    _, fresh = blocks.prefill(LM, PARAMS, padded, lengths, SIZE, base.ALL)
    np.testing.assert_array_equal(cache.length, lengths)
    for b, n in enumerate(lengths):
        np.testing.assert_array_equal(cache.pos[b, :n], np.arange(n))
        for got, want in zip(cache.layers, fresh.layers):
            close(got.k[b, :, :n], want.k[b, :, :n])
            close(got.v[b, :, :n], want.v[b, :, :n])


def test_commit_of_a_wrong_path_shows_and_negative_counts_keep_nothing():
    cache, path, count, _ = committed(4)
    good = blocks.keep(cache, blocks.ints(path), blocks.ints(count))
    bad = cache.commit(blocks.ints(path[:, ::-1]), blocks.ints(count))
    assert np.abs(good.layers[1].k - bad.layers[1].k).max() > 100 * TOLERANCE
    none = cache.commit(blocks.ints(path), blocks.ints([-1, -1]))
    np.testing.assert_array_equal(none.length, cache.length)
    np.testing.assert_array_equal(none.layers[0].k, cache.layers[0].k)


def test_linear_commit_equals_the_general_one():
    cache, _, _, _ = committed(4)
    chain = blocks.ints([[1, 2, 3], [1, 2, 3]])
    a = cache.commit(chain, blocks.ints([3, 1]))
    b = cache.commit(chain, blocks.ints([3, 1]), linear=True)
    for x, y in zip(jax.tree.leaves(a), jax.tree.leaves(b)):
        np.testing.assert_array_equal(x, y)


def test_gather_reorders_rows():
    cache, _, _, _ = committed(4)
    rows = blocks.ints([1, 0, 1])
    got = cache.gather(rows)
    for a, b in zip(jax.tree.leaves(got), jax.tree.leaves(cache)):
        np.testing.assert_array_equal(a, np.asarray(b)[[1, 0, 1]])


def test_bits_of_trees_wider_than_a_word():
    rng = np.random.default_rng(0)
    mask = rng.random((2, 5, 70)) < 0.4
    prefix = np.array([3, 0], np.int32)
    bits = base.pack_bits(jnp.asarray(mask))
    assert bits.shape == (2, 5, 3)
    got = base.dense_mask(base.Visibility(jnp.asarray(prefix), bits), 80)
    want = np.zeros((2, 5, 80), bool)
    for b in range(2):
        want[b, :, : prefix[b]] = True
        want[b, :, prefix[b] : prefix[b] + 70] = mask[b]
    np.testing.assert_array_equal(got, want)


# ---------------------------------------------------------------- copies of the cache


def cache_copies(text: str, elements: int) -> list[str]:
    """Instructions of an HLO module that make a new array of `elements` numbers."""
    shape = re.compile(r"= \(?f32\[([\d,]+)\]\S* (copy|transpose|concatenate|pad)\(")
    found = []
    for line in text.splitlines():
        match = shape.search(line)
        if match and np.prod([int(n) for n in match[1].split(",")]) == elements:
            found.append(line.strip())
    return found


def loop_text(disturb=lambda cache: cache, run=None):
    """HLO of a decode loop; its cache is donated, so all copies are the body's."""

    def body(carry):
        cache, token = carry
        start = cache.length
        tokens = jnp.broadcast_to(token, (2, 3))
        block = base.causal_block(tokens, start, 3 + 0 * start, 512, base.ALL)
        out, cache = LM(PARAMS, cache, block.replace(run=run))
        best = out.logits.argmax(-1).astype(jnp.int32)
        # The path follows from the logits, as a verdict does: all reads come before.
        return disturb(cache.commit(best[:, 1:], best[:, 0] % 3)), best[:, -1:]

    def decode(cache, token):
        stop = lambda carry: (carry[0].length < 20).all()
        return lax.while_loop(stop, body, (cache, token))

    cache, token = LM.init_cache(2, 512), jnp.zeros((2, 1), jnp.int32)
    jitted = jax.jit(decode, donate_argnums=0)
    return jitted.lower(cache, token).compile().as_text()


def test_no_copy_of_the_cache_inside_the_loop():
    elements = 2 * CONFIG.n_kv_heads * 512 * CONFIG.head_dim
    assert cache_copies(loop_text(), elements) == []
    assert cache_copies(loop_text(run=jnp.ones((3, 2), bool)), elements) == []

    def planted(cache):
        """What a layout with slots before heads would cost."""
        first = cache.layers[0]
        swapped = first.k.swapaxes(1, 2).reshape(first.k.shape)
        return cache.replace(layers=(first.replace(k=swapped), *cache.layers[1:]))

    assert cache_copies(loop_text(planted), elements)


# ---------------------------------------------------------------- the other forms


def test_alibi_against_the_published_formula():
    """softmax(q k / sqrt(d) - m (i - j)); m = 2^-2, 2^-4, 2^-6, 2^-8 for 4 heads."""
    changes = {"position": "alibi", "ropes": (), "windows": (), "n_layers": 1}
    config = dataclasses.replace(CONFIG, **changes)
    lm = transformer.transformer(config)
    params = blocks.numpy_params(lm)
    tokens = random_tokens(11, 1, 7)
    layer = jax.tree.map(np.asarray, params["layer_0"])
    x = np.asarray(params["embedding"]["tokens"])[tokens[0]]
    normed = x / np.sqrt((x * x).mean(-1, keepdims=True) + config.norm_eps)
    normed = normed * layer["attention_norm"]["scale"]
    qkv = np.einsum("nD,Dgrd->ngrd", normed, layer["attention"]["qkv"])
    heads = []
    for head in range(4):
        q, k, v = (
            qkv[:, head // 2, head % 2],
            qkv[:, head // 2, 2],
            qkv[:, head // 2, 3],
        )
        i, j = np.mgrid[:7, :7]
        score = q @ k.T / np.sqrt(8) - 2.0 ** (-2 * (head + 1)) * (i - j)
        score[j > i] = -np.inf
        p = np.exp(score - score.max(-1, keepdims=True))
        heads.append((p / p.sum(-1, keepdims=True)) @ v)
    want = x + np.concatenate(heads, -1) @ layer["attention"]["out"]
    block = causal(tokens)[1].replace(run=jnp.array([[True, False]]))
    out, _ = blocks.call(lm, (1,))(params, lm.init_cache(1, SIZE), block)
    close(out.hidden[1][0], want)
    assert modules.alibi_slopes(6)[4:] == [2**-1, 2**-3]


def test_config_errors():
    for changes, match in (
        ({"n_kv_heads": 3}, "n_kv_heads=3"),
        ({"activation": "tanh"}, "activation='tanh'"),
        ({"ropes": ()}, "transformer.rope"),
    ):
        with pytest.raises(errors.ConfigError, match=match):
            dataclasses.replace(CONFIG, **changes)
