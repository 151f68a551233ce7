"""Ada-KV: heads divide a budget as NumPy does, and really free what they lack."""

import jax
import jax.numpy as jnp
import ml_dtypes
import numpy as np
import pytest

from decoding import Method, Spec, base
from decoding.conformance import kit, peaked
from models.errors import MethodError
from tests.decoding.caches import oracle

pytestmark = pytest.mark.kv

PROMPTS = [np.random.default_rng(i).integers(0, 7, 60).tolist() for i in range(4)]
REST = {"budget": 12, "window": 4, "kernel": 3, "page": 4}
SPEC = Spec("caches/ada_kv", **REST)


def scores(prompt):
    """SnapKV's pooled sums of the first layer, float32[G, n - 4], before the window."""
    q, k, _ = oracle.first_layer(peaked.model(), prompt[:-1])
    n = len(k)
    sums = np.zeros((k.shape[1], n))
    for g, t in np.ndindex(k.shape[1], 4):
        t = n - 4 + t
        sums[g, : t + 1] += oracle.weights(q[t, g], k[: t + 1, g]).sum(0)
    sums[:, n - 4 :] = 0
    wide = np.pad(sums, ((0, 0), (1, 1)))
    pooled = np.max([wide[:, i : i + n] for i in range(3)], 0)[:, : n - 4]
    return pooled.astype(ml_dtypes.bfloat16).astype(np.float64)


def divide(values, alpha):
    """The official code's split of 8 slots a head; remainders to the largest."""
    each, groups = 12 - 4, len(values)
    order = np.argsort(-values.reshape(-1), kind="stable")[: groups * each]
    won = np.bincount(order // values.shape[1], minlength=groups)
    due = (1 - alpha) * won + alpha * each
    whole = np.floor(due + 1e-9).astype(int)
    rest = np.argsort(whole - due, kind="stable")[: groups * each - whole.sum()]
    whole[rest] += 1
    return whole


def kept(prompt, counts):
    found, n = [], len(prompt) - 1
    for values, count in zip(scores(prompt), counts):
        best = np.argsort(-values, kind="stable")[:count]
        found.append([*sorted(best.tolist()), *range(n - 4, n)])
    return found


def follow(spec):
    """The tokens that the first layer's heads keep of each prompt, before any text."""
    run = kit.Run(Method(policy=spec), lm=peaked.model())
    state = run.start(PROMPTS, new=peaked.NEW, size=peaked.SIZE)
    cache = state.caches["target"]
    tokens = np.asarray(cache.layers[0].tokens(cache.length))
    return [[[int(t) for t in head if t >= 0] for head in row] for row in tokens]


@pytest.mark.parametrize("alpha", [0.2, 0.0, 1.0])
def test_heads_divide_the_budget(alpha):
    """Planted: an equal split, which is alpha = 1 and SnapKV's."""
    found = follow(Spec("caches/ada_kv", alpha=alpha, **REST))
    assert found == [kept(p, divide(scores(p), alpha)) for p in PROMPTS]
    equal = [kept(p, [8, 8]) for p in PROMPTS]
    assert (found == equal) == (alpha == 1.0)
    if alpha == 1.0:
        rest = {"budget": 12, "window": 4, "kernel": 3, "pooling": "max"}
        assert follow(Spec("caches/snapkv", **rest)) == found


@pytest.mark.long
def test_a_fixed_split():
    """Three quarters of the slots before the window to the first head; or by layer."""
    counts = lambda spec: [len(head) - 4 for head in follow(spec)[0]]
    assert counts(Spec("caches/ada_kv", heads=(3.0, 1.0), **REST)) == [12, 4]
    assert counts(Spec("caches/ada_kv", heads=(0.0, 1.0, 1.0, 1.0), **REST)) == [0, 16]
    assert counts(Spec("caches/ada_kv", heads=(1.0, 1.0), **REST)) == [8, 8]


@pytest.mark.long
def test_drafts_keep_sampled_text():
    tree = Method(
        kit.spec("drafters/model"), topology=kit.spec("topologies/static"), policy=SPEC
    )
    runs = (
        kit.Run(method, 0.8, lm=peaked.model(), draft=draft)
        for method, draft in ((tree, peaked.model(4)), (Method(policy=SPEC), None))
    )
    texts = [
        run.texts(peaked.PROMPTS, new=peaked.NEW, size=peaked.SIZE) for run in runs
    ]
    assert texts[0] == texts[1]


def test_unequal_heads_take_the_bytes_of_equal_ones():
    """Within a page a head of SnapKV's; planted: arrays of the longest head."""
    model, heads = peaked.model().model, peaked.GROUPS
    sizes = base.Sizes(1, 600, 512, 24, 8, jnp.float32)
    length = jnp.asarray([512], jnp.int32)

    def nbytes(spec):
        policy = spec.build({})
        before = jax.eval_shape(lambda: policy.make(model, sizes, length))
        after = jax.eval_shape(
            lambda cache: policy.finish(policy.init(cache), cache)[0], before
        )
        return sum(x.size * x.dtype.itemsize for x in jax.tree.leaves(after.layers))

    equal = nbytes(Spec("caches/snapkv", budget=128, window=4, kernel=3))
    own = nbytes(Spec("caches/ada_kv", budget=128, window=4, kernel=3, page=4))
    slot = 2 * 4 * peaked.DIM + 4
    table = 4 * (heads * 160 // 4) * heads + 8 * heads
    assert equal < own <= equal + peaked.LAYERS * (heads * 4 * slot + table)
    longest = nbytes(Spec("caches/snapkv", budget=252, window=4, kernel=3))
    assert own < 0.75 * longest


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        ({"alpha": 1.5}, "alpha=1.5"),
        ({"page": 0}, "page=0"),
        ({"heads": (0.0, 0.0)}, "heads="),
        ({"window": 0}, "window=0"),
    ],
)
def test_bad_numbers(arguments, words):
    with pytest.raises(MethodError, match=words):
        Spec("caches/ada_kv", **arguments).build({})
