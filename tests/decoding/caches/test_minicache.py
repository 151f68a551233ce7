"""MiniCache: what the pair stores is NumPy's; what it retains and equal directions."""

import dataclasses
import functools
import types

import jax
import jax.numpy as jnp
import ml_dtypes
import numpy as np
import pytest

import decoding
from decoding import Method, Spec
from decoding.caches import minicache
from decoding.conformance import kit, peaked
from models.cache_layouts import kept, kv_cache, paired, quantized, stored
from models.errors import MethodError
from models.transformer import cached_attention, transformer
from tests.decoding.caches import oracle

pytestmark = pytest.mark.kv

EVERY = 8
SPEC = Spec("caches/minicache", retained=0.25, every=EVERY, start=0)
B, G, C, M, DIM, LENGTH = 2, 2, 32, 48, 8, np.array([20, 32])
WEIGHT = 0.6


def unit(x: np.ndarray) -> np.ndarray:
    """Divide tokens [B, G, C, d] by their lengths over all heads."""
    return x / np.sqrt((x * x).sum((1, 3), keepdims=True))


def slerp(x: np.ndarray, y: np.ndarray, t: float) -> tuple[np.ndarray, np.ndarray]:
    """Return the directions [B, G, C, d] and angles [B, C], from the inverse cosine."""
    x, y = unit(x), unit(y)
    angle = np.arccos(np.clip((x * y).sum((1, 3)), -1, 1))
    a = angle[:, None, :, None]
    way = np.sin((1 - t) * a) / np.sin(a) * x + np.sin(t * a) / np.sin(a) * y
    return way, angle


def layers(seed: int = 0, same: float = 0.0) -> tuple:
    """A pair in which all tokens have slots of their own; `same`: y is x times this."""
    rng = np.random.default_rng(seed)

    def one(k, v):
        store = kv_cache.DenseLayer(jnp.asarray(k), jnp.asarray(v))
        places, first = kept.LayerSizes(C, C), jnp.zeros((B,), jnp.int32)
        extra = {minicache.RETAINED: (jnp.int32, ())}
        layer = kept.layer(store, places, C, (1, DIM), first, {}, extra, (first, first))
        pos = jnp.broadcast_to(jnp.arange(C, dtype=jnp.int32), (B, G, C))
        return layer.replace(pos=pos)

    draw = lambda: rng.normal(size=(B, G, C, DIM)).astype(np.float32)
    x = draw(), draw()
    y = tuple(same * part for part in x) if same else (draw(), draw())
    pair = paired.pair(one(*x), one(*y), M)
    return tuple(map(paired.opened, pair))


def merge(pair, retained: float, weight: float = WEIGHT, due=(True, True)) -> tuple:
    length = jnp.asarray(LENGTH, jnp.int32)
    return minicache.merged(*pair, jnp.asarray(due), length, retained, weight, G)


def whole(pair) -> list[tuple[np.ndarray, np.ndarray]]:
    """Keys and values of both layers, merged slots first, as attention reads them."""
    lower, upper = pair
    return [lower.read(), upper.replace(ways=lower.ways).read()]


