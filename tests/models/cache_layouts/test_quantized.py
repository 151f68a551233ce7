"""Codes under a policy that evicts: what stays exact, what is read, and the texts."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from decoding import Method, Spec
from decoding.conformance import kit, peaked
from kernels import int4_packing, quantized_kv
from kernels.quantized_kv import codes
from models import base
from models.cache_layouts import quantized
from models.cache_layouts.kept import KeptLayer
from models.errors import MethodError

GROUPS, DIM, SIZE, KEEP, GROUP = 2, 16, 512, 32, quantized_kv.GROUP
MAKERS = {"int8": quantized.int8(KEEP), "int4": quantized.int4(KEEP)}
CODES = {"int8": jnp.int8, "int4": int4_packing.DTYPE}
BEFORE = np.array([470, 300, 90])
AFTER = np.array([330, 300, 60])  # row 1 evicts nothing, row 2 has no codes


@functools.cache
def texts():
    rng = np.random.default_rng(0)
    k, v = rng.normal(size=(2, len(BEFORE), GROUPS, SIZE, DIM)).astype(np.float32)
    k[..., 3] *= 40
    return k, v


@functools.cache
def chosen():
    """The slots that stay, by row and head, and all others behind them."""
    rng = np.random.default_rng(1)
    index = np.zeros((len(BEFORE), GROUPS, SIZE), np.int32)
    for b, g in np.ndindex(*index.shape[:2]):
        stay = np.sort(rng.permutation(BEFORE[b])[: AFTER[b]])
        rest = np.setdiff1d(np.arange(SIZE), stay)
        index[b, g] = np.concatenate([stay, rest])
    return index


@functools.cache
def filled(kind):
    """A layer that holds `BEFORE[b]` tokens of each text."""
    layer = MAKERS[kind](1, len(BEFORE), SIZE, GROUPS, DIM, jnp.float32).layers[0]
    k, v = texts()
    step = jax.jit(lambda layer, s, k, v, n, m: layer.append(s, k, v).settle(n, m))
    for start in range(0, BEFORE.max(), KEEP):
        index = start + np.arange(KEEP)
        slots = np.where(index < BEFORE[:, None], index, SIZE + index)
        part = (x[:, :, start : start + KEEP].swapaxes(1, 2) for x in (k, v))
        ends = (np.minimum(BEFORE, n).astype(np.int32) for n in (start, start + KEEP))
        layer = step(layer, slots.astype(np.int32), *part, *ends)
    return layer


@functools.cache
def taken(kind):
    arrays = (jnp.asarray(x, jnp.int32) for x in (chosen(), BEFORE, AFTER))
    return jax.jit(quantized.QuantizedLayer.take)(filled(kind), *arrays)


def first_exact(used):
    return np.maximum((used - KEEP) // GROUP * GROUP, 0)


def oracle(kind):
    """Exact values where the old slot had them, and codes of all: by slot in NumPy."""
    k, v = texts()
    whole = BEFORE >= GROUP
    channel = np.asarray(codes.channels(k[:, :, :GROUP]))
    channel = np.where(whole[:, None, None], channel, 1)
    coded = codes.widen(*codes.keys(k, channel, CODES[kind])) * channel[:, :, None]
    spoken = codes.widen(*codes.values(v, CODES[kind]))
    return (k, v), (np.asarray(coded), np.asarray(spoken))


@pytest.mark.parametrize("kind", MAKERS)
def test_slots_keep_what_they_had(kind):
    """Planted: exact values from the token's number on, not from the old slot's."""
    layer, index = taken(kind), chosen()
    exact, coded = oracle(kind)
    faults = 0
    for b, g in np.ndindex(*index.shape[:2]):
        source = index[b, g, : AFTER[b]]
        was_exact = source >= first_exact(BEFORE)[b]
        is_near = np.arange(AFTER[b]) >= first_exact(AFTER)[b]
        old = (layer.old.k, layer.old.k_scale), (layer.old.v, layer.old.v_scale)
        factors = np.asarray(layer.old.channel)[b, g], 1
        near = layer.recent.k, layer.recent.v
        for true, code, stored, factor, recent in zip(exact, coded, old, factors, near):
            there = np.asarray(codes.widen(*stored))[b, g, : AFTER[b]] * factor
            whole = AFTER[b] // GROUP * GROUP
            np.testing.assert_array_equal(there[:whole], code[b, g][source][:whole])
            due = np.where(was_exact[:, None], true[b, g][source], code[b, g][source])
            got = np.asarray(recent)[b, g, : is_near.sum()]
            np.testing.assert_array_equal(got, due[is_near])
            by_token = source >= first_exact(AFTER)[b]
            wrong = np.where(by_token[:, None], true[b, g][source], code[b, g][source])
            faults += not np.array_equal(got, wrong[is_near])
    assert faults > 0


@pytest.mark.parametrize("kind", MAKERS)
def test_nothing_evicted_changes_no_bit(kind):
    """Row 1 beside others; planted: codes anew from values of codes."""
    old, new = filled(kind), taken(kind)
    row = lambda layer: jax.tree.map(lambda x: np.asarray(x)[1], layer)
    shown = BEFORE[1] - first_exact(BEFORE)[1]
    used = BEFORE[1] // GROUP * GROUP
    a, b = row(old), row(new)
    for name in ("k", "v", "k_scale", "v_scale"):
        x, y = getattr(a.old, name), getattr(b.old, name)
        end = used * x.shape[1] // SIZE
        assert x[:, :end].tobytes() == y[:, :end].tobytes()
    for x, y in zip(a.recent[:2], b.recent[:2]):
        assert x[:, :shown].tobytes() == y[:, :shown].tobytes()
    values = codes.widen(old.old.v, old.old.v_scale)
    anew = codes.values(values, CODES[kind])[1]
    assert not np.array_equal(np.asarray(anew)[1, :, :used], a.old.v_scale[:, :used])


@pytest.mark.parametrize("kind", MAKERS)
def test_sizes_change_and_nothing_else(kind):
    layer = filled(kind)
    for slots, due in ((470, 512), (600, 640), (513, 640)):
        new = layer.sized(slots)
        k, v = new.read()
        assert new.slots == k.shape[2] == due
        for x, y in zip(layer.read(), (k, v)):
            for b, n in enumerate(BEFORE):
                np.testing.assert_array_equal(x[b, :, :n], y[b, :, :n])


def kept_layer(kind):
    """A kept layer after an eviction, with room for a chain of four."""
    shift = jnp.asarray(BEFORE - AFTER, jnp.int32)
    pos = jnp.zeros((len(BEFORE), GROUPS, SIZE), jnp.int32)
    rest = {"size": 1024, "window": 0, "every": 0, "after": SIZE, "recent": 0}
    none = {"queries": None, "notes": {}, "extra": {}}
    none |= {"budget": shift, "prompt": shift}
    layer = KeptLayer(taken(kind), shift, pos=pos, **none, **rest)
    rng = np.random.default_rng(2)
    k, v = rng.normal(size=(2, len(BEFORE), 4, GROUPS, DIM)).astype(np.float32)
    slots = BEFORE[:, None] + np.arange(4)
    return layer.append(jnp.asarray(slots, jnp.int32), k, v), k, v


@pytest.mark.parametrize("kind", MAKERS)
def test_attention_counts_slots(kind):
    """A chain behind the kept slots; planted: the boundary by token number."""
    layer, new_k, new_v = kept_layer(kind)
    rng = np.random.default_rng(3)
    q = rng.normal(size=(len(BEFORE), 4, 4, DIM)).astype(np.float32)
    bits = base.pack_bits(jnp.tril(jnp.ones((4, 4), bool)))
    bits = jnp.broadcast_to(bits, (len(BEFORE), *bits.shape))
    tokens = jnp.asarray(BEFORE[:, None] + np.arange(4), jnp.int32)
    seen = base.Visibility(jnp.asarray(BEFORE, jnp.int32), bits)
    found, _ = layer.attend(jnp.asarray(q), seen, tokens, tokens, scale=0.25)
    exact, coded = oracle(kind)

    def due(by_token: bool):
        out = np.zeros(q.shape)
        for b, n, h in np.ndindex(*q.shape[:3]):
            g, number = h // 2, (BEFORE if by_token else AFTER)[b] + n
            first = first_exact(np.array(number))
            source = chosen()[b, g, : AFTER[b]]
            reads = np.arange(AFTER[b]) >= first
            reads &= source >= first_exact(BEFORE)[b]
            k, v = (
                np.where(reads[:, None], x[b, g][source], y[b, g][source])
                for x, y in zip(exact, coded)
            )
            k = np.concatenate([k, new_k[b, : n + 1, g]])
            v = np.concatenate([v, new_v[b, : n + 1, g]])
            s = 0.25 * k @ q[b, n, h]
            p = np.exp(s - s.max())
            out[b, n, h] = p @ v / p.sum()
        return np.abs(out - np.asarray(found)).max()

    assert due(False) < 1e-4
    assert due(True) > 1e-3


PROMPTS = [
    np.random.default_rng(seed).integers(0, 7, n).tolist()
    for seed, n in ((1, 420), (2, 301), (3, 45))
]
NEW, ROOM = 40, 640
POLICIES = {
    "snapkv": Spec("caches/snapkv", budget=260, window=4, kernel=3),
    "h2o": Spec("caches/h2o", budget=200, every=16, prompt_every=64),
    "streaming_llm": Spec(
        "caches/streaming_llm", budget=200, rerotate=False, every=16, prompt_every=64
    ),
}


def run(kind, policy, drafter=None, heat=0.0, **more):
    lm = peaked.model(cache=MAKERS[kind])
    parts = {}
    if drafter == "tree":
        parts = {
            "drafter": kit.spec("drafters/model"),
            "topology": kit.spec("topologies/static"),
        }
        more["draft"] = peaked.model(4)
    if drafter == "oracle":
        chain = Spec("topologies/chain", length=5)
        parts = {"drafter": Spec("drafters/oracle"), "topology": chain}
    return kit.Run(Method(policy=policy, **parts), heat, lm=lm, **more)


def text(one, prompts=PROMPTS):
    return one.texts(prompts, new=NEW, size=ROOM)


def outcome(one, prompts=PROMPTS):
    """The texts, and the tokens that every layer keeps at their ends."""
    state = one.advance(one.start(prompts, new=NEW, size=ROOM))
    cache = state.caches["target"]
    kept = [np.asarray(layer.tokens(cache.length)).tolist() for layer in cache.layers]
    return kit.texts(state, prompts), kept


@functools.cache
def plain(kind, name):
    return outcome(run(kind, POLICIES[name]))


CASES = [
    ("int8", "h2o"),
    ("int4", "h2o"),
    pytest.param("int8", "snapkv", marks=pytest.mark.long),
    pytest.param("int8", "streaming_llm", marks=pytest.mark.long),
]


@pytest.mark.long
@pytest.mark.parametrize(("kind", "name"), CASES)
def test_drafts_chunks_and_rows_keep_the_text(kind, name):
    """And what is kept; planted: rounds that end where they like, the room ignored."""
    policy, due = POLICIES[name], plain(kind, name)
    drafted = run(kind, policy, "tree")
    assert outcome(drafted) == due
    if (kind, name) != ("int8", "h2o"):
        return
    assert outcome(run(kind, policy).alter(chunk=16)) == due
    assert text(run(kind, policy), PROMPTS[:1])[0] == due[0][0]
    oracle = run(kind, policy, "oracle")
    assert outcome(oracle) == due
    bound = oracle.parts.program.policy._replace(room=None)
    assert outcome(run(kind, policy, "oracle").alter(policy=bound)) != due


@pytest.mark.long
def test_samples_are_plain_decoding_s():
    policy = POLICIES["h2o"]
    due = text(run("int8", policy, heat=0.8))
    assert text(run("int8", policy, "tree", 0.8)) == due
    assert due != plain("int8", "h2o")[0]


@pytest.mark.kv
@pytest.mark.long
@pytest.mark.parametrize("kind", MAKERS)
def test_a_large_budget_is_the_layout_s_own_text(kind):
    """Planted: a budget below the prompts' tokens."""
    own = text(run(kind, Spec("caches/dense")))
    whole = Spec("caches/h2o", budget=ROOM, every=16, prompt_every=64)
    assert text(run(kind, whole)) == own
    assert plain(kind, "h2o")[0] != own


def test_sinks_in_codes_are_refused():
    lm = peaked.model(cache=MAKERS["int8"])
    with pytest.raises(MethodError, match="QuantizedLayer, whose keys cannot be"):
        Spec("caches/streaming_llm", budget=9).build({"model": lm.model})
