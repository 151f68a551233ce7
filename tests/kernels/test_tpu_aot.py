"""Kernels through the real TPU compiler, on a machine without a TPU (needs libtpu).

The compiler refuses a program that needs more vector memory than `vmem_limit_bytes`,
which is set to the chip's budget: what compiles fits.
"""

import dataclasses

import jax
import jax.numpy as jnp
import pytest

pytest.importorskip("libtpu", reason="the extra `tpu` is not installed")

from kernels import aot, block_traffic, bundles
from kernels.attention_columns import reference as whole_columns
from kernels.tree_attention import pallas_tpu
from models import base, transformer
from models.cache_layouts import kv_cache, paged, quantized, shared_prefix
from tests.kernels.test_traffic import GRID, abstract

pytestmark = pytest.mark.tpu_aot

# A call of every kind, on one chip or another; the loops below have the rest.
CODES = {"cache_dtype": jnp.dtype(jnp.uint8), "scaled": True}
CASES = {
    "v4-wide": ("v4", "70B", 8192, 1024, 8, {}),
    "v4-paged": ("v4", "8B", 8192, 64, 8, {"page": 16, "pages": 4800}),
    "v5e-plain": ("v5e", "8B", 32768, 1, 32, {}),
    "v5e-int4": ("v5e", "8B", 8192, 64, 8, CODES),
    "v5e-bias": ("v5e", "8B", 8192, 64, 8, {"biased": True}),
    "v6e-window": ("v6e", "8B", 32768, 64, 1, {"window": 4096, "softcap": 30.0}),
}


def check(chip, model, size, nodes, batch, **changes):
    shape = aot.tree_attention_shape(model, batch, size, nodes, **changes)
    cut, compiled = aot.tree_attention(chip, shape)
    text = compiled.as_text()
    assert "tpu_custom_call" in text
    assert aot.copies_of_the_cache(text, shape) == []
    return cut


@pytest.mark.parametrize("name", CASES)
def test_compiles_within_the_chips_memory(name):
    *case, changes = CASES[name]
    check(*case, **changes)


@pytest.mark.long
@pytest.mark.parametrize("chip", block_traffic.VMEM)
@pytest.mark.parametrize(
    "changes",
    [
        {"cache_dtype": jnp.dtype(jnp.int8), "scaled": True},
        CODES,
        {"cache_dtype": jnp.dtype(jnp.float8_e4m3fn), "scaled": True},
        {"dtype": jnp.dtype(jnp.float32), "cache_dtype": jnp.dtype(jnp.float32)},
        {"window": 4096, "softcap": 30.0},
        {"page": 1024, "pages": 75},
        {"page": 64, "pages": 1200},
        {"page": 16, "pages": 4800, "window": 4096},
    ],
    ids=lambda changes: "-".join(changes),
)
def test_other_caches_compile(changes, chip):
    check(chip, "8B", 8192, 64, 8, **changes)


PODS = ("v5e", "v5p", "v6e")
COLUMNS = {
    "sum": {},
    "max-known": {"largest": True, "known": True},
    "bias-softcap": {"biased": True, "softcap": 30.0},
    "sinks": {"sunk": True},
    "float32": {
        "dtype": jnp.dtype(jnp.float32),
        "key_dtype": jnp.dtype(jnp.float32),
    },
}


@pytest.mark.parametrize("chip", PODS)
@pytest.mark.parametrize(
    "name",
    ["sum", *[pytest.param(x, marks=pytest.mark.long) for x in COLUMNS if x != "sum"]],
)
def test_column_sums_compile(name, chip):
    """Keys are read in place, and no array has the size of queries times slots; the
    reference, which makes one, is seen."""
    shape = aot.attention_columns_shape("8B", 2, 8192, 64, **COLUMNS[name])
    _, compiled = aot.attention_columns(chip, shape)
    text = compiled.as_text()
    assert "tpu_custom_call" in text
    assert aot.copies_of(text, shape.held) == []
    scores = 4 * shape.batch * shape.queries * shape.groups * shape.heads * shape.size
    assert compiled.memory_analysis().temp_size_in_bytes < scores / 8
    if name != "sum" or chip != "v5e":
        return
    new, asked = jax.ShapeDtypeStruct, (shape.batch, shape.queries)
    heads = shape.groups * shape.heads
    arrays = [new((*asked, heads, 128), shape.dtype), new(shape.held, shape.key_dtype)]
    arrays += [new(asked, jnp.float32), new(asked, jnp.int32)]
    arrays.append(new(shape.held[:3], jnp.int32))
    whole = aot.compile_for(chip, whole_columns.columns, *arrays)
    assert whole.memory_analysis().temp_size_in_bytes > scores / 2


@pytest.mark.parametrize("chip", PODS)
@pytest.mark.parametrize(
    "page", [16, *[pytest.param(p, marks=pytest.mark.long) for p in (32, 64)]]
)
def test_tables_of_kv_heads_compile(page, chip):
    """A KV head is a row of one KV head: 8B's 8, with 16 to 64 slots a page."""
    pages = 8 * 2 * 8192 // page
    shape = aot.tree_attention_shape("8B", 16, 8192, 16, page=page, pages=pages)
    shape = dataclasses.replace(shape, groups=1)
    _, compiled = aot.tree_attention(chip, shape)
    assert aot.copies_of_the_cache(compiled.as_text(), shape) == []


