"""The nested draft: its exits, what they cost, and that rows do not meet."""

import dataclasses
import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from decoding import Method, Spec
from decoding.conformance import kit as conformance
from decoding.drafters import s2d
from decoding.topologies import chain
from models import base, transformer
from models.errors import MethodError

V, TEXTS = 24, np.random.default_rng(0).integers(0, 24, (3, 9)).astype(np.int32)
EXITS = (1, 3)


@functools.cache
def model():
    config = transformer.Config(
        vocab_size=V,
        d_model=16,
        n_layers=4,
        n_heads=2,
        n_kv_heads=1,
        head_dim=8,
        d_ff=24,
        max_positions=64,
        ropes=(transformer.rope(8, 10000.0),),
    )
    whole = transformer.transformer(config)
    return whole, whole.init(jax.random.key(0))


def shallow(layers: int):
    whole, params = model()
    config = dataclasses.replace(whole.config, n_layers=layers)
    kept = {f"layer_{i}": params[f"layer_{i}"] for i in range(layers)}
    return transformer.transformer(config), {"embedding": params["embedding"], **kept}


def read(own, params, rows=TEXTS, step: int = 1) -> tuple[np.ndarray, np.ndarray]:
    """Logits [B, T, V] of texts, `step` tokens a call, and the depths that were run."""
    cache = own.init_cache(len(rows), 16)
    none = jnp.zeros((len(rows), 0), jnp.int32)
    taps = (s2d.DEPTH,) if own.config.n_layers == 4 else ()

    @jax.jit
    def call(cache, tokens):
        count = jnp.full((len(rows),), step)
        args = (tokens, cache.length, count, cache.size, base.ALL)
        out, cache = own(params, cache, base.causal_block(*args), taps)
        return out, cache.commit(none, count - 1, linear=True)

    logits, depths = [], []
    for at in range(0, rows.shape[1], step):
        out, cache = call(cache, jnp.asarray(rows[:, at : at + step]))
        logits.append(out.logits)
        depths.append(out.hidden.get(s2d.DEPTH, jnp.zeros((len(rows), step, 1))))
    return np.concatenate(logits, 1), np.concatenate(depths, 1)[..., 0]


def test_the_ends_of_the_threshold():
    """0: the model cut at the first exit; 1: the whole one, whatever the block."""
    whole, params = model()
    least, depth = read(s2d.nested(whole, EXITS, 0.0), params)
    np.testing.assert_allclose(least, read(*shallow(1))[0], atol=1e-5)
    assert (depth == 1).all()
    most, depth = read(s2d.nested(whole, EXITS, 1.0), params, step=3)
    plain = s2d.nested(whole, (), 0.0)  # no exits: all layers
    np.testing.assert_allclose(most, read(plain, params)[0], atol=1e-5)
    assert (depth == 4).all()


def middle() -> float:
    """A threshold that some tokens pass at the first exit and some at none.

    In the widest gap of the middle third, where no rounding crosses it.
    """
    logits, _ = read(*shallow(1))
    sure = np.sort(np.asarray(jax.nn.softmax(logits).max(-1)).ravel())
    sure = sure[len(sure) // 3 : 2 * len(sure) // 3]
    at = np.argmax(np.diff(sure))
    return float(sure[at : at + 2].mean())


def test_an_exit_speaks_as_the_cut_model():
    """The first token has no past, so that its law is the cut model's exactly."""
    whole, params = model()
    rows = np.arange(V, dtype=np.int32)[:, None]
    found, depth = read(s2d.nested(whole, EXITS, middle()), params, rows)
    assert set(np.unique(depth)) > {1}
    for layers in np.unique(depth).astype(int):
        own = s2d.nested(whole, (), 0.0) if layers == 4 else shallow(layers)[0]
        cut = params if layers == 4 else shallow(layers)[1]
        here = depth[:, 0] == layers
        np.testing.assert_allclose(
            found[here], read(own, cut, rows)[0][here], atol=1e-5
        )


@pytest.mark.long
def test_depth_rises_with_the_threshold():
    whole, params = model()
    last = 0.0
    for threshold in (0.0, middle(), 1.0):
        depth = read(s2d.nested(whole, EXITS, threshold), params)[1].mean()
        assert depth > last
        last = depth


def test_rows_do_not_meet():
    """A row's laws and depths beside others are those of the row alone."""
    whole, params = model()
    own = s2d.nested(whole, EXITS, middle())
    together, depths = read(own, params)
    assert len(np.unique(depths)) > 1
    for row in range(3):
        alone, depth = read(own, params, TEXTS[row : row + 1])
        np.testing.assert_allclose(together[row], alone[0], atol=1e-5)
        np.testing.assert_array_equal(depths[row], depth[0])


def test_fault_layers_that_write_for_all(monkeypatch):
    """Planted: a row that was sure gets the keys of deeper layers where another was
    not, so that what it drafts next depends on its neighbours."""
    monkeypatch.setattr(s2d, "replace", lambda block, slots: block)
    whole, params = model()
    own = s2d.nested(whole, EXITS, middle())
    together, _ = read(own, params)
    alone = [read(own, params, TEXTS[i : i + 1])[0] for i in range(3)]
    assert np.abs(together - np.concatenate(alone)).max() > 1e-3


def test_in_the_loop():
    """Tokens per call between those of the cut and of the whole draft's ends."""
    tau = []
    for threshold in (0.0, 0.5, 1.0):
        spec = Spec("drafters/s2d", exits=(1,), threshold=threshold)
        method = Method(spec, topology=Spec("topologies/chain", length=3))
        out = conformance.generate(method, draft=conformance.TARGET)
        tau.append(out.stats.tokens_per_call)
    assert tau[0] < tau[1] < tau[2] and tau[2] > 3.5  # the draft is the target itself


def test_bad_arguments():
    draft, grown = conformance.DRAFT.model, chain.topology(2)
    with pytest.raises(MethodError, match=r"exits=\(2,\) of a draft of 2"):
        s2d.drafter(draft, grown, (2,))
    with pytest.raises(MethodError, match=r"exits=\(\)"):
        s2d.drafter(draft, grown, ())
    with pytest.raises(MethodError, match="threshold=2"):
        s2d.drafter(draft, grown, (1,), 2.0)
