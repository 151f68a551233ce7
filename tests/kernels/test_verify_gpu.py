"""The Hopper pass over logits: lowered for CUDA on any machine, and interpreted beside
`decoding/vocab.py` and float64 sums, with the laws of `test_verify`."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from decoding import vocab
from kernels import block_traffic, verify
from kernels.verify import pallas_gpu, reference, tiling
from tests.kernels.test_verify import HEAT, SIZE, block, check, dense

pytestmark = pytest.mark.kernels


def small(monkeypatch, lanes=128, programs=12):
    """Blocks of at most 512 tokens, the last of them moved."""
    monkeypatch.setattr(pallas_gpu, "LANES", lanes)
    monkeypatch.setattr(pallas_gpu, "PROGRAMS", programs)


def shape_of(logits):
    return tiling.Shape(*logits.shape, logits.dtype)


def interpreted(function, *arrays):
    params = pytest.importorskip("jax._src.pallas.mosaic_gpu.interpret.params")
    shape = shape_of(arrays[0])
    assert pallas_gpu.reason_against(shape) == ""
    return function(shape, *arrays, interpret=params.InterpretGPUParams())


def passed(given):
    """`verify` of a block of `test_verify`; some of its noise is seen by no node."""
    logits, tokens, rows, depth = given
    heat = jnp.asarray(np.broadcast_to(np.asarray(HEAT)[:, None], depth.shape))
    return interpreted(pallas_gpu.verify, logits, heat, tokens, rows, depth)


@pytest.mark.parametrize("dtype", [jnp.float32, jnp.bfloat16], ids=["f32", "bf16"])
@pytest.mark.parametrize(
    ("batch", "nodes", "size"),
    [(1, 1, 128256), (8, 64, 128256), (32, 1024, 262144), (2, 3, 50257)],
)
def test_lowers_for_cuda(batch, nodes, size, dtype):
    """One vocabulary of no whole vectors; of 50,257 tokens rows start anywhere."""
    new = jax.ShapeDtypeStruct
    wide, column = new((batch, nodes, size), dtype), new((batch, nodes), jnp.float32)
    noise, depth = new((batch, 6, size), jnp.float32), new((batch, nodes), jnp.int32)
    tokens, own = new((batch, nodes, 2), jnp.int32), new(wide.shape, jnp.float32)
    shape = shape_of(wide)
    calls = [
        (pallas_gpu.verify, (wide, column, tokens, noise, depth)),
        (pallas_gpu.residual, (wide, wide, column, column, own)),
    ]
    for function, arrays in calls:
        traced = jax.jit(lambda *a, f=function: f(shape, *a)).trace(*arrays)
        assert "mosaic_gpu" in traced.lower(lowering_platforms=("cuda",)).as_text()


def test_tells_what_the_dense_form_does(monkeypatch):
    """Planted: ties to the last lane; a moved block counted twice; sums that forget
    their maxima; the noise of another depth."""
    small(monkeypatch)
    given = block(2)
    expected = dense(*given)
    got = passed(given)
    check(got, expected)
    assert int(got.best[1, 0]) == int(got.drawn[1, 0]) == 700
    assert int(got.best[2, 0]) == SIZE - 3  # the first of two equals

    def fails(name, fault):
        with monkeypatch.context() as patch:
            patch.setattr(pallas_gpu, name, fault)
            with pytest.raises(AssertionError):
                check(passed(given), expected)

    last = lambda value, token: (
        value.max(),
        jnp.where(value == value.max(), token, 0).max(),
    )
    fails("_winner", last)
    over = pallas_gpu._pass

    def twice(by, interpret, run, rows, begin, step):
        everything = lambda c, ids, inside, values: step(c, ids, ids >= 0, values)
        return over(by, interpret, run, rows, begin, everything)

    fails("_pass", twice)
    fails("_apart", lambda a, b: jnp.zeros_like(a - b))
    logits, tokens, rows, depth = given
    with pytest.raises(AssertionError):
        check(passed((logits, tokens, rows, jnp.minimum(depth + 1, 3))), expected)


@pytest.mark.long
def test_the_entry_gives_it_what_it_takes(monkeypatch):
    """On a Hopper, noise of each node its own, in a part of a vocabulary; planted: the
    first node's noise for all."""
    small(monkeypatch)
    params = pytest.importorskip("jax._src.pallas.mosaic_gpu.interpret.params")
    monkeypatch.setattr(block_traffic, "platform", lambda: "hopper")
    inner, changes = pallas_gpu.verify, {}

    def interpreted(shape, logits, heat, tokens, noise, depth):
        depth = changes.get("depth", depth)
        return inner(
            *(shape, logits, heat, tokens, noise, depth),
            interpret=params.InterpretGPUParams(),
        )

    monkeypatch.setattr(pallas_gpu, "verify", interpreted)
    logits, tokens = (x[:1] for x in block(2)[:2])
    own = jax.random.gumbel(jax.random.key(8), logits.shape)
    call = lambda kernel: verify.verify(
        logits, 0.7, tokens + 90, own, offset=90, kernel=kernel
    )
    got, expected = call("pallas"), call("xla")
    for name in ("best", "drawn", "scores", "top", "race"):
        np.testing.assert_array_equal(getattr(got, name), getattr(expected, name))
    np.testing.assert_allclose(got.lse, expected.lse, atol=3e-6)
    changes["depth"] = jnp.zeros((1, 2), jnp.int32)
    assert (np.asarray(call("pallas").drawn) != np.asarray(expected.drawn)).any()