def test_the_pair_stores_what_numpy_does():
    """Retained tokens, directions, lengths; planted: weights of the other layer."""
    pair = layers()
    after = merge(pair, 0.25)
    parts = [[np.asarray(x, np.float64) for x in one.store.read()] for one in pair]
    ways, angles = zip(*(slerp(x, y, WEIGHT) for x, y in zip(*parts)))
    other, _ = slerp(parts[0][0], parts[1][0], 1 - WEIGHT)
    for b, n in enumerate(LENGTH):
        angle = (angles[0] + angles[1])[b, :n].astype(np.float32)
        angle = angle.astype(ml_dtypes.bfloat16).astype(np.float64)
        order = np.argsort(-angle, kind="stable")
        stays = np.sort(order[: -(-n // 4)])
        goes = np.sort(order[-(-n // 4) :])
        for i, layer in enumerate(after):
            assert int(layer.shift[b]) == len(goes)
            assert layer.pos[b, :, : len(stays)].tolist() == [stays.tolist()] * G
            for j, x in enumerate(whole(after)[i]):
                own = parts[i][j][b]
                length = np.sqrt((own * own).sum((0, 2)))[:, None]
                restored = (length * ways[j][b])[:, goes]
                found = np.asarray(x[b])
                assert np.abs(found[:, : len(goes)] - restored).max() < 1e-5
                np.testing.assert_array_equal(
                    found[:, M : M + len(stays)], own[:, stays].astype(np.float32)
                )
        wrong = (other[b] - ways[0][b])[:, goes]
        assert np.abs(wrong).max() > 0.01


def test_equal_directions_are_restored():
    """One layer three times the other; planted: the other layer's lengths."""
    pair = layers(same=3.0)
    lower, upper = merge(pair, 0.0)
    error = lambda pair: max(
        float(jnp.abs(x[b, :, :n] - y[b, :, :n]).max())
        for one, layer in zip(whole(pair), layers(same=3.0))
        for x, y in zip(one, layer.store.read())
        for b, n in enumerate(LENGTH)
    )
    assert error((lower, upper)) < 1e-5
    swapped = lower.replace(lengths=upper.lengths), upper.replace(lengths=lower.lengths)
    assert error(swapped) > 1


@pytest.mark.parametrize("weight", [0.0, 1.0])
def test_the_ends_of_the_weight_are_the_layers(weight):
    pair = layers()
    way, lengths, _ = minicache.slerp(pair[0].store.k, pair[1].store.k, weight, G)
    one = pair[int(weight)].store.k
    length = lengths[int(weight)][:, None, :, None]
    assert float(jnp.abs(way * length - one).max()) < 1e-5
    assert np.abs(np.sqrt(np.square(way).sum((1, 3))) - 1).max() < 1e-5


def test_rows_that_are_not_due_stay():
    pair = layers()
    for old, new in zip(pair, merge(pair, 0.25, due=(False, True))):
        assert int(new.shift[0]) == 0 and int(new.shift[1]) > 0
        for x, y in zip(old.store.read(), new.store.read()):
            np.testing.assert_array_equal(x[0], y[0])


@functools.cache
def dense():
    return decoding.generate(peaked.model(), peaked.PROMPTS, Method(), peaked.NEW)


@pytest.mark.long
def test_all_retained_is_dense():
    """Planted: half of the tokens retained changes the text."""

    def run(retained: float):
        policy = Spec("caches/minicache", retained=retained, every=EVERY, start=0)
        return decoding.generate(
            peaked.model(), peaked.PROMPTS, Method(policy=policy), peaked.NEW
        )

    found = run(1.0)
    assert found.tokens == dense().tokens
    pairs = list(zip(found.logprobs, dense().logprobs))
    assert max(np.abs(np.subtract(*pair)).max() for pair in pairs) < 2e-5
    assert run(0.5).tokens != dense().tokens


@pytest.mark.long
def test_both_forms_of_attention_read_one_text(monkeypatch):
    """Whole masks, and the kernels' factors of slots."""
    policy = Spec("caches/minicache", retained=0.25, every=EVERY, start=0)
    texts = []
    for limit in (4096, 0):
        monkeypatch.setattr(cached_attention, "LONG", limit)
        lm = types.SimpleNamespace(**vars(peaked.model()))
        lm.model = transformer(lm.config)  # compiled anew
        texts.append(
            decoding.generate(lm, peaked.PROMPTS, Method(policy=policy), peaked.NEW)
        )
    assert texts[0].tokens == texts[1].tokens
    pairs = list(zip(texts[0].logprobs, texts[1].logprobs))
    assert max(np.abs(np.subtract(*pair)).max() for pair in pairs) < 1e-4


def test_memory():
    """Four layers: merging alone saves at most a quarter, and nearly that."""
    config = dataclasses.replace(peaked.config(), n_layers=4, rope_of=(0,) * 4)
    model = transformer(config)
    prompt = 1024
    sizes = decoding.base.Sizes(1, prompt + 64, prompt, 32, 1, jnp.float32)
    policy = Spec("caches/minicache", retained=0.0, every=EVERY).build({"model": model})

    def after(length):
        cache = policy.make(model, sizes, length)
        return policy.finish(policy.init(cache), cache)[0]

    cache = jax.eval_shape(after, jnp.full((1,), prompt, jnp.int32))
    size = lambda layers: sum(x.size * 4 for x in jax.tree.leaves(layers))
    whole = size(jax.eval_shape(lambda: model.init_cache(1, sizes.slots)).layers)
    assert 0.75 <= size(cache.layers) / whole < 0.85


def test_rows_change_places_and_are_not_stored():
    run = kit.Run(Method(policy=SPEC), lm=peaked.model())
    state = run.start(oracle.PROMPTS, new=peaked.NEW, size=peaked.SIZE)
    cache = state.caches["target"]
    rows = np.array([2, 0, 1])
    for old, new in zip(cache.layers, cache.gather(rows).layers):
        for x, y in zip(jax.tree.leaves(old), jax.tree.leaves(new)):
            np.testing.assert_array_equal(np.asarray(x)[rows], y)
    with pytest.raises(stored.Misfit, match="share directions"):
        stored.pack(cache, 0)


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        ({"retained": 1.5}, "retained=1.5: use a share"),
        ({"weight": -0.1}, "weight=-0.1: use a share"),
        ({"every": 0}, "every=0: use at least 1"),
        ({"start": -2}, "start=-2: use a layer"),
    ],
)
def test_bad_numbers(arguments, words):
    with pytest.raises(MethodError, match=words):
        Spec("caches/minicache", **arguments).build({})


def test_models_without_a_pair_or_with_codes_are_refused():
    for lm, start, words in (
        (peaked.model(), 1, "two layers from start up"),
        (peaked.model(cache=quantized.int8(32)), 0, "use the dense layout"),
    ):
        policy = Spec("caches/minicache", start=start)
        with pytest.raises(MethodError, match=words):
            kit.Run(Method(policy=policy), lm=lm).start(oracle.PROMPTS)


def test_layers_that_a_token_lacks_are_refused():
    """Planted: a policy whose layers are apart, which is taken."""
    method = Method(policy=SPEC, exit=kit.spec("exits/skipdecode"))
    with pytest.raises(MethodError, match="joins the keys of layers"):
        kit.Run(method, lm=peaked.model())
    kit.Run(dataclasses.replace(method, policy=Spec("caches/dense")), lm=peaked.model())
