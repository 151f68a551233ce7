"""Experts in codes of 4 bits against the same weights decoded, in every form."""

import dataclasses
import json
import pathlib
import shutil

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import models
from models.checkpoints import tensors
from models.transformer import experts, mxfp4
from models.transformer.config import Experts
from tests.models import blocks, small

GOLDEN = pathlib.Path(__file__).parents[2] / "golden" / "models" / "gpt_oss"
RULE = Experts(4, 2, 32, bias=True, stored=mxfp4.NAME)
CONFIG = dataclasses.replace(small.CONFIG, d_model=64)


SIZES = (0.0, 0.5, 1.0, 1.5, 2.0, 3.0, 4.0, 6.0)
VALUES = np.asarray([*SIZES, *[-x for x in SIZES]], np.float32)


def by_table(codes, scales) -> np.ndarray:
    """The sixteen values by their number, low half first, times 2^(scale - 127)."""
    pairs = np.stack([VALUES[codes & 15], VALUES[codes >> 4]], -1)
    power = scales.astype(np.int32)[..., None] - 127
    values = np.ldexp(pairs.reshape(*codes.shape[:-1], 32), power)
    return values.reshape(*codes.shape[:-2], -1)


def codes(seed: int = 0) -> dict[str, np.ndarray]:
    rng = np.random.default_rng(seed)
    draw = lambda name, shape: rng.integers(
        *((120, 127) if name.endswith("scales") else (0, 256)), shape
    ).astype(np.uint8)
    return {n: draw(n, s) for n, s in mxfp4.shapes(CONFIG, RULE).items()}


def test_every_code_and_scale():
    """Against a table of the sixteen values. Planted: the halves of a byte swapped."""
    every = np.arange(16, dtype=np.uint8)
    block = (every | every << 4).reshape(1, 16)
    for scale in (2, 100, 127, 130, 250):
        given = block, np.uint8([scale])
        wanted = by_table(*given)
        for library in (np.asarray, jnp.asarray):  # on the host, on a device
            found = mxfp4.decoded(*map(library, given), jnp.float32)
            np.testing.assert_array_equal(found, wanted)
    uneven = np.uint8([[1 | 7 << 4] * 16])
    found = np.asarray(mxfp4.decoded(uneven, np.uint8([127]), jnp.float32))
    assert found[:4].tolist() == [0.5, 6.0, 0.5, 6.0]


@pytest.mark.parametrize("tokens", [2, 9])
def test_forms_are_the_decoded_weights_product(tokens):
    """Few tokens gather their experts, more meet one after another.

    Planted: gate and up in turn, as the files have them.
    """
    stored = {n: jnp.asarray(x) for n, x in codes().items()}
    keys = jax.random.split(jax.random.key(0), 4)
    x = jax.random.normal(keys[0], (1, tokens, 64))
    biases = (jax.random.normal(keys[1], (4, 2, 32)), jnp.ones((4, 64)))
    logits = jax.random.normal(keys[2], (1, tokens, 4))
    chosen, weights = experts.route(RULE, logits)
    found = mxfp4.mixed(CONFIG, RULE, x, chosen, weights, stored, biases)
    up = by_table(*(np.asarray(stored[f"coded_up{s}"]) for s in ("", "_scales")))
    down = by_table(*(np.asarray(stored[f"coded_down{s}"]) for s in ("", "_scales")))
    wide = (jnp.asarray(up).transpose(0, 3, 1, 2), jnp.asarray(down).swapaxes(1, 2))
    given = (x[0], chosen[0], weights[0])
    after = jnp.einsum("tkd,tk->td", biases[1][chosen[0]], weights[0])
    wanted = experts.mixed(CONFIG, "every", *given, *wide, biases[0]) + after
    np.testing.assert_allclose(found[0], wanted, rtol=1e-4, atol=1e-4)
    swapped = experts.mixed(
        CONFIG, "every", *given, wide[0][:, :, ::-1], wide[1], biases[0]
    )
    assert np.abs(np.asarray(swapped) - found[0]).max() > 0.1


@pytest.fixture(scope="module")
def released(tmp_path_factory) -> pathlib.Path:
    """The golden gpt-oss with experts as the releases have them, of random codes."""
    folder = tmp_path_factory.mktemp("gpt_oss")
    shutil.copytree(GOLDEN, folder, dirs_exist_ok=True)
    data = json.loads((folder / "config.json").read_text())
    data["quantization_config"] = {"quant_method": "mxfp4"}
    (folder / "config.json").write_text(json.dumps(data))
    stored = {name: x.read() for name, x in tensors.scan(folder).items()}
    (folder / "model.safetensors").unlink()
    rng = np.random.default_rng(0)
    for name in [n for n in stored if n.endswith(("gate_up_proj", "down_proj"))]:
        count, size, rows = stored.pop(name).shape
        blocks_of = (count, rows, size // 32)
        draw = rng.integers(0, 256, (*blocks_of, 16))
        stored[f"{name}_blocks"] = draw.astype(np.uint8)
        stored[f"{name}_scales"] = rng.integers(120, 126, blocks_of).astype(np.uint8)
    group = lambda n, x: tensors.Group((n,), (x.shape,), x.dtype, lambda x=x: (x,))
    tensors.write(folder, [group(n, x) for n, x in sorted(stored.items())], 10**6)
    return folder


def test_a_release_loads_both_ways_and_comes_back(released, tmp_path):
    """Equal logits in codes and decoded; the same tensors when it is saved."""
    coded, wide = models.load(released), models.load(released, quantised=False)
    mlp = coded.params["layer_0"]["mlp"]
    assert mlp["coded_up"].dtype == jnp.uint8 and "experts_up" not in mlp
    assert wide.params["layer_0"]["mlp"]["experts_up"].dtype == jnp.float32
    tokens = small.random_tokens(0, 2, 12)
    found, wanted = (
        np.asarray(blocks.whole(lm.model, lm.params, tokens, 24))
        for lm in (coded, wide)
    )
    np.testing.assert_allclose(found, wanted, atol=1e-3, rtol=1e-3)
    models.save(coded, tmp_path / "again")
    first, second = (tensors.scan(p) for p in (released, tmp_path / "again"))
    assert {*first} == {*second}
    for name, x in first.items():
        if name.endswith(("_blocks", "_scales")):
            np.testing.assert_array_equal(x.read(), second[name].read())
    again = models.load(tmp_path / "again")
    assert again.config.layer(0).experts.stored == mxfp4.NAME
