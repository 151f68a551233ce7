"""Pages: the kernel through a table, and the books of who owns which page."""

import dataclasses
import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import decoding
import models
from decoding.conformance import kit
from kernels import block_traffic
from kernels.paged_tree_attention import api, reference
from kernels.tree_attention import pallas_tpu, xla
from kernels.tree_attention import reference as dense
from models import base, transformer
from models.cache_layouts import kv_cache, paged
from models.distributed import sharding
from models.errors import ConfigError, PromptError
from tests.kernels.cases import (
    Case,
    device,
    distance,
    make,
    oracle,
    settings,
    visible,
)
from tests.kernels.test_traffic import shape_of
from tests.models import blocks, small
from tests.models.transformer import test_model

pytestmark = pytest.mark.kernels

CASES = {
    "tree": Case(nodes=20, heads=4, size=384, softcap=3.0),
    "plain": Case(nodes=1, heads=2, size=384, dtype=jnp.bfloat16),
    "window": Case(nodes=40, heads=1, size=384, window=37),
}


@functools.cache
def pooled(case, page):
    """The call of a case with its cache in pages in any order, NaN in the others.

    Columns of a row past its last slot name no page.
    """
    arguments = make(case)
    dense = device(case, arguments)
    batch, columns = len(arguments["lengths"]), case.size // page
    free = np.random.default_rng(4).permutation(batch * columns + 7)
    table = free[: batch * columns].reshape(batch, columns)
    pools = []
    for name in "kv":
        rows = dense.pop(name).reshape(batch, case.groups, columns, page, case.dim)
        shape = (free.size, case.groups, page, case.dim)
        pool = jnp.full(shape, jnp.nan, rows.dtype)
        pools.append(pool.at[table].set(jnp.moveaxis(rows, 2, 1)))
    used = np.minimum(arguments["lengths"] + case.nodes, case.size)
    table = np.where(np.arange(columns) * page < used[:, None], table, free.size)
    return {"k": pools[0], "v": pools[1], "table": jnp.asarray(table), **dense}


truth = functools.cache(lambda name: oracle(CASES[name], make(CASES[name])))


def run(name, page, kernel, **changes):
    function = functools.partial(api.paged_tree_attention, kernel=kernel)
    if kernel == "reference":
        function = reference.paged_tree_attention
    arrays = {**pooled(CASES[name], page), **changes}
    return jax.jit(lambda x: function(**x, **settings(CASES[name])))(arrays)


@pytest.mark.parametrize(
    ("kernel", "page"), [("reference", 128), ("xla", 32), ("pallas", 32)]
)
@pytest.mark.parametrize("name", CASES)
def test_every_form_computes_the_oracle(name, kernel, page):
    got = run(name, page, kernel)
    assert distance(got, truth(name)) < CASES[name].tolerance


@pytest.mark.parametrize("name", ["tree", "window"])
def test_several_pages_at_a_time_compute_the_oracle(name, monkeypatch):
    """As on a GPU; the last stretch repeats a page. Planted: pages in another order."""
    monkeypatch.setattr(xla, "stretch_of", lambda platform, shape: 5 * shape.page)
    got = run(name, 32, "xla")
    assert distance(got, truth(name)) < CASES[name].tolerance
    table = pooled(CASES[name], 32)["table"]
    other = run(name, 32, "xla", table=table.at[5].set(table[5, ::-1]))
    assert distance(other, truth(name)) > 1e-3


@pytest.mark.parametrize(("kernel", "page"), [("xla", 32), ("pallas", 32)])
def test_a_wrong_page_is_caught(kernel, page):
    """Planted: a page of another row (of its own the order would not matter)."""
    table = pooled(CASES["tree"], page)["table"]
    wrong = table.at[5, 0].set(table[3, 0])
    assert distance(run("tree", page, kernel, table=wrong), truth("tree")) > 1e-3


