"""Chelsea: what its first layer holds is NumPy's; equal keys merge exactly."""

from typing import Any

import jax.numpy as jnp
import ml_dtypes
import numpy as np
import pytest

from decoding import Method, Spec
from decoding.cache_eviction import scored
from decoding.caches import chelsea
from decoding.conformance import kit, peaked
from models.cache_layouts import kept, kv_cache, quantized
from models.errors import MethodError
from tests.decoding.caches import oracle

pytestmark = pytest.mark.kv

NUMBERS = {"budget": 12, "chunk": 4, "sinks": 2, "every": 8, "prompt_every": 16}
SPEC = Spec("caches/chelsea", **NUMBERS)
NEWEST = 3  # a quarter of the budget
Slot = tuple[int, int, np.ndarray, np.ndarray]  # token, count, key, value


def once(slots: list[Slot], most: int, chunk: int, weighted: bool) -> list[Slot]:
    """Merge the best pairs of a head's slots between its first and newest, in NumPy."""
    edges, lo, hi = [], NUMBERS["sinks"], len(slots) - NEWEST
    for begin in range(lo, hi, chunk):
        odd = range(begin + 1, min(begin + chunk, hi), 2)
        for a in range(begin, min(begin + chunk, hi), 2):
            if odd:
                unit = lambda i: slots[i][2] / np.linalg.norm(slots[i][2])
                alike = [np.float32(unit(a) @ unit(b)) for b in odd]
                alike = np.asarray(alike).astype(ml_dtypes.bfloat16).astype(np.float64)
                best = int(alike.argmax())
                edges.append((-alike[best], a, odd[best]))
    into: dict[int, list[int]] = {}
    for _, a, b in sorted(edges, key=lambda edge: edge[:2])[:most]:
        into.setdefault(b, [b]).append(a)
    gone = {a for members in into.values() for a in members[1:]}
    merged = []
    for i, slot in enumerate(slots):
        if i in into:
            of = [slots[j] for j in into[i]]
            n = [x[1] if weighted else 1 for x in of]
            k, v = (np.average([x[at] for x in of], 0, n) for at in (2, 3))
            slot = (slot[0], sum(x[1] for x in of), k, v)
        if i not in gone:
            merged.append(slot)
    return merged


def simulate(prompt, text, chunk=NUMBERS["chunk"], weighted=True) -> list[list[Slot]]:
    """Return the slots of each KV head of the first layer at the end."""
    _, k, v = oracle.first_layer(peaked.model(), [*prompt, *text])
    read, end = len(prompt) - 1, len(prompt) + len(text) - 1
    every, within = NUMBERS["every"], NUMBERS["prompt_every"]
    events = {read, end, *range(within, read, within)}
    events |= {n for n in range(every, end + 1, every) if n > read}
    heads: list[list[Slot]] = [[] for _ in range(k.shape[1])]
    last = 0
    for length in sorted(events):
        due = length != end or not end % every or end == read
        for g, slots in enumerate(heads):
            slots += [(t, 1, k[t, g], v[t, g]) for t in range(last, length)]
            while due and len(slots) > NUMBERS["budget"]:
                most = len(slots) - NUMBERS["budget"]
                heads[g] = slots = once(slots, most, chunk, weighted)
        last = length
    return heads


def follow() -> list[tuple[Any, list[int], list[list[Slot]]]]:
    """Return of each prompt: itself, its text, and the slots of the first layer."""
    run = kit.Run(Method(policy=SPEC), lm=peaked.model())
    state = run.start(oracle.PROMPTS, new=peaked.NEW, size=peaked.SIZE)
    state = run.advance(state)
    cache = state.caches["target"]
    layer = cache.layers[0]
    tokens = np.asarray(layer.tokens(cache.length))
    count, (k, v) = np.exp(layer.bias), layer.store.read()
    rows = []
    for b, texts in enumerate(kit.texts(state, oracle.PROMPTS)):
        heads = []
        for g, kept_tokens in enumerate(tokens[b]):
            slots = range(int((kept_tokens >= 0).sum()))
            values = lambda j, b=b, g=g: (k[b, g, j], v[b, g, j])
            heads.append(
                [
                    (kept_tokens[j], round(float(count[b, g, j])), *values(j))
                    for j in slots
                ]
            )
        rows.append((oracle.PROMPTS[b], texts, heads))
    return rows


def same(found: list[list[Slot]], expected: list[list[Slot]]) -> bool:
    if [[x[:2] for x in h] for h in found] != [[x[:2] for x in h] for h in expected]:
        return False
    pairs = [(x, y) for one, two in zip(found, expected) for x, y in zip(one, two)]
    return all(np.allclose(x[i], y[i], atol=1e-4) for x, y in pairs for i in (2, 3))