@pytest.mark.long
@pytest.mark.parametrize(("nodes", "programs"), [(1, 99), (5, 1), (9, 60)])
def test_other_cuts_tell_the_same(nodes, programs, monkeypatch):
    small(monkeypatch, programs=programs)
    given = block(nodes, jnp.bfloat16 if nodes == 5 else jnp.float32)
    check(passed(given), dense(*given))


def test_a_residual_is_that_of_the_dense_form(monkeypatch):
    """Planted: the laws exchanged; a moved block counted twice."""
    small(monkeypatch)
    p = block(2)[0]
    q = jnp.where(jnp.isfinite(p), p + 0.5 * block(21)[0][:, :2], -jnp.inf)
    q = q.at[0, 1].set(p[0, 1])  # nothing is left of p
    own = jax.random.gumbel(jax.random.key(3), p.shape)
    lse = jax.jit(lambda x: jax.nn.logsumexp(x, -1))

    def rest(p, q):
        return interpreted(pallas_gpu.residual, p, q, lse(p), lse(q), own)

    got = rest(p, q)
    expected = reference.residual(p, q, lse(p), lse(q), own)
    for found, right in zip(got[::2], expected[::2]):
        np.testing.assert_allclose(found, right, atol=1e-6)
    np.testing.assert_array_equal(got.drawn, expected.drawn)
    np.testing.assert_array_equal(got.spare, expected.spare)
    token = vocab.gumbel_argmax(vocab.residual(p, q), own)
    np.testing.assert_array_equal(got.token, token)
    assert float(got.mass[0, 1]) == 0
    assert (np.asarray(rest(q, p).token) != np.asarray(token)).any()


def test_a_law_of_nothing_is_the_reference_s(monkeypatch):
    """No token is possible: the first wins, and the sum is -inf, not NaN."""
    small(monkeypatch)
    logits = jnp.full((1, 1, 700), -jnp.inf)
    heat, tokens = jnp.ones((1, 1)), jnp.zeros((1, 1, 0), jnp.int32)
    got = interpreted(pallas_gpu.verify, logits, heat, tokens, None, None)
    expected = reference.verify(logits, heat, tokens, None)
    for found, right in zip(got, expected):
        np.testing.assert_array_equal(found, right)


@pytest.mark.parametrize(
    ("batch", "nodes", "size"),
    [(1, 1, 128256), (1, 64, 151936), (8, 1, 262144), (8, 64, 128256), (1, 1, 600)],
)
def test_every_token_is_in_one_stretch(batch, nodes, size):
    """None is read twice, but for what a moved block repeats; and a small batch has a
    program for every multiprocessor of an H100."""
    by = pallas_gpu.cut(tiling.Shape(batch, nodes, size, jnp.float32))
    count = -(-size // by.size)
    assert by.size <= size and count * by.size < size + by.size
    assert (by.runs - 1) * by.blocks < count <= by.runs * by.blocks
    assert batch * nodes * by.runs >= min(132, batch * nodes * (size // 512))
