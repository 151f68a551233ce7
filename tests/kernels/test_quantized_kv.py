"""Quantised caches: what a node sees depends on its position, and on nothing else."""

import dataclasses
import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import decoding
import models
from decoding.conformance import kit
from kernels import int4_packing
from kernels.quantized_kv import api, codes, reference
from models import base, transformer
from models.cache_layouts import kv_cache, quantized
from models.errors import ConfigError
from tests.kernels.cases import distance
from tests.models import blocks, small
from tests.models.transformer import test_model

pytestmark = pytest.mark.kernels

GROUPS, DIM, SIZE, KEEP = 2, 16, 640, 32
MAKERS = {"int8": quantized.int8, "int4": quantized.int4}
LENGTHS = np.array([0, 20, 157, 286, 600])
# A chain of five and a second child of the root: rows 2 and 3 pass a boundary in it.
PARENTS = [-1, 0, 1, 2, 3, 0]
DEPTH = np.array([0, 1, 2, 3, 4, 1])


@functools.cache
def texts():
    """Keys with a channel that is large in every token, and values, of every row."""
    rng = np.random.default_rng(0)
    k, v = rng.normal(size=(2, len(LENGTHS), SIZE, GROUPS, DIM)).astype(np.float32)
    k[..., 3] *= 40
    return k, v


@jax.jit
def write(layer, slots, k, v, before, after):
    return layer.append(slots, k, v).settle(before, after)


def append(layer, start, count, settled=True):
    """Tokens `start[b]`... of each row's text, where `count[b]` of them are there."""
    k, v = texts()
    index = np.arange(KEEP)
    where = np.minimum(start[:, None] + index, SIZE - 1)
    rows = np.arange(len(start))[:, None]
    slots = np.where(index < count[:, None], start[:, None] + index, SIZE + index)
    after = start + count if settled else start
    return write(layer, slots, k[rows, where], v[rows, where], start, after)


@functools.cache
def filled(kind, step=KEEP):
    """A layer that holds `LENGTHS[b]` tokens of each text, `step` at a time."""
    cache = MAKERS[kind](KEEP)(1, len(LENGTHS), SIZE, GROUPS, DIM, jnp.float32)
    layer, done = cache.layers[0], 0 * LENGTHS
    while (done < LENGTHS).any():
        count = np.clip(LENGTHS - done, 0, step)
        layer = append(layer, done, count)
        done = done + count
    return layer


def with_tree(kind):
    """The layer with a tree's tokens behind each text."""
    return append(filled(kind), LENGTHS, np.full(len(LENGTHS), len(PARENTS)), False)


@functools.cache
def case(kind):
    """A call at a tree after the texts: q, visibility, positions."""
    layer = with_tree(kind)
    rng = np.random.default_rng(1)
    q = jnp.asarray(rng.normal(size=(len(LENGTHS), len(PARENTS), 4, DIM)), jnp.float32)
    own = np.eye(len(PARENTS), dtype=bool)
    for i, parent in enumerate(PARENTS[1:], 1):
        own[i] |= own[parent]
    bits = base.pack_bits(jnp.asarray(own))
    bits = jnp.broadcast_to(bits, (len(LENGTHS), *bits.shape))
    seen = base.Visibility(jnp.asarray(LENGTHS, jnp.int32), bits)
    positions = jnp.asarray(LENGTHS[:, None] + DEPTH, jnp.int32)
    near = np.tile(np.arange(SIZE, dtype=np.int32), (len(LENGTHS), 1))
    for b, length in enumerate(LENGTHS):
        near[b, length : length + len(PARENTS)] = length + DEPTH
        near[b, length + len(PARENTS) :] = -1
    return layer, q, seen, own, positions, jnp.asarray(near)


