"""The RoPE of a published EAGLE head is that of its config.json, not the target's."""

import dataclasses
import json
import pathlib

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from absl import logging
from safetensors.numpy import save_file

from models.checkpoints import rope
from models.errors import CheckpointError, ConfigError
from models.heads import eagle, eagle3
from models.heads.formats import native, published
from tests.models.heads.formats.test_published import eagle3_file, eagle_file
from tests.models.published_weights import EPS, HD, TARGET, D, layer, rms

LENGTH = 60  # a slow turn shows late
X, E = np.random.default_rng(5).normal(size=(2, LENGTH, D))
SCALED = {
    "rope_type": "llama3",
    "rope_theta": 500000.0,
    "factor": 8.0,
    "low_freq_factor": 1.0,
    "high_freq_factor": 4.0,
    "original_max_position_embeddings": 16,
}
LLAMA31 = dataclasses.replace(TARGET, ropes=(rope.build(SCALED, HD, 64, "here"),))
GOLDEN = pathlib.Path(__file__).parents[3] / "golden" / "eagle3.npz"
FILES = {"eagle": eagle_file, "eagle3": eagle3_file}


def by_numpy(kind: str, w: dict, base: float) -> np.ndarray:
    """The official layer on a text, with RoPE of `base`: logits; EAGLE-1's states."""
    if kind == "eagle":
        u = np.concatenate([E, X], -1) @ w["fc.weight"].T + w["fc.bias"]
        return layer(w, "layers.0", u, u, base)
    g = np.concatenate([X, 2 * X, -E], -1) @ w["fc.weight"].T
    e = rms(E, w["midlayer.input_layernorm.weight"])
    c = np.concatenate([e, rms(g, w["midlayer.hidden_norm.weight"])], -1)
    a = layer(w, "midlayer", c, g, base)
    return rms(a, w["norm.weight"]) @ w["lm_head.weight"].T


@jax.jit
def by_us(params) -> jax.Array:
    x, e = jnp.asarray(X, jnp.float32), jnp.asarray(E, jnp.float32)
    if "head" not in params:
        return eagle.sequence(params, LLAMA31, e[None], x[None])[0]
    g = eagle3.features(params, jnp.stack([x, 2 * x, -e], -2), EPS)[None]
    a = eagle3.unroll(params, LLAMA31, e[None], g, 1, lambda s, a: a)[0, 0]
    return eagle3.logits(params, a, EPS)


def close(one, other) -> bool:
    return bool(np.allclose(one, other, atol=2e-4, rtol=2e-4))


@pytest.mark.parametrize("kind", FILES)
@pytest.mark.parametrize("said", [{}, {"rope_theta": 10000.0}, {"rope_theta": 3e5}])
def test_a_head_turns_as_its_own_file_says(kind, said):
    """Without `rope_theta` by 10000. Planted: the RoPE of the target."""
    theirs = FILES[kind]()
    params, _ = published.read(kind, theirs, LLAMA31, config=said)
    wanted = by_numpy(kind, theirs, said.get("rope_theta", 10000.0))
    assert close(by_us(params), wanted)
    planted, _ = published.read(kind, theirs, LLAMA31)
    assert np.abs(by_us(planted) - wanted).max() > 1e-2


def test_the_official_net_on_a_target_of_another_rope():
    """Logits of EAGLE's own code at base 10000 (tests/golden/make_eagle3.py).

    The target has base 500000 and the scaling of Llama 3.1. Planted: its RoPE.
    """
    golden = dict(np.load(GOLDEN))
    wanted, states, tokens, table = (
        golden.pop(name) for name in ("logits", "states", "tokens", "embedding")
    )
    states = jnp.asarray(states.reshape(LENGTH, 3, D))
    embedded = jnp.asarray(table[tokens])

    def logits(params) -> jax.Array:
        g = eagle3.features(params, states, EPS)[None]
        a = eagle3.unroll(params, LLAMA31, embedded[None], g, 1, lambda s, a: a)
        return eagle3.logits(params, a[0][0], EPS)

    params, _ = published.read("eagle3", golden, LLAMA31, config={})
    np.testing.assert_allclose(logits(params), wanted, atol=2e-5, rtol=2e-5)
    planted, _ = published.read("eagle3", golden, LLAMA31)
    assert np.abs(logits(planted) - wanted).max() > 1e-2


@pytest.mark.parametrize("kind", FILES)
def test_it_stays_with_the_head(kind, tmp_path):
    """In our format, and in the published one; what is written is read again."""
    params, _ = published.read(kind, FILES[kind](), LLAMA31, config={})
    assert params["config"].rope_theta == 10000.0
    native.save(tmp_path / "ours", params, {})
    ours = native.load(tmp_path / "ours")
    assert ours["config"] == params["config"]
    (tmp_path / "theirs").mkdir()
    file = tmp_path / "theirs" / "model.safetensors"
    published.save(kind, file, params, LLAMA31)
    said = json.loads((tmp_path / "theirs" / "config.json").read_text())
    assert said["rope_theta"] == 10000.0 and not said.get("rope_scaling")
    for place in (file, file.parent):
        again, _ = published.load(kind, place, LLAMA31)
        assert again["config"] == params["config"]
        assert close(by_us(again), by_us(params))


def test_a_head_of_ours_is_written_with_the_rope_of_its_target(tmp_path):
    """Planted: a file that says nothing would be read with base 10000."""
    params, _ = published.read("eagle3", eagle3_file(), LLAMA31)
    assert params["config"].rope_theta == 0.0
    file = tmp_path / "model.safetensors"
    published.save("eagle3", file, params, LLAMA31)
    again, _ = published.load("eagle3", file, LLAMA31)
    assert again["config"].rope_theta == 0.0
    config = json.loads((tmp_path / "config.json").read_text())
    assert config["rope_theta"] == 500000.0
    bare, _ = published.read("eagle3", eagle3_file(), LLAMA31, config={})
    assert not close(by_us(bare), by_us(again))
    (tmp_path / "config.json").write_text(json.dumps({"model_type": "qwen3"}))
    with pytest.raises(CheckpointError, match="another model's"):
        published.save("eagle3", file, params, LLAMA31)


def test_a_scaled_rope_must_be_the_target_s(tmp_path, caplog):
    theirs = eagle3_file()
    scaling = {n: x for n, x in SCALED.items() if n != "rope_theta"}
    same = {"rope_theta": 5e5, "rope_scaling": scaling}
    assert not published.read("eagle3", theirs, LLAMA31, config=same)[0][
        "config"
    ].rope_theta
    other = {"rope_scaling": {"type": "linear", "factor": 2.0}}
    with pytest.raises(ConfigError, match="a scaled RoPE must be the target's"):
        published.read("eagle3", theirs, LLAMA31, config=other)
    logging.get_absl_logger().propagate = True
    save_file(theirs, tmp_path / "heads.safetensors")
    for target, count in ((LLAMA31, 1), (TARGET, 0)):
        caplog.clear()
        published.load("eagle3", tmp_path, target)
        warned = [r for r in caplog.records if "is missing" in r.message]
        assert len(warned) == count
