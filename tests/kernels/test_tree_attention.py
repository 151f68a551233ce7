"""Tree attention: every form against a float64 oracle, with NaN wherever nobody looks.

The cases hold rows of length 0, of whole blocks and of full caches, nodes that do not
exist and rows in which nobody does (tests/kernels/cases.py).
"""

import dataclasses
import functools
import itertools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from kernels import block_traffic, int4_packing, merge_softmax
from kernels.tree_attention import api, layout, pallas_tpu, reference, xla
from tests.kernels import cases
from tests.kernels.cases import Case, device, distance, make, oracle, settings
from tests.kernels.test_traffic import shape_of

pytestmark = pytest.mark.kernels

CASES = {
    "plain": Case(nodes=1, heads=4),
    "chain": Case(nodes=5, groups=1, heads=3, dim=80, causal=True),
    "softcap": Case(nodes=20, heads=4, dim=96, softcap=3.0),
    "window": Case(nodes=40, heads=1, window=37),
    "bfloat16": Case(nodes=33, heads=2, dim=128, dtype=jnp.bfloat16),
    "int8": Case(nodes=12, cache=jnp.int8),
    "int4": Case(nodes=12, cache=int4_packing.DTYPE, size=384, window=37),
    "fp8": Case(nodes=17, dim=256, dtype=jnp.bfloat16, cache=jnp.float8_e4m3fn),
    "bias": Case(nodes=20, heads=4, dim=96, softcap=3.0, window=37, biased=True),
    "chunk": Case(nodes=270, groups=1, heads=2, causal=True, window=150),
}
cached = functools.cache(make)
truth = functools.cache(lambda case: oracle(case, cached(case)))


def planned(case, **changes):
    """The Pallas form in interpret mode, on a plan with these changes."""
    given = device(case, cached(case))
    return program(case, given, **changes)(given)


def program(case, given, **changes):
    cut = pallas_tpu.plan(cases.call_shape(case, given), block_traffic.budget("v4"))
    cut = dataclasses.replace(cut, **changes)

    def call(given):
        return pallas_tpu.tree_attention(cut, **given, interpret=True)

    return jax.jit(call)


def run(form, case):
    stretch = 128 if case.cache == int4_packing.DTYPE else 96
    function = {
        "reference": reference.tree_attention,
        "xla": functools.partial(xla.tree_attention, stretch=stretch),
    }[form]
    given = device(case, cached(case))
    return jax.jit(lambda given: function(**given, **settings(case)))(given)


@pytest.mark.parametrize("form", ["reference", "xla", "pallas"])
@pytest.mark.parametrize("name", CASES)
def test_every_form_computes_the_oracle(name, form):
    case = CASES[name]
    got = planned(case) if form == "pallas" else run(form, case)
    assert got[0].dtype == case.dtype and got[1].dtype == jnp.float32
    assert distance(got, truth(case)) < case.tolerance
    nobody = got[1][0]  # row 0: no prefix, no nodes
    assert np.isneginf(nobody).all() and (got[0][0] == 0).all()


@pytest.mark.parametrize(
    "changes",
    [
        {"passes": 2},
        pytest.param({"groups": 1, "buffers": 1}, marks=pytest.mark.long),
        {"groups": 1, "passes": 4},  # a lone fold, in halves
        pytest.param({"replicated": False}, marks=pytest.mark.long),
        {"cores": 2},
    ],
)
def test_other_cuts_compute_the_same(changes):
    case = Case(nodes=150, groups=2, heads=4)
    assert distance(planned(case, **changes), truth(case)) < case.tolerance


def test_passes_that_cut_the_tiles_compute_the_same():
    """Each pass has one chunk: the nodes of one of two tiles, of one head."""
    case = CASES["chunk"]
    assert distance(planned(case, passes=4), truth(case)) < case.tolerance


