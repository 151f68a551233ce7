"""Published layouts of draft heads: fixtures written by their names, numpy arithmetic.

The tensors here are made from the names and shapes of the published files, not by our
own writer; what they mean is computed by a few lines of numpy.
"""

import json

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from absl import logging
from safetensors.numpy import save_file

from models.errors import CheckpointError, ConfigError
from models.heads import eagle, eagle3, hydra, medusa
from models.heads.formats import published
from tests.models.published_weights import (
    EPS,
    FF,
    HD,
    KEPT,
    TARGET,
    VD,
    D,
    E,
    K,
    L,
    V,
    X,
    layer,
    llama,
    made,
    rms,
    silu,
)

HEAD = np.random.default_rng(2).normal(size=(V, D))  # the target's own


def medusa_file(own: bool = True) -> dict[str, np.ndarray]:
    """Heads whose last layer is their `own`, or the target's."""
    shapes: dict = {}
    for i in range(K):
        shapes[f"{i}.0.linear.weight"], shapes[f"{i}.0.linear.bias"] = (D, D), (D,)
        if own:
            shapes[f"{i}.{L}.weight"] = (V, D)
    found = made(shapes)
    for i in range(K):
        for part in ("weight", "bias"):
            found[f"{i}.1.linear.{part}"] = found[f"{i}.0.linear.{part}"].copy()
    return found