@functools.cache
def by_head(name, page):
    """The call of a case with a table and lengths of each KV head.

    Pages of one head, in any order; head 1 sees a third of its prefix less: its slots
    begin there, its tree's slots and key positions move down. The call, and the
    masked dense call of the same meaning.
    """
    case = CASES[name]
    arguments = make(case)
    given = device(case, arguments)
    less = np.stack([0 * arguments["lengths"], arguments["lengths"] // 3], 1)
    batch, groups, columns = *less.shape, case.size // page
    lengths = arguments["lengths"][:, None] - less
    slots = less[..., None] + np.arange(case.size)
    source = np.minimum(slots, case.size - 1)
    keys = {n: np.asarray(given.pop(n).astype(jnp.float32)) for n in "kv"}
    free = np.random.default_rng(5).permutation(batch * groups * columns + 7)
    table = free[: batch * groups * columns].reshape(batch, groups, columns)
    used = np.minimum(lengths + case.nodes, case.size)
    for kind, x in keys.items():
        moved = np.take_along_axis(x, source[..., None], 2)
        pool = np.full((free.size, 1, page, case.dim), np.nan, np.float32)
        pool[table, 0] = moved.reshape(batch, groups, columns, page, case.dim)
        given[kind] = jnp.asarray(pool).astype(case.dtype)
    table = np.where(np.arange(columns) * page < used[..., None], table, free.size)
    given |= {"table": jnp.asarray(table), "lengths": jnp.asarray(lengths, jnp.int32)}
    if case.window:
        held = np.broadcast_to(arguments["key_positions"][:, None], slots.shape)
        held = np.take_along_axis(held, source, 2)
        given["key_positions"] = jnp.asarray(held, jnp.int32)
    seen = np.broadcast_to(
        visible(case, arguments)[:, None], (batch, groups, case.nodes, case.size)
    )
    seen = seen & (np.arange(case.size) >= less[..., None])[:, :, None]
    truth = []
    for g in range(groups):
        heads = slice(g * case.heads, (g + 1) * case.heads)
        k, v = (jnp.asarray(x[:, g : g + 1]) for x in keys.values())
        q = given["q"][:, :, heads].astype(jnp.float32)
        scale = case.dim**-0.5
        truth.append(dense.attend(q, k, v, seen[:, g], case.softcap, scale))
    return given, [jnp.concatenate(x, 2) for x in zip(*truth)]


@pytest.mark.parametrize(
    ("kernel", "page"),
    [
        ("reference", 16),
        ("pallas", 16),
        pytest.param("xla", 16, marks=pytest.mark.long),
        pytest.param("pallas", 64, marks=pytest.mark.long),
    ],
)
@pytest.mark.parametrize("name", CASES)
def test_tables_of_kv_heads_are_the_masked_reference(name, kernel, page):
    """Heads of unequal lengths; planted: the heads' tables exchanged."""
    given, truth = by_head(name, page)
    function = functools.partial(api.paged_tree_attention, kernel=kernel)
    if kernel == "reference":
        function = reference.paged_tree_attention
    run = jax.jit(lambda x: function(**x, **settings(CASES[name])))
    assert distance(run(given), truth) < CASES[name].tolerance
    wrong = {**given, "table": given["table"][:, ::-1]}
    assert distance(run(wrong), truth) > 1e-3


@pytest.mark.parametrize("kernel", ["reference", "xla", "pallas"])
def test_a_table_of_each_head_may_be_the_rows(kernel):
    """Pages of all heads [P, G, page, d]: equal to a table of rows. Planted: a head's
    page of another row; refused: pages of three heads."""
    call = pooled(CASES["tree"], 32)
    table = jnp.repeat(call["table"][:, None], CASES["tree"].groups, 1)
    got = run("tree", 32, kernel, table=table)
    assert distance(got, truth("tree")) < CASES["tree"].tolerance
    wrong = table.at[5, 1, 0].set(table[3, 1, 0])
    assert distance(run("tree", 32, kernel, table=wrong), truth("tree")) > 1e-3
    if kernel == "xla":
        three = {n: jnp.concatenate([call[n], call[n][:, :1]], 1) for n in "kv"}
        with pytest.raises(ValueError, match="use 1 or the table's 2"):
            run("tree", 32, kernel, table=table, **three)


@pytest.mark.parametrize("page", [16, 256, 1024])
def test_pages_are_read_as_a_dense_cache_is(page):
    """Of each row as many pages, or parts of a block, as its slots fill."""
    shape = shape_of("8B", 8, 8192, 64, page=page, pages=8192 * 9 // page)
    cut = pallas_tpu.plan(shape, block_traffic.budget("v5e"))
    lengths = np.array([0, 100, 256, 1000, 2000, 4000, 8000, 8128])
    bounds = cut.bounds_at(lengths)
    moved, piece = cut.traffic(bounds), min(page, cut.block)
    pieces = -(-np.minimum(lengths + 64, 8192) // piece)
    assert moved["k"] == moved["v"] == pieces.sum() * 8 * piece * 128 * 2
    assert cut.cost.bytes_accessed == sum(
        cut.traffic(cut.bounds_at(np.full(8, 8192))).values()
    )


def test_what_the_kernel_takes():
    shape = shape_of("8B", 1, 4096, 1, page=64, pages=64)
    assert api.choose("auto", "tpu", shape).form == "tpu"
    form, why = api.choose("auto", "tpu", dataclasses.replace(shape, page=24))
    assert form == "xla" and "24" in why
    assert api.choose("pallas", "hopper", shape).form == "gpu"  # of 64 slots a block
    form, why = api.choose("pallas", "hopper", dataclasses.replace(shape, page=32))
    assert form == "xla" and "32" in why
    assert api.choose("auto", "hopper", shape).form == "gpu"
    assert api.choose("auto", "gpu", shape).form == "xla"
    with pytest.raises(ConfigError, match="page=0"):
        paged.pages(0)


PAGE = 8
CONFIG = dataclasses.replace(small.CONFIG, n_layers=2, windows=(0, 5))
PARAMS = blocks.numpy_params(transformer.transformer(CONFIG))
TREE = decoding.Method(kit.spec("drafters/token_recycling", choices=kit.SMALL_TREE))
PROMPTS = [[3, 1, 4, 1, 5, 9, 2, 6], [2, 7], [1, 8, 2, 8, 1, 8, 2, 8, 4, 5, 9]]


def decoded(cache, method):
    lm = models.Loaded(transformer.transformer(CONFIG, cache=cache), PARAMS)
    return decoding.generate(lm, PROMPTS, method, max_new_tokens=40).tokens


PLAIN = pytest.param(decoding.Method(), marks=pytest.mark.long)


@pytest.mark.parametrize(
    "method",
    [
        pytest.param(TREE, id="tree"),
        pytest.param(PLAIN, id="plain", marks=pytest.mark.long),
    ],
)
def test_decoding_does_not_know_of_pages(method):
    dense = decoded(kv_cache.dense, decoding.Method())
    assert decoded(paged.pages(PAGE), method) == dense


def test_a_pool_that_is_too_small_says_so(monkeypatch):
    """Five pages for three rows: texts are wrong, and `generate` raises."""
    lm = transformer.transformer(CONFIG, cache=paged.pages(PAGE, 5))
    tokens = small.random_tokens(1, 3, 20)
    _, cache = blocks.prefill(lm, PARAMS, tokens, [20, 2, 8], 32)
    assert not cache.exhausted and owned(cache) == [3, 1, 1]
    _, cache = blocks.prefill(lm, PARAMS, tokens, [1, 1, 1], 32, cache=cache)
    assert cache.exhausted and cache.overrun
    monkeypatch.setattr(paged.PagedCache, "overrun", property(lambda cache: True))
    with pytest.raises(PromptError, match="pool"):
        decoded(paged.pages(PAGE), TREE)


def owned(cache):
    return (cache.table < cache.absent).sum(1).tolist()


LM = transformer.transformer(CONFIG, cache=paged.pages(PAGE, 40))
DENSE = transformer.transformer(CONFIG)
TOKENS = small.random_tokens(2, 3, 20)
COUNTS = [20, 3, 16]


def follow(lm, cache, seed=3):
    """Logits of four more tokens of every row."""
    more = small.random_tokens(seed, cache.length.shape[0], 4)
    out, after = blocks.prefill(lm, PARAMS, more, [4] * len(more), 48, cache=cache)
    return np.asarray(out.logits), after


@functools.cache
def pair(lm):
    return blocks.prefill(lm, PARAMS, TOKENS, COUNTS, 48)[1]


@jax.jit
def gather(cache, rows):
    return cache.gather(rows)


@jax.jit
def free(cache, rows):
    return cache.free(rows)


def test_a_prefix_is_shared_until_it_is_written():
    """Row 0 (two pages and a half) twice and row 2 (two whole pages)."""
    rows = np.array([0, 2, 0])
    cache, dense = gather(pair(LM), rows), gather(pair(DENSE), rows)
    table = np.asarray(cache.table)
    assert (table[0, :2] == table[2, :2]).all()
    assert table[0, 2] != table[2, 2]  # each its own third page
    assert owned(cache) == [3, 2, 3]
    assert int((cache.users > 0).sum()) == 2 + 2 + 2  # row 1's page was given back
    assert int(cache.users[0, table[0, 0]]) == 2
    expected, _ = follow(DENSE, dense)
    got, after = follow(LM, cache)
    small.close(got, expected)
    assert (np.asarray(after.table)[:, :2] == table[:, :2]).all()
    # Planted: the page in which rows go on is shared as well.
    table = table.copy()
    table[2, 2] = table[0, 2]
    wrong = cache._with(jnp.asarray(table), cache.users)
    apart = np.abs(follow(LM, wrong)[0] - expected).max()
    assert apart > 10 * small.TOLERANCE


def test_freed_pages_are_taken_again():
    cache, first = pair(LM), np.array([True, False, False])
    held = int((cache.users > 0).sum())
    assert held == 3 + 1 + 2
    freed = free(cache, first)
    assert int((freed.users > 0).sum()) == held - 3
    assert freed.length.tolist() == [0, 3, 16] and owned(freed) == [0, 1, 2]
    shared = free(gather(cache, np.array([0, 0, 1])), first)
    assert owned(shared) == [0, 3, 1]  # the other row still has its prefix
    assert int(shared.users.sum()) == 4 and int(shared.users.max()) == 1
    rows = np.array([1, 0, 1])
    before = follow(DENSE, gather(pair(DENSE), rows))[0]
    small.close(follow(LM, gather(cache, rows))[0], before)


def test_a_row_admitted_late_brings_its_pages():
    """Row 0's text in the place of row 1's, from a pool of its own; planted: none of
    its pages."""
    cache, late = pair(LM), gather(pair(LM), np.array([0]))
    got = jax.jit(lambda c, row, late: c.admit(row, late, 0))(cache, 1, late)
    assert owned(got) == [3, 3, 2] and int(got.users.sum()) == 8
    assert int(got.users.max()) == 1
    expected = follow(DENSE, gather(pair(DENSE), np.array([0, 0, 2])))[0]
    small.close(follow(LM, got)[0], expected)
    table = np.asarray(got.table).copy()
    table[1, :3] = 39  # a page that nobody wrote
    wrong = got._with(jnp.asarray(table), got.users)
    assert np.abs(follow(LM, wrong)[0] - expected).max() > 10 * small.TOLERANCE


def test_rows_of_two_pools(monkeypatch):
    """Pages of the row's own pool, and rows admitted from the other; planted: pools
    that changed places. Rows are not reordered across pools."""
    monkeypatch.setattr(sharding, "pieces", lambda size, axis: 2)
    lm = transformer.transformer(CONFIG, cache=paged.pages(PAGE, 20))
    tokens, counts = small.random_tokens(2, 4, 20), [20, 3, 16, 7]
    cache, dense = (
        blocks.prefill(x, PARAMS, tokens, counts, 48)[1] for x in (lm, DENSE)
    )
    assert cache.users.shape == (2, 10) and cache.users.sum(1).tolist() == [4, 3]
    got = jax.jit(lambda c: c.admit(3, c, 0))(cache)
    assert got.users.sum(1).tolist() == [4, 5] and not got.overrun
    expected = follow(DENSE, gather(dense, np.array([0, 1, 2, 0])))[0]
    small.close(follow(lm, got)[0], expected)
    layers = tuple(x.replace(k=x.k[::-1]) for x in got.layers)
    wrong = follow(lm, got.replace(layers=layers))[0]
    assert np.abs(wrong - expected).max() > 10 * small.TOLERANCE
    with pytest.raises(ConfigError, match="the 2 pools of its mesh"):
        cache.gather(np.array([0, 1, 2, 0]))


def test_a_commit_copies_the_accepted_tokens_alone():
    """Of a tree in rows of 14, 3 and 16 tokens across pages; slots named one by one."""
    cache = blocks.prefill(LM, PARAMS, TOKENS, [14, 3, 16], 48)[1]
    bits = base.pack_bits(jnp.tril(jnp.ones((6, 6), bool)))
    seen = base.Visibility(cache.length, jnp.broadcast_to(bits, (3, *bits.shape)))
    index = cache.length[:, None] + jnp.arange(6)
    block = base.Block(jnp.asarray(TOKENS[:, :6]), index, index, seen)
    cache = blocks.call(LM)(PARAMS, cache, block)[1]
    path, count = jnp.array([[2, 5], [1, 0], [0, 0]]), jnp.array([2, 1, -1])
    after = blocks.keep(cache, path, count)
    assert after.length.tolist() == [17, 5, 16]
    old, new = np.asarray(cache.layers[1].read()[0]), after.layers[1].read()[0]
    expected = old.copy()
    expected[0, :, [15, 16]] = old[0, :, [16, 19]]  # across the end of a page
    np.testing.assert_array_equal(new, expected)
    np.testing.assert_array_equal(after.table, cache.table)


def test_no_copy_of_the_pool_in_the_loop(monkeypatch):
    lm = transformer.transformer(small.CONFIG, cache=paged.pages(64))
    monkeypatch.setattr(test_model, "LM", lm)
    text = test_model.loop_text()
    elements = 2 * small.CONFIG.n_kv_heads * 512 * small.CONFIG.head_dim
    assert test_model.cache_copies(text, elements) == []