def test_it_merges_what_numpy_merges():
    """Three prompts; planted: means without counts, and pairs across chunks.

    Counts sum to the tokens seen; the first tokens and the newest are alone.
    """
    rows = follow()
    for prompt, text, heads in rows:
        assert same(heads, simulate(prompt, text))
        for slots in heads:
            counts = [count for _, count, _, _ in slots]
            assert sum(counts) == len(prompt) + len(text) - 1
            assert max(counts) > 1
            assert set(counts[: NUMBERS["sinks"]] + counts[-NEWEST:]) == {1}
    for fault in ({"weighted": False}, {"chunk": 64}):
        assert not any(same(x, simulate(p, text, **fault)) for p, text, x in rows)


N, B, G, DIM = 40, 2, 2, 8


def copies() -> kept.KeptLayer:
    """A layer of ten random keys, four slots of each side by side, and their values."""
    rng = np.random.default_rng(0)
    draw = lambda: np.repeat(rng.normal(size=(B, G, N // 4, DIM)), 4, 2)
    store = kv_cache.DenseLayer(jnp.asarray(draw()), jnp.asarray(draw()))
    places, first = kept.LayerSizes(N, N), jnp.zeros((B,), jnp.int32)
    rows = (first, first)
    layer = kept.layer(store, places, N, (1, DIM), first, {}, {}, rows, biased=True)
    pos = jnp.broadcast_to(jnp.arange(N, dtype=jnp.int32), (B, G, N))
    return layer.replace(pos=pos)


def merge(layer: kept.KeptLayer, keep: int, due=(True, True)) -> kept.KeptLayer:
    length = jnp.full((B,), N, jnp.int32)
    about = scored.About(length, jnp.full((B,), keep, jnp.int32), length, 0)
    rest = {"chunk": 4, "sinks": 0, "recent": 0.0}
    return chelsea.merged(layer, jnp.asarray(due), about, **rest)


def outputs(layer: kept.KeptLayer) -> np.ndarray:
    """Attend with five queries a head to the slots in use, in float64."""
    q = np.random.default_rng(1).normal(size=(B, G, 5, DIM))
    k, v, bias = (np.asarray(x, np.float64) for x in (*layer.store.read(), layer.bias))
    s = np.einsum("bgqd,bgsd->bgqs", q, k) + bias[:, :, None]
    used = np.arange(k.shape[2]) < (N - np.asarray(layer.shift))[:, None, None, None]
    p = np.where(used, np.exp(s), 0)
    return np.einsum("bgqs,bgsd->bgqd", p / p.sum(-1, keepdims=True), v)


def test_equal_keys_merge_exactly():
    """Planted: no ln n in the scores, an error of some tenths."""
    whole = copies()
    # The newest slot stays alone, so that one key keeps two slots.
    fewer = merge(whole, N // 4 + 1)
    assert (N - np.asarray(fewer.shift) == N // 4 + 1).all()
    counts = np.exp(np.asarray(fewer.bias))[:, :, : N // 4 + 1]
    assert np.abs(counts.sum(-1) - N).max() < 1e-4
    assert np.abs(outputs(fewer) - outputs(whole)).max() < 1e-6
    bare = fewer.replace(bias=jnp.where(fewer.bias > 0, 0.0, fewer.bias))
    assert np.abs(outputs(bare) - outputs(whole)).max() > 0.1


def test_rows_that_are_not_due_stay():
    """Bit by bit, beside a row that is merged."""
    whole = copies()
    fewer = merge(whole, 12, due=(False, True))
    assert fewer.shift.tolist() == [0, N - 12]
    for old, new in zip(whole.store.read(), fewer.store.read()):
        np.testing.assert_array_equal(old[0], new[0])
    assert not np.asarray(fewer.bias[0]).any()


@pytest.mark.parametrize("keep", [1, 2, 3, 39])
def test_any_budget_is_met(keep):
    """Also those that have no place for the first tokens and the newest."""
    fewer = merge(copies(), keep)
    assert (N - np.asarray(fewer.shift) == keep).all()
    counts = np.exp(np.asarray(fewer.bias))[:, :, :keep]
    assert np.abs(counts.sum(-1) - N).max() < 1e-3


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        ({"chunk": 3}, "chunk=3: use an even number"),
        ({"sinks": -1}, "sinks=-1: use at least 0"),
        ({"recent": 1.0}, "recent=1.0: use a share"),
    ],
)
def test_bad_numbers(arguments, words):
    with pytest.raises(MethodError, match=words):
        Spec("caches/chelsea", **arguments).build({})


def test_codes_are_refused():
    lm = peaked.model(cache=quantized.int8(32))
    with pytest.raises(MethodError, match="QuantizedLayer: use the dense layout"):
        kit.Run(Method(policy=SPEC), lm=lm).start(oracle.PROMPTS)