def test_blocks_that_a_window_ends_in_are_masked(monkeypatch):
    """By hand, and planted: blocks on the window's edge that count as wholly seen."""
    positions = jnp.array([[9, 11], [9, 11]])
    keys = jnp.arange(12).at[2].set(10)[None].repeat(2, 0)  # slot 2 was written late
    clear = layout.clear_from(jnp.array([9, 5]), positions, keys, 4)
    assert clear.tolist() == [8, 5]  # position 7 is outside of (11 - 4, 11]
    case = Case(nodes=20, size=640, window=300)
    assert distance(planned(case, block=128), truth(case)) < case.tolerance
    monkeypatch.setattr(layout, "clear_from", lambda lengths, *_: 0 * lengths)
    assert distance(planned(case, block=128), truth(case)) > 100 * case.tolerance


@pytest.mark.parametrize("form", ["reference", "xla", "pallas"])
def test_a_bias_is_of_its_head(form):
    """Planted: the bias of the other KV head."""
    case = CASES["bias"]
    given = device(case, cached(case))
    swapped = {**given, "bias": given["bias"][:, ::-1]}
    call = jax.jit(
        {
            "reference": lambda given: reference.tree_attention(
                **given, **settings(case)
            ),
            "xla": lambda given: xla.tree_attention(**given, **settings(case)),
            "pallas": program(case, given),
        }[form]
    )
    assert distance(call(given), truth(case)) < case.tolerance
    assert distance(call(swapped), truth(case)) > 100 * case.tolerance


def test_an_off_by_one_is_caught(monkeypatch):
    """In the length, and in the mask: each alone changes the outcome."""
    case = CASES["softcap"]
    bounds, mask_bytes = layout.bounds, layout.mask_bytes
    given = device(case, cached(case))
    planted = {}  # traced: one program has every fault
    monkeypatch.setattr(
        layout, "bounds", lambda *a: bounds(*a).at[0].add(planted["length"])
    )
    monkeypatch.setattr(
        layout,
        "mask_bytes",
        lambda x: mask_bytes(x << planted["left"] >> planted["right"]),
    )

    def call(given, faults):
        planted.update(faults)
        return program(case, given)(given)

    call = jax.jit(call)

    def found(**faults):
        none = {"length": 0, "left": np.uint32(0), "right": np.uint32(0)}
        return distance(call(given, {**none, **faults}), truth(case))

    assert found() < case.tolerance
    for length in (1, -1):
        assert found(length=length) > 100 * case.tolerance
    for side in ("left", "right"):
        assert found(**{side: np.uint32(1)}) > 100 * case.tolerance


def test_a_level_of_a_tree_sees_its_ancestors():
    """A block of the last 7 nodes, with the bits of the tree of 40 they belong to."""
    case = Case(nodes=40)
    given = device(case, cached(case))
    last = {**given, "q": given["q"][:, -7:], "ancestors": given["ancestors"][:, -7:]}
    for kernel in ("pallas", "xla"):
        call = functools.partial(api.tree_attention, **settings(case), kernel=kernel)
        got = jax.jit(call)(**last)
        expected = tuple(x[:, -7:] for x in truth(case))
        assert distance(got, expected) < case.tolerance


def test_two_halves_merge_to_the_whole():
    """Slots below 40 apart from the others; row 0 and 1 have nothing in the first."""
    case = CASES["softcap"]
    given = device(case, cached(case))
    cut = 40
    first = {**given, "k": given["k"][:, :, :cut], "v": given["v"][:, :, :cut]}
    first["lengths"] = jnp.minimum(given["lengths"], cut)
    first["ancestors"] = jnp.zeros_like(given["ancestors"])
    # Of the rows that begin after the cut.
    second = {**given, "k": given["k"][:, :, cut:], "v": given["v"][:, :, cut:]}
    second["lengths"] = given["lengths"] - cut
    long = np.asarray(given["lengths"]) >= cut
    assert long.sum() == 4
    call = functools.partial(api.tree_attention, **settings(case), kernel="xla")
    parts = [jax.jit(call)(**half) for half in (first, second)]
    merge = jax.jit(merge_softmax.merge)
    out, total = merge(parts)
    got = out[long], total[long]
    expected = tuple(x[long] for x in truth(case))
    assert distance(got, expected) < case.tolerance
    # The parts that saw nothing count for nothing, and nothing is NaN.
    empty = merge([tuple(x[:2] for x in parts[0])] * 2)
    assert (empty[0] == 0).all() and np.isneginf(empty[1]).all()
    # Planted: the average of the parts without their weights.
    wrong = sum(part[0][long] for part in parts) / 2, total[long]
    assert distance(wrong, expected) > 100 * case.tolerance