def hydra_file(prefix: bool) -> dict[str, np.ndarray]:
    shapes: dict = {"input_embed_fn.weight": (V, D)}
    first, again = (1, (3, 5, 7)) if prefix else (0, (1,))
    for i in range(K):
        for part in ("linear", "res_connection"):
            shapes[f"hydra_mlp.{i}.{first}.{part}.weight"] = (D, D * (i + 2))
            shapes[f"hydra_mlp.{i}.{first}.{part}.bias"] = (D,)
        shapes[f"hydra_mlp.{i}.{again[0]}.linear.weight"] = (D, D)
        shapes[f"hydra_mlp.{i}.{again[0]}.linear.bias"] = (D,)
        head = f"hydra_lm_head.{i}" + (".1" if prefix else "")
        shapes[f"{head}.weight"], shapes[f"{head}.bias"] = (V, D), (V,)
    if prefix:
        whole = "prefix_embeding_layer"
        shapes |= llama(f"{whole}.layers.0")
        shapes[f"{whole}.layers.0.input_layernorm.weight"] = (D,)
        shapes[f"{whole}.norm.weight"] = (D,)
        shapes[f"{whole}.embed_tokens.weight"] = (V, D)
        shapes[f"{whole}.layers.0.self_attn.rotary_emb.inv_freq"] = (HD // 2,)
    found = made(shapes)
    for i in range(K):
        for j in again[1:]:
            for part in ("weight", "bias"):
                source = f"hydra_mlp.{i}.{again[0]}.linear.{part}"
                found[f"hydra_mlp.{i}.{j}.linear.{part}"] = found[source].copy()
    return found


def eagle_file() -> dict[str, np.ndarray]:
    fc = {"embed_tokens.weight": (V, D), "fc.weight": (D, 2 * D), "fc.bias": (D,)}
    return made(fc | llama("layers.0"))


def eagle3_file() -> dict[str, np.ndarray]:
    names = {f"midlayer.{n}.weight": (D,) for n in ("hidden_norm", "input_layernorm")}
    shapes = {"fc.weight": (D, 3 * D), **names, **llama("midlayer", 2 * D)}
    found = made({**shapes, "norm.weight": (D,), "lm_head.weight": (VD, D)})
    found["d2t"] = (KEPT - np.arange(VD)).astype(np.int64)
    found["t2d"] = np.isin(np.arange(V), KEPT)
    return found


FILES = {
    "medusa": medusa_file,
    "medusa, first": lambda: medusa_file(own=False),
    "hydra": lambda: hydra_file(False),
    "hydra++": lambda: hydra_file(True),
    "eagle": eagle_file,
    "eagle3": eagle3_file,
}


def kind_of(name: str) -> str:
    return name.removesuffix("++").partition(",")[0]


def by_numpy(name: str, w: dict) -> np.ndarray:
    """Head K - 1's logits, or the layer's outputs, for states X and embeddings E."""
    if kind_of(name) == "medusa":
        z = X
        for _ in range(L):
            z = z + silu(z @ w["2.0.linear.weight"].T + w["2.0.linear.bias"])
        return z @ w.get("2.2.weight", HEAD).T
    if kind_of(name) == "hydra":
        plus = name == "hydra++"
        g = X
        if plus:
            at = "prefix_embeding_layer.layers.0"
            g = layer(w, at, rms(X, w[f"{at}.input_layernorm.weight"]), X)
            g = rms(g, w["prefix_embeding_layer.norm.weight"])
        u = np.concatenate([g, E, 2 * E, -E], -1)
        first, count, own = ("1", 4, 3) if plus else ("0", 2, 1)
        at = f"hydra_mlp.2.{first}"
        skip = u @ w[f"{at}.res_connection.weight"].T + w[f"{at}.res_connection.bias"]
        z = skip + silu(u @ w[f"{at}.linear.weight"].T + w[f"{at}.linear.bias"])
        for _ in range(count - 1):
            at = f"hydra_mlp.2.{own}.linear"
            z = z + silu(z @ w[f"{at}.weight"].T + w[f"{at}.bias"])
        head = "hydra_lm_head.2" + (".1" if plus else "")
        return z @ w[f"{head}.weight"].T + w[f"{head}.bias"]
    if name == "eagle":
        u = np.concatenate([E, X], -1) @ w["fc.weight"].T + w["fc.bias"]
        return layer(w, "layers.0", u, u)
    g = np.concatenate([X, 2 * X, -E], -1) @ w["fc.weight"].T
    e = rms(E, w["midlayer.input_layernorm.weight"])
    c = np.concatenate([e, rms(g, w["midlayer.hidden_norm.weight"])], -1)
    a = layer(w, "midlayer", c, g)
    return rms(a, w["norm.weight"]) @ w["lm_head.weight"].T


def by_us(name: str, params, arguments: dict) -> np.ndarray:
    return np.asarray(jax.jit(lambda params: _by_us(name, params, arguments))(params))


def _by_us(name: str, params, arguments: dict):
    x, e = jnp.asarray(X, jnp.float32), jnp.asarray(E, jnp.float32)
    if kind_of(name) == "medusa":
        rows = jnp.asarray(HEAD, jnp.float32)
        output = None if "head" in params else lambda z: z @ rows.T
        return medusa.logits(params, x, arguments["blocks"], output)[2]
    if kind_of(name) == "hydra":
        g = x
        if "prefix" in params:
            g = hydra.prefix_sequence(params, TARGET, x[None])[0]
        u = jnp.stack([g, e, 2 * e, -e], -2)
        return hydra.logits(params, 2, u, arguments["blocks"])
    if name == "eagle":
        return eagle.sequence(params, TARGET, e[None], x[None])[0]
    g = eagle3.features(params, jnp.stack([x, 2 * x, -e], -2), EPS)[None]
    a = eagle3.unroll(params, TARGET, e[None], g, 1, lambda s, a: a)[0, 0]
    return eagle3.logits(params, a, EPS)


@pytest.mark.parametrize("name", FILES)
def test_published_tensors_mean_what_numpy_says(name):
    """To 1e-4 in float32; planted: the order of the inputs of the first weight."""
    theirs = FILES[name]()
    expected = by_numpy(name, theirs)
    found = by_us(name, *published.read(kind_of(name), theirs, TARGET))
    np.testing.assert_allclose(found, expected, atol=1e-4, rtol=1e-4)
    first = {
        "medusa": "2.0.linear.weight",
        "medusa, first": "2.0.linear.weight",
        "hydra": "hydra_mlp.2.0.linear.weight",
        "hydra++": "hydra_mlp.2.1.linear.weight",
    }.get(name, "fc.weight")
    again = {n: x for n, x in theirs.items() if x is not theirs[first]}
    again[first] = np.roll(theirs[first], D // 2, 1)
    if kind_of(name) == "medusa":
        again["2.1.linear.weight"] = again[first]
    other = by_us(name, *published.read(kind_of(name), again, TARGET))
    assert np.abs(other - expected).max() > 1e-2


@pytest.mark.parametrize("name", FILES)
def test_what_is_written_is_what_was_read(name, tmp_path):
    """All tensors but copies of the target's and buffers come back, bit for bit."""
    theirs = FILES[name]()
    params, arguments = published.read(kind_of(name), theirs, TARGET)
    back = published.write(
        kind_of(name), params, TARGET, blocks=arguments.get("blocks", 1)
    )
    lost = {n for n in theirs if n not in back}
    assert all("embed" in n.split(".")[-2] or "inv_freq" in n for n in lost)
    for key, x in back.items():
        np.testing.assert_array_equal(x, theirs[key], err_msg=key)
    save_file(theirs, tmp_path / "heads.safetensors")
    again, _ = published.load(kind_of(name), tmp_path, TARGET)
    own = published.write(kind_of(name), again, TARGET, arguments.get("blocks", 1))
    for key, x in back.items():
        np.testing.assert_array_equal(x, own[key], err_msg=key)


def test_other_spellings():
    """Merged models prefix Medusa's names; vLLM calls EAGLE-3's layer otherwise."""
    merged = {f"medusa_head.{n}": x for n, x in medusa_file().items()}
    params, _ = published.read("medusa", merged, TARGET)
    assert params["head"].shape == (K, V, D)
    theirs = eagle3_file()
    renamed = {n.replace("midlayer.", "layers.0."): x for n, x in theirs.items()}
    a, _ = published.read("eagle3", theirs, TARGET)
    b, _ = published.read("eagle3", renamed, TARGET)
    np.testing.assert_array_equal(a["layer"]["qkv"], b["layer"]["qkv"])


def test_heads_of_the_first_checkpoints_have_no_output_layers():
    """All or none: one that is missing among others is named."""
    theirs = medusa_file(own=False)
    params, _ = published.read("medusa", theirs, TARGET)
    assert set(params) == {"res", "bias", "config"}
    assert not params["config"].output_rows
    assert set(published.write("medusa", params, TARGET, L)) == set(theirs)
    medusa.check(params, TARGET)
    some = {**medusa_file()}
    del some[f"1.{L}.weight"]  # planted: a file that lost one
    with pytest.raises(CheckpointError, match=r"missing \['1\.2\.weight'\]"):
        published.read("medusa", some, TARGET)


@pytest.mark.parametrize("name", ["eagle", "eagle3", "hydra"])
def test_a_copy_of_the_embedding_is_compared_where_it_is_given(name):
    """Either may be the other, rounded; without one the copy is dropped."""
    theirs, rows = FILES[name](), made({"rows": (V, D)})["rows"]
    copy = "input_embed_fn.weight" if name == "hydra" else "embed_tokens.weight"
    half = rows.astype(jnp.bfloat16)
    for stored, own in ((rows, rows), (half, rows), (rows, half)):
        published.read(name, {**theirs, copy: stored}, TARGET, own)
    other = np.roll(rows, 1, 0)  # planted: an embedding of another order of tokens
    other[:2] = rows[:2]
    published.read(name, {**theirs, copy: other}, TARGET)
    words = f"{copy} is not the target's embedding .*differs in 35 of 37 rows"
    with pytest.raises(CheckpointError, match=words):
        published.read(name, {**theirs, copy: other}, TARGET, rows)
    with pytest.raises(CheckpointError, match=r"shape \(36, 16\), not \(37, 16\)"):
        published.read(name, {**theirs, copy: rows[1:]}, TARGET, rows)


CLAIMS = {  # what a config.json says, truly
    "medusa": {"medusa_num_heads": K, "medusa_num_layers": L},
    "medusa, first": {"medusa_num_heads": K, "medusa_num_layers": L},
    "hydra": {"hydra_num_heads": K, "hydra_num_layers": 2},
    "hydra++": {"hydra_num_heads": K, "hydra_num_layers": 4},
    "eagle": {"bias": True},
    "eagle3": {"draft_vocab_size": VD},
}


@pytest.mark.parametrize("name", CLAIMS)
def test_tensors_win_over_a_config_that_says_otherwise(name, tmp_path, caplog):
    """With a warning that names both; none where it is right, or says nothing."""
    logging.get_absl_logger().propagate = True
    save_file(FILES[name](), tmp_path / "heads.safetensors")

    def warned(said: dict) -> list[str]:
        caplog.clear()
        (tmp_path / "config.json").write_text(json.dumps(said))
        params, arguments = published.load(kind_of(name), tmp_path, TARGET)
        back = published.write(
            kind_of(name), params, TARGET, arguments.get("blocks", 1)
        )
        for key, x in back.items():
            np.testing.assert_array_equal(x, FILES[name]()[key], err_msg=key)
        return [r.message for r in caplog.records if r.levelname == "WARNING"]

    assert not warned({}) and not warned({**CLAIMS[name], "vocab_size": 5})
    for field, truth in CLAIMS[name].items():
        lie = not truth if field == "bias" else truth + 1  # planted
        (said,) = warned({**CLAIMS[name], field: lie})
        assert f"{field}={lie}, and the tensors {truth}:" in said


def test_offsets_and_ids():
    theirs = eagle3_file()
    np.testing.assert_array_equal(
        published.read("eagle3", theirs, TARGET)[0]["kept"], KEPT
    )
    ids = {**theirs, "d2t": KEPT}
    np.testing.assert_array_equal(
        published.read("eagle3", ids, TARGET)[0]["kept"], KEPT
    )
    del ids["t2d"]
    np.testing.assert_array_equal(
        published.read("eagle3", ids, TARGET)[0]["kept"], KEPT
    )
    wrong = {**theirs, "d2t": theirs["d2t"] + 1}  # planted: t2d disagrees
    with pytest.raises(CheckpointError, match="or t2d disagrees"):
        published.read("eagle3", wrong, TARGET)


def test_bad_files(tmp_path):
    theirs = medusa_file()
    theirs["1.1.linear.weight"] = theirs["1.1.linear.weight"] + 1
    with pytest.raises(CheckpointError, match="were trained apart"):
        published.read("medusa", theirs, TARGET)
    theirs = hydra_file(True)
    del theirs["hydra_mlp.1.5.linear.bias"]
    with pytest.raises(CheckpointError, match=r"missing \['hydra_mlp\.1\.5"):
        published.read("hydra", theirs, TARGET)
    theirs = {**eagle_file(), "layers.1.x": np.zeros(2, np.float32)}
    with pytest.raises(CheckpointError, match=r"unknown \['layers\.1\.x"):
        published.read("eagle", theirs, TARGET)
    theirs = eagle_file()
    theirs["layers.0.mlp.down_proj.weight"] = np.zeros((D, FF + 4), np.float32)
    with pytest.raises(CheckpointError, match="expected"):
        published.read("eagle", theirs, TARGET)
    with pytest.raises(ConfigError, match="kind='eagle2'"):
        published.read("eagle2", {}, TARGET)
    (tmp_path / "heads.bin").write_bytes(b"x")
    with pytest.raises(CheckpointError, match="pickle"):
        published.load("eagle", tmp_path / "heads.bin", TARGET)
    with pytest.raises(CheckpointError, match="0 safetensors files"):
        published.load("eagle", tmp_path, TARGET)