def of_prefixes(*arguments):
    """Half of the slots hold a prefix that rows share."""
    return shared_prefix.shared(
        jax.eval_shape(lambda: kv_cache.dense(*arguments)), 4096
    )


LAYOUTS = {
    "dense": (kv_cache.dense, {}),
    "paged": (paged.pages(256), {"page": 256, "pages": 256}),
    "shared": (of_prefixes, {"size": 4096}),
    "int4": (quantized.int4(128), {"cache_dtype": jnp.dtype(jnp.uint8)}),
}
INT4 = pytest.param("int4", marks=pytest.mark.long)


@pytest.mark.parametrize(
    "layout",
    [
        "dense",
        *[pytest.param(x, marks=pytest.mark.long) for x in ("paged", "shared")],
        INT4,
    ],
)
def test_a_decoding_loop_copies_no_cache(layout, monkeypatch):
    """Two layers of 8B's attention, 64 nodes, 8k slots; every round commits a path.

    A shared prefix has 512 nodes: more memory than a program gets that asks for none.
    """
    monkeypatch.setattr(block_traffic, "platform", lambda: "tpu")
    budget = block_traffic.budget("v5e")
    monkeypatch.setattr(block_traffic, "vmem_here", lambda interpret: budget)
    monkeypatch.setattr(block_traffic, "cores_here", lambda interpret: 1)
    config = transformer.Config(
        vocab_size=1024,
        d_model=512,
        n_layers=2,
        n_heads=32,
        n_kv_heads=8,
        head_dim=128,
        d_ff=1024,
        max_positions=8192,
        ropes=(transformer.rope(128, 10000.0),),
    )
    make, changes = LAYOUTS[layout]
    lm = transformer.transformer(config, jnp.bfloat16, cache=make)

    def decode(params, cache, token):
        def body(carry):
            cache, token = carry
            tokens = jnp.broadcast_to(token, (8, 64))
            count = jnp.full((8,), 64, jnp.int32)
            block = base.causal_block(tokens, cache.length, count, 8192, base.ALL)
            out, cache = lm(params, cache, block)
            best = out.logits.argmax(-1).astype(jnp.int32)
            return cache.commit(best[:, 1:9], best[:, 0] % 8), best[:, -1:]

        stop = lambda carry: (carry[0].length < 8000).all()
        return jax.lax.while_loop(stop, body, (cache, token))

    params = jax.eval_shape(lm.init, jax.random.key(0))
    params = jax.tree.map(lambda x: jax.ShapeDtypeStruct(x.shape, jnp.bfloat16), params)
    cache = jax.eval_shape(lambda: lm.init_cache(8, 8192))
    token = jax.ShapeDtypeStruct((8, 1), jnp.int32)
    compiled = aot.compile_for("v5e", decode, params, cache, token, donate=(1,))
    text = compiled.as_text()
    assert text.count("tree_attention") >= 2
    for rows in (8, 1):  # a shared prefix is one row
        shape = aot.tree_attention_shape("8B", rows, 8192, 64)
        shape = dataclasses.replace(shape, **changes)
        assert aot.copies_of_the_cache(text, shape) == []


def test_a_copy_is_seen():
    """Planted: a cache with slots before heads, turned round before each call."""
    shape = aot.tree_attention_shape("8B", 2, 8192, 8)
    cut = pallas_tpu.plan(shape, 2**23)
    arrays = abstract(shape)
    turned = jax.ShapeDtypeStruct((2, 8192, 8, 128), jnp.bfloat16)

    def call(q, k, v, lengths, ancestors):
        k = k.swapaxes(1, 2)
        return pallas_tpu.tree_attention(cut, q, k, v, lengths, ancestors)

    compiled = aot.compile_for("v5e", call, arrays[0], turned, *arrays[2:])
    assert aot.copies_of_the_cache(compiled.as_text(), shape)


@pytest.mark.long
@pytest.mark.parametrize("dim", [64, 80])
def test_narrow_heads_compile(dim):
    """Outside of a loop the compiler keeps slots innermost: it copies on the way in."""
    shape = aot.tree_attention_shape("8B", 8, 8192, 64, dim=dim)
    _, compiled = aot.tree_attention("v5e", shape)
    assert "tpu_custom_call" in compiled.as_text()


def test_too_much_memory_is_refused():
    """Planted: a plan for a larger chip, compiled within a smaller one's budget."""
    shape = aot.tree_attention_shape("70B", 1, 8192, 1024)
    with pytest.raises(jax.errors.JaxRuntimeError, match="vmem"):
        aot.tree_attention("v4", shape, planned_for="v6e")


@pytest.mark.long
@pytest.mark.parametrize("case", GRID, ids=str)
def test_the_full_grid_compiles(case):
    check(*case)


def test_the_compiled_program_names_its_shape():
    """Planted: the call of another shape, and a program without the kernel."""
    shape = aot.tree_attention_shape("8B", 2, 1024, 7, window=300)
    text = aot.tree_attention("v5e", shape)[1].as_text()
    assert bundles.calls(text) == {shape: 1}
    other = dataclasses.replace(shape, nodes=8)
    assert bundles.calls(text) != {other: 1}
    assert not bundles.calls(text.replace("tpu_custom_call", "another"))