def test_choice_says_what_and_why():
    shape = pallas_tpu.Shape(1, 1, 64, 64, 8, 1, jnp.float32, jnp.float32)
    half = dataclasses.replace(shape, dtype=jnp.bfloat16, cache_dtype=jnp.bfloat16)
    assert api.choose("auto", "tpu", shape).form == "tpu"
    assert api.choose("auto", "tpu", shape, words=33).form == "xla"
    assert api.choose("auto", "cpu", shape) == ("xla", "no measured kernel for cpu")
    assert api.choose("pallas", "cpu", shape).form == "interpret"
    assert api.choose("pallas", "hopper", half).form == "gpu"
    assert api.choose("auto", "hopper", half).form == "gpu"
    assert api.choose("auto", "hopper", shape).form == "xla"
    assert api.choose("auto", "gpu", half) == ("xla", "no measured kernel for gpu")
    form, why = api.choose("pallas", "hopper", shape)
    assert form == "xla" and "float32" in why
    with pytest.raises(ValueError, match="mosaic"):
        api.choose("mosaic", "tpu", shape)


def test_stretches_of_a_gpu_hold_what_fits():
    """The whole cache, or whole pages within the bytes of scores; else as they were."""
    shape = shape_of("8B", 8, 8192, 64)
    assert xla.stretch_of("cpu", shape) == xla.stretch_of("tpu", shape) == 512
    assert xla.stretch_of("hopper", shape) == 8192
    long = dataclasses.replace(shape, size=2**17)
    assert xla.stretch_of("gpu", long) == 8192  # 512 MiB of scores
    paged = dataclasses.replace(long, page=768, pages=9)
    assert xla.stretch_of("cpu", paged) == 768
    assert xla.stretch_of("gpu", paged) == 7680
    short = dataclasses.replace(shape, size=64)
    assert xla.stretch_of("gpu", short) == 512  # cut to the cache by the call


GRID = list(
    itertools.product(
        (1, 7, 64),
        (1, 4),
        (64, 80, 96, 128, 256),
        (
            (jnp.float32, None),
            (jnp.bfloat16, None),
            (jnp.float32, jnp.int8),
            (jnp.bfloat16, jnp.float8_e4m3fn),
        ),
        ((0, 0.0), (50, 0.0), (0, 2.0)),
    )
)


@pytest.mark.long
@pytest.mark.parametrize(("nodes", "heads", "dim", "types", "kind"), GRID)
def test_the_full_grid(nodes, heads, dim, types, kind):
    case = Case(
        nodes=nodes,
        groups=2 if dim < 128 else 1,
        heads=heads,
        dim=dim,
        size=(256, 400, 640)[(dim // 16 + (heads > 1)) % 3],
        dtype=types[0],
        cache=types[1],
        window=kind[0],
        softcap=kind[1],
        seed=nodes + dim,
    )
    for form in ("reference", "xla", "pallas"):
        got = planned(case) if form == "pallas" else run(form, case)
        assert distance(got, truth(case)) < case.tolerance, form


def test_nibbles_keep_their_slots(monkeypatch):
    """Every number at every slot, and twice the slots a byte. Planted: halves in turn,
    and bits without their sign."""
    values = np.random.default_rng(0).integers(-8, 8, (2, 384, 5))
    stored = int4_packing.pack(jnp.asarray(values))
    assert stored.shape == (2, 192, 5) and stored.dtype == jnp.uint8
    np.testing.assert_array_equal(int4_packing.unpack(stored), values)
    turned = stored << 4 | stored >> 4
    assert (np.asarray(int4_packing.unpack(turned)) != values).any()
    case = CASES["int4"]
    expected = truth(case)
    unpack = int4_packing.unpack
    monkeypatch.setattr(int4_packing, "unpack", lambda x: unpack(x) & 15)
    assert distance(planned(case), expected) > 100 * case.tolerance
