"""The Hopper kernels of attention: lowered for CUDA on any machine, interpreted beside
the oracle."""

import dataclasses
import functools

import jax
import jax.numpy as jnp
import pytest

from kernels import block_traffic, paged_tree_attention
from kernels.tree_attention import layout, pallas_gpu
from tests.kernels.cases import Case, device, distance, make, oracle, settings
from tests.kernels.test_paged_tree_attention import pooled
from tests.kernels.test_traffic import abstract, shape_of

pytestmark = pytest.mark.kernels

CASE = Case(nodes=5, groups=1, heads=2, size=192, dtype=jnp.bfloat16)


@pytest.mark.parametrize(
    ("nodes", "changes"),
    [
        (1, {}),
        (64, {"window": 1024, "softcap": 30.0}),
        (300, {"dtype": jnp.dtype(jnp.float16), "cache_dtype": jnp.dtype(jnp.float16)}),
    ],
)
def test_lowers_for_cuda(nodes, changes):
    shape = shape_of("8B", 2, 4096, nodes, scale=128**-0.5, **changes)
    arrays = list(abstract(shape))
    if shape.window:
        arrays.append(jax.ShapeDtypeStruct((2, nodes), jnp.int32))
        arrays.append(jax.ShapeDtypeStruct((2, shape.size), jnp.int32))
    call = jax.jit(functools.partial(pallas_gpu.tree_attention, shape))
    text = call.trace(*arrays).lower(lowering_platforms=("cuda",)).as_text()
    assert "mosaic_gpu" in text


def test_a_paged_call_lowers_for_cuda(monkeypatch):
    """Through the entry, as on a Hopper; "auto" takes the kernel there."""
    monkeypatch.setattr(block_traffic, "platform", lambda: "hopper")
    shape = shape_of("8B", 2, 4096, 64, window=1024)
    q, k, _, lengths, ancestors = abstract(shape)
    pool = jax.ShapeDtypeStruct((40, shape.groups, 256, shape.dim), k.dtype)
    table, near, at = (
        jax.ShapeDtypeStruct((2, width), jnp.int32) for width in (16, 4096, 64)
    )

    def lowered(kernel):
        def call(table, at, near, *arrays):
            q, pool, lengths, ancestors = arrays
            return paged_tree_attention.paged_tree_attention(
                *(q, pool, pool, table, lengths, ancestors),
                positions=at,
                key_positions=near,
                window=1024,
                kernel=kernel,
            )

        traced = jax.jit(call).trace(table, at, near, q, pool, lengths, ancestors)
        return traced.lower(lowering_platforms=("cuda",)).as_text()

    assert "mosaic_gpu" in lowered("pallas")
    assert "mosaic_gpu" in lowered("auto")
    assert "mosaic_gpu" not in lowered("xla")


def interpreted(case, given=None, **changes):
    interpret = pytest.importorskip("jax._src.pallas.mosaic_gpu.interpret.params")
    given = given or device(case, make(case))
    shape = shape_of("8B", 6, case.size, case.nodes, **settings(case), **changes)
    shape = dataclasses.replace(
        shape, groups=case.groups, heads=case.heads, dim=case.dim
    )
    assert pallas_gpu.reason_against(shape) == ""
    return pallas_gpu.tree_attention(
        shape, **given, interpret=interpret.InterpretGPUParams()
    )


def test_computes_the_oracle(monkeypatch):
    """Ragged rows, absent nodes, NaN where nobody looks; and a planted off-by-one."""
    truth = oracle(CASE, make(CASE))
    assert distance(interpreted(CASE), truth) < CASE.tolerance
    bounds, step = layout.bounds, jnp.array([[1], [0], [0]])
    monkeypatch.setattr(layout, "bounds", lambda *a: bounds(*a) + step)
    assert distance(interpreted(CASE), truth) > 10 * CASE.tolerance


@pytest.mark.long
def test_warpgroups_share_keys_and_values(monkeypatch):
    """Two of them, the second with rows of padding; planted: the off-by-one again."""
    monkeypatch.setattr(pallas_gpu, "FEWEST", 0)
    case = dataclasses.replace(CASE, nodes=33)
    shape = dataclasses.replace(shape_of("8B", 6, 192, 33), groups=1, heads=2)
    assert pallas_gpu.warpgroups(shape) == 2
    truth = oracle(case, make(case))
    assert distance(interpreted(case), truth) < case.tolerance
    bounds, step = layout.bounds, jnp.array([[1], [0], [0]])
    monkeypatch.setattr(layout, "bounds", lambda *a: bounds(*a) + step)
    assert distance(interpreted(case), truth) > 10 * case.tolerance


@pytest.mark.parametrize(
    ("batch", "size", "nodes", "wide"),
    [(8, 32768, 64, 4), (1, 32768, 64, 4), (1, 32768, 1, 1), (1, 4096, 64, 2)],
)
def test_programs_fill_the_machine(batch, size, nodes, wide):
    """Four warpgroups for 256 rows, but two where a short cache has too few programs:
    the fastest of those measured on an H100."""
    shape = shape_of("8B", batch, size, nodes)
    assert pallas_gpu.warpgroups(shape) == wide
    programs = batch * shape.groups * pallas_gpu.tiles(shape, wide)
    assert programs * pallas_gpu.splits(shape) >= 0.9 * pallas_gpu.PROCESSORS
    wider = dataclasses.replace(shape, dim=256)  # of half the fast memory a row
    assert pallas_gpu.warpgroups(wider) <= 2


def in_pages(case, page, turn=0):
    """From pages in any order among pages of NaN; `turn`: the tables of other rows."""
    given = pooled(case, page)
    given |= {"table": jnp.roll(given["table"], turn, 0)}
    return interpreted(case, given, page=page, pages=given["k"].shape[0])


@pytest.mark.filterwarnings("ignore:invalid value")  # the planted fault reads NaN
def test_reads_a_page_table():
    """Pages of two blocks; planted: every row by its neighbour's table."""
    case = dataclasses.replace(CASE, size=256)
    truth = oracle(case, make(case))
    assert distance(in_pages(case, 128), truth) < case.tolerance
    assert distance(in_pages(case, 128, turn=1), truth) > 10 * case.tolerance


@pytest.mark.long
@pytest.mark.parametrize("page", [64, 640])
def test_other_pages_compute_the_oracle(page):
    """Of a block and of ten, through a window, in several runs of slots."""
    case = dataclasses.replace(CASE, size=1280, groups=2, window=500)
    assert distance(in_pages(case, page), oracle(case, make(case))) < case.tolerance


@pytest.mark.long
@pytest.mark.parametrize(
    "case",
    [
        dataclasses.replace(CASE, window=40, softcap=3.0),
        dataclasses.replace(CASE, nodes=40, heads=4, dim=128),
        dataclasses.replace(CASE, size=1280, groups=2),  # several runs of slots
    ],
    ids=str,
)
def test_other_calls_compute_the_oracle(case):
    assert distance(interpreted(case), oracle(case, make(case))) < case.tolerance


def test_what_it_does_not_take():
    shape = shape_of("8B", 1, 4096, 64)
    reasons = {
        "float32": {"dtype": jnp.dtype(jnp.float32)},
        "int8": {"cache_dtype": jnp.dtype(jnp.int8)},
        "d=80": {"dim": 80},
        "S=4000": {"size": 4000},
        "pages of 32": {"page": 32, "pages": 128},
    }
    for word, changes in reasons.items():
        against = pallas_gpu.reason_against(dataclasses.replace(shape, **changes))
        assert word in against