@functools.cache
def oracle(kind, window, softcap=0.0):
    """float64, slot by slot, from the texts and from codes of them."""
    _, q, _, own, positions, near = case(kind)
    near = np.asarray(near)
    k, v = (np.asarray(x, np.float64).transpose(0, 2, 1, 3) for x in texts())
    dtype = jnp.int8 if kind == "int8" else int4_packing.DTYPE
    k32, v32 = (x.swapaxes(1, 2) for x in texts())
    channel = codes.channels(k32[:, :, : codes.GROUP])
    coded = codes.widen(*codes.keys(k32, channel, dtype)) * channel[:, :, None]
    spoken = codes.widen(*codes.values(v32, dtype))
    coded, spoken = np.asarray(coded, np.float64), np.asarray(spoken, np.float64)
    q = np.asarray(q, np.float64)
    out, lse = np.zeros(q.shape), np.full(q.shape[:3], -np.inf)
    for b, n, h in np.ndindex(*q.shape[:3]):
        p, g = int(positions[b, n]), h // 2
        first = max((p - KEEP) // codes.GROUP * codes.GROUP, 0)
        keys, values = [], []
        for s in range(int(LENGTHS[b]) + len(PARENTS)):
            tree = s - int(LENGTHS[b])
            if (tree < 0 or own[n, tree]) and not (window and p - near[b, s] >= window):
                keys.append(coded[b, g, s] if s < first else k[b, g, s])
                values.append(spoken[b, g, s] if s < first else v[b, g, s])
        s = np.array(keys) @ q[b, n, h] * 0.25
        s = np.tanh(s / softcap) * softcap if softcap else s
        weights = np.exp(s - s.max())
        lse[b, n, h] = s.max() + np.log(weights.sum())
        out[b, n, h] = weights @ np.array(values) / weights.sum()
    return out, lse


def program(kind, kernel, window=0):
    _, q, seen, _, positions, near = case(kind)

    def call(layer):
        return layer.attend(
            q, seen, positions, near, window=window, scale=0.25, kernel=kernel
        )

    return jax.jit(call)


compiled = functools.cache(program)


def attend(kind, kernel="xla", window=0, layer=None):
    return compiled(kind, kernel, window)(case(kind)[0] if layer is None else layer)


TOLERANCE = 2e-5  # scores of size 40 in fp32


@pytest.mark.parametrize("kernel", ["xla", "pallas"])
@pytest.mark.parametrize(
    ("kind", "window"),
    [pytest.param("int8", 0, marks=pytest.mark.long), ("int8", 200), ("int4", 0)],
)
def test_attention_is_the_oracles(kind, window, kernel):
    got = attend(kind, kernel, window)
    assert distance(got, oracle(kind, window)) < TOLERANCE


@pytest.mark.parametrize(("kind", "window"), [("int8", 0), ("int8", 200), ("int4", 0)])
def test_the_reference_is_the_oracles(kind, window):
    layer, q, seen, _, positions, near = case(kind)
    given = (q, layer.old, layer.recent, seen.prefix, seen.ancestors, positions, near)
    settings = {"keep": KEEP, "window": window, "scale": 0.25}
    written = jax.jit(functools.partial(reference.attention, **settings))(*given)
    assert distance(written, oracle(kind, window)) < TOLERANCE


def test_faults_of_the_boundary_are_caught(monkeypatch):
    """Planted: the root's boundary for all nodes, one that is a token late, keys
    without their channels, and a window of the row's end."""
    right = oracle("int8", 0)
    boundary = api.boundary

    def of_the_root(positions, window, group):
        return boundary(positions - jnp.asarray(DEPTH, jnp.int32), window, group)

    for wrong in (of_the_root, lambda p, w, group: boundary(p, w + 1, group)):
        monkeypatch.setattr(api, "boundary", wrong)
        layer = case("int8")[0]
        assert distance(program("int8", "xla")(layer), right) > 10 * TOLERANCE
    monkeypatch.setattr(api, "boundary", boundary)
    flat = layer.old._replace(channel=jnp.ones_like(layer.old.channel))
    wrong = attend("int8", layer=layer.replace(old=flat))
    assert distance(wrong, right) > 10 * TOLERANCE


def test_unwritten_memory_is_not_looked_at():
    """NaN in every scale, recent row and channel that no text reaches."""
    layer = case("int8")[0]
    old, recent = layer.old, layer.recent
    complete = jnp.asarray(LENGTHS) // codes.GROUP * codes.GROUP
    unused = jnp.arange(SIZE) >= complete[:, None]
    scales = [jnp.where(unused[:, None], jnp.nan, x) for x in old[2:4]]
    rows = recent.base[:, None] + jnp.arange(recent.k.shape[2])
    past = rows >= (jnp.asarray(LENGTHS) + len(PARENTS))[:, None]
    fresh = [jnp.where(past[:, None, :, None], jnp.nan, x) for x in recent[:2]]
    assert int(unused.sum()) and int(past.sum())
    poisoned = layer.replace(
        old=old._replace(k_scale=scales[0], v_scale=scales[1]),
        recent=recent._replace(k=fresh[0], v=fresh[1]),
    )
    for kernel in ("xla", "pallas"):
        got = attend("int8", kernel, layer=poisoned)
        assert distance(got, oracle("int8", 0)) < TOLERANCE


@pytest.mark.parametrize("kind", MAKERS)
def test_a_store_does_not_know_what_brought_a_token(kind):
    """Chunks of 32, of 7 and of 31 leave the same codes; planted: codes of
    the tokens of another group."""
    first = filled(kind)
    for step in (7, 31) if kind == "int8" else (19,):
        other = filled(kind, step)
        for a, b in zip(first.read(), other.read()):
            for row, length in enumerate(LENGTHS):
                np.testing.assert_array_equal(a[row, :, :length], b[row, :, :length])
        np.testing.assert_array_equal(first.recent.base, other.recent.base)
    assert int(first.recent.base[4]) == 512
    wrong = jax.jit(lambda layer, *a: layer.settle(*a))(first, LENGTHS - 128, LENGTHS)
    differ = [np.any(np.asarray(a != b)) for a, b in zip(wrong.read(), first.read())]
    assert any(differ)


@pytest.mark.parametrize(("kind", "most"), [("int8", 127), ("int4", 7)])
def test_codes_are_within_half_a_step(kind, most):
    dtype = jnp.int8 if kind == "int8" else int4_packing.DTYPE
    k, v = (x.swapaxes(1, 2)[..., :128, :] for x in texts())
    channel = codes.channels(k)
    assert (np.log2(np.asarray(channel)) % 1 == 0).all()
    k_codes, k_scale = codes.keys(k, channel, dtype)
    error = jnp.abs(codes.widen(k_codes, k_scale) * channel[..., None, :] - k)
    bound = 0.5001 * channel[..., None, :] * k_scale[..., None]
    assert (error <= bound).all()
    v_codes, v_scale = codes.values(v, dtype)
    bound = 0.5001 * jnp.abs(v).max(-1, keepdims=True) / most
    assert (jnp.abs(codes.widen(v_codes, v_scale) - v) <= bound).all()
    # A channel of 40 times the others costs the others nothing: without factors of
    # the channels their error is an order larger.
    plain = codes.widen(*codes.values(k, dtype))
    rest = np.arange(DIM) != 3
    assert jnp.abs(plain - k)[..., rest].max() > 5 * error[..., rest].max()
    nothing = codes.values(jnp.zeros((128, 4)), dtype)
    assert (codes.widen(*nothing) == 0).all()


def test_a_path_is_moved_and_rows_are_gathered():
    """Of the tree in row 3 the nodes 2 and 4 are kept, in row 1 node 5."""
    layer = with_tree("int8")
    cache = kv_cache.KVCache(
        (layer,), jnp.zeros((5, SIZE), jnp.int32), jnp.asarray(LENGTHS, jnp.int32)
    )
    path = jnp.array([[0, 0], [5, 0], [0, 0], [2, 4], [1, 2]], jnp.int32)
    after = blocks.keep(cache, path, jnp.array([-1, 1, 0, 2, -1]))
    assert after.length.tolist() == [0, 22, 158, 289, 600]
    before, (k, _) = layer.read()[0], after.layers[0].read()
    np.testing.assert_array_equal(k[1, :, 21], before[1, :, 25])
    np.testing.assert_array_equal(k[3, :, 287], before[3, :, 288])
    np.testing.assert_array_equal(k[3, :, 288], before[3, :, 290])
    np.testing.assert_array_equal(k[4, :, :600], before[4, :, :600])
    turned = after.gather(jnp.array([3, 3, 0, 1, 2]))
    np.testing.assert_array_equal(turned.layers[0].read()[0][1], k[3])


CONFIG = dataclasses.replace(
    small.CONFIG, n_layers=2, windows=(0, 150), max_positions=1024
)
PARAMS = blocks.numpy_params(transformer.transformer(CONFIG))
TREE = decoding.Method(kit.spec("drafters/token_recycling", choices=kit.SMALL_TREE))


def text(lm, method):
    rng = np.random.default_rng(0)
    prompts = [rng.integers(0, 50, n).tolist() for n in ((380, 245))]
    lm = models.Loaded(lm, PARAMS)
    out = decoding.generate(lm, prompts, method, max_new_tokens=40)
    return prompts, out.tokens, out.stats


INT4 = transformer.transformer(CONFIG, cache=quantized.int4(128))


@jax.jit
def chunk_kept(cache, count):
    return cache.commit(jnp.zeros((2, 0), jnp.int32), count - 1, True)


def said(texts, forgotten=None):
    """The best token after each of a text's, read in chunks of the prompts' size; the
    codes of chunk `forgotten` are never made."""
    lm, chunk, done = INT4, 128, [0, 0]
    cache, best = lm.init_cache(2, 640), []
    while done[0] < len(texts[0]):
        count = [min(len(t) - d, chunk) for t, d in zip(texts, done)]
        tokens = [(t[d:] + chunk * [0])[:chunk] for t, d in zip(texts, done)]
        block = blocks.causal(
            blocks.ints(tokens), cache.length, blocks.ints(count), 640, base.ALL
        )
        out, cache = blocks.call(lm)(PARAMS, cache, block)
        keep = blocks.commit if done[0] == forgotten else chunk_kept
        cache = keep(cache, blocks.ints(count))
        best.append(np.asarray(out.logits).argmax(-1))
        done = [d + n for d, n in zip(done, count)]
    return np.concatenate(best, 1)


def test_a_tree_decodes_what_chunks_say():
    """Rows pass boundaries while they decode (row 0 at 384, row 1 at 256); planted: the
    first group is never quantised."""
    prompts, texts, stats = text(INT4, TREE)
    assert stats.tokens_per_call > 1  # paths were moved
    every = [p + t for p, t in zip(prompts, texts)]
    for forgotten in (None, 0):
        best = said(every, forgotten)
        rows = [
            best[i, len(p) - 1 : len(x) - 1].tolist()
            for i, (p, x) in enumerate(zip(prompts, every))
        ]
        assert (rows == texts) == (forgotten is None)


@pytest.mark.long
@pytest.mark.parametrize("kind", ["int4", "int8"])
def test_a_tree_decodes_what_plain_decoding_does(kind):
    lm = transformer.transformer(CONFIG, cache=MAKERS[kind](128))
    assert text(lm, TREE)[1] == text(lm, decoding.Method())[1]


def test_nothing_is_lost_while_nothing_is_quantised():
    """Texts within the window: the dense cache's logits."""
    tokens = small.random_tokens(3, 2, 100)

    def logits(cache):
        lm = transformer.transformer(CONFIG, cache=cache)
        out, _ = blocks.prefill(lm, PARAMS, tokens, [100, 60], 640)
        return np.asarray(out.logits)[1, :60]

    exact = logits(kv_cache.dense)
    np.testing.assert_allclose(logits(quantized.int4(128)), exact, atol=1e-4)


def test_what_does_not_fit_is_refused():
    with pytest.raises(ConfigError, match="window=100"):
        quantized.int8(100)
    lm = transformer.transformer(CONFIG, cache=quantized.int8(32))
    with pytest.raises(ConfigError, match="window of 64"):
        blocks.prefill(lm, PARAMS, np.zeros((1, 40)), [40], 128)
    alibi = dataclasses.replace(CONFIG, position="alibi", ropes=())
    lm = transformer.transformer(alibi, cache=quantized.int8(32))
    with pytest.raises(ConfigError, match="dense"):
        blocks.prefill(lm, PARAMS, np.zeros((1, 20)), [20], 128)


def test_no_copy_of_the_codes_in_the_loop(monkeypatch):
    lm = transformer.transformer(small.CONFIG, cache=quantized.int8(32))
    monkeypatch.setattr(test_model, "LM", lm)
    text = test_model.loop_text().replace("s8[", "f32[")
    elements = 2 * small.CONFIG.n_kv_heads * 512 * small.CONFIG.head_dim
    assert test_model.cache_copies(text, elements) == []
