"""Checkpoints of masked diffusion models: logits of two codes, the way back, fields.

The golden files are made by tests/golden/make_diffusion.py. Tolerance: 1e-4 on fp32
logits of magnitude 5; the differences measured are below 1e-5.
"""

import dataclasses
import functools
import importlib.util
import json
import pathlib
import shutil
import sys

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import models
from models import base, checkpoints, errors, transformer
from models.checkpoints import fields, masked_diffusion, tensors
from tests.models import blocks

GOLDEN = pathlib.Path(__file__).parents[2] / "golden"
FOLDERS = {"llada": "llada", "Dream": "dream", "sdar": "sdar"}  # by model_type
NAMES = sorted(FOLDERS.values())
SOURCES = ("upstream", "transformers")
TOLERANCE = 1e-4
LENGTH = 16


@functools.cache
def loaded(name: str) -> models.Loaded:
    return models.load(GOLDEN / "diffusion" / name)


@functools.cache
def golden(name: str) -> dict[str, np.ndarray]:
    with np.load(GOLDEN / "diffusion" / f"{name}.npz", allow_pickle=False) as arrays:
        return dict(arrays)


def canvas(lm: models.Loaded, tokens: np.ndarray, size: int = LENGTH) -> np.ndarray:
    """Logits [B, T, V] of whole canvases, in blocks of `size` that see themselves."""
    batch, length = tokens.shape
    cache, out = lm.model.init_cache(batch, length), []
    for begin in range(0, length, size):
        places = jnp.tile(jnp.arange(begin, begin + size, dtype=jnp.int32), (batch, 1))
        sees = base.Visibility(
            jnp.full(batch, begin + size, jnp.int32),
            jnp.zeros((batch, size, 1), jnp.uint32),
        )
        own = blocks.ints(tokens[:, begin : begin + size])
        block = base.Block(own, places, places, sees, logits_at=base.ALL)
        found, cache = blocks.call(lm.model)(lm.params, cache, block)
        out.append(np.asarray(found.logits))
    return np.concatenate(out, 1)


def block_of(lm: models.Loaded) -> int:
    return lm.config.block_size or LENGTH


def apart(got: np.ndarray, want: np.ndarray) -> float:
    return float(np.abs(got - want).max())


def test_every_family_has_a_golden_model():
    kinds = {module.FAMILY.model_type for module in checkpoints.DIFFUSION}
    assert kinds == {*FOLDERS} == {loaded(name).family for name in NAMES}


@pytest.mark.parametrize("name", NAMES)
def test_logits_are_those_of_both_codes(name):
    lm, want = loaded(name), golden(name)
    tokens = want["tokens"]
    got = canvas(lm, tokens, block_of(lm))
    assert all(apart(got, want[source]) < TOLERANCE for source in SOURCES)
    # Planted: positions see those before them alone; a model of blocks sees all.
    causal = blocks.whole(lm.model, lm.params, tokens, blocks.WIDTH)
    assert apart(causal, want["upstream"]) > 100 * TOLERANCE
    if name == "sdar":
        assert apart(canvas(lm, tokens), want["upstream"]) > 100 * TOLERANCE
        assert apart(canvas(lm, tokens, 8), want["upstream"]) > 100 * TOLERANCE


@pytest.mark.parametrize("name", NAMES)
def test_golden_files_name_their_sources(name):
    about = json.loads(str(golden(name)["about"]))
    assert len(about["sha256"]) == 64 and "@" in about["source"]
    assert about["file"].endswith(f"modeling_{name}.py")
    version = tuple(int(x) for x in about["transformers"].split(".")[:2])
    assert (4, 46) <= version <= (4, 57) and about["torch"]
    path = GOLDEN / "diffusion" / name
    files = [GOLDEN / "diffusion" / f"{name}.npz", *path.iterdir()]
    assert sum(file.stat().st_size for file in files) < 300_000
    assert not [file for file in files if file.suffix == ".py"]


@pytest.mark.parametrize("name", NAMES)
def test_round_trip_is_bitwise(name, tmp_path):
    """Params, config, and the files: upstream's tensors and auto_map come back."""
    lm = models.load(GOLDEN / "diffusion" / name, dtype="bfloat16")
    models.save(lm, tmp_path / "once")
    again = models.load(tmp_path / "once", dtype="bfloat16")
    assert again.config == lm.config and again.auto_map == lm.auto_map
    for a, b in zip(jax.tree.leaves(lm.params), jax.tree.leaves(again.params)):
        np.testing.assert_array_equal(a, b)
    models.save(again, tmp_path / "twice")
    for file in ("config.json", "model.safetensors", "generation_config.json"):
        once, twice = ((tmp_path / n / file).read_bytes() for n in ("once", "twice"))
        assert once == twice
    theirs, ours = (
        tensors.scan(path) for path in (GOLDEN / "diffusion" / name, tmp_path / "once")
    )
    assert theirs.keys() == ours.keys()
    for key in theirs:
        np.testing.assert_array_equal(theirs[key].read(), ours[key].read())
    raw = json.loads((GOLDEN / "diffusion" / name / "config.json").read_text())
    written = json.loads((tmp_path / "once" / "config.json").read_text())
    assert written["auto_map"] == raw["auto_map"]
    assert written["architectures"] == raw["architectures"]
    # Planted: a model that was made here names no classes.
    models.save(dataclasses.replace(lm, auto_map={}), tmp_path / "made")
    assert "auto_map" not in json.loads((tmp_path / "made/config.json").read_text())


def test_code_beside_the_weights_is_not_imported(tmp_path):
    """Planted: an import of the file, which fails at once."""
    path = tmp_path / "llada"
    shutil.copytree(GOLDEN / "diffusion" / "llada", path)
    for name in ("modeling_llada", "configuration_llada"):
        (path / f"{name}.py").write_text("raise SystemExit('remote code')\n")
    before = {*sys.modules}
    assert "modeling_llada" in models.load(path).auto_map["AutoModel"]
    assert not [name for name in {*sys.modules} - before if "llada" in name]
    spec = importlib.util.spec_from_file_location("x", path / "modeling_llada.py")
    with pytest.raises(SystemExit):
        spec.loader.exec_module(importlib.util.module_from_spec(spec))


# ------------------------------------------------------------------------- fields

OWN = {
    "mask_token_id": 15,
    "visibility": ["bidirectional", "block_causal"],
    "alignment": "shifted",
    "block_size": 4,
}


def small(**changes) -> models.Loaded:
    """A Llama of 16 tokens, adapted to canvases."""
    config = transformer.Config(
        vocab_size=16,
        d_model=16,
        n_layers=1,
        n_heads=2,
        n_kv_heads=1,
        head_dim=8,
        d_ff=24,
        max_positions=32,
        ropes=(transformer.rope(8, 10000.0),),
        **changes,
    )
    model = transformer.transformer(config)
    return models.Loaded(model, blocks.numpy_params(model))


def test_an_adapted_llama_keeps_its_fields(tmp_path):
    """Planted: the same model without a mask token has none of them."""
    lm = small(
        mask_token=15,
        visibility=("bidirectional", "block_causal"),
        alignment="shifted",
        block_size=4,
    )
    models.save(lm, tmp_path / "a")
    data = json.loads((tmp_path / "a" / "config.json").read_text())
    assert {name: data[name] for name in OWN} == OWN and data["model_type"] == "llama"
    again = models.load(tmp_path / "a")
    assert again.config == lm.config
    out = again.generate([[3, 1, 2]], max_new_tokens=4)
    assert len(out.tokens[0]) == 4 and 15 not in out.tokens[0]
    models.save(small(), tmp_path / "b")
    assert not {*OWN} & {*json.loads((tmp_path / "b" / "config.json").read_text())}


@pytest.mark.parametrize("name", sorted(p.stem for p in GOLDEN.glob("models/*.npz")))
def test_every_family_may_have_the_fields(name):
    data = json.loads((GOLDEN / "models" / name / "config.json").read_text())
    plain = checkpoints.read_config(data, "plain")[1]
    config = checkpoints.read_config({**data, **OWN}, "adapted")[1]
    assert masked_diffusion.write(config) == OWN
    assert masked_diffusion.write(plain) == {}
    autoregressive = {
        "mask_token": None,
        "visibility": ("causal",),
        "alignment": "same",
        "block_size": 0,
    }
    assert dataclasses.replace(config, **autoregressive) == plain


REFUSED = {
    "unknown attention": (
        {"visibility": None, "alignment": None},
        "missing.*alignment",
    ),
    "no list": ({"visibility": "causal"}, "visibility='causal': use a list"),
    "twice": ({"visibility": ["causal"] * 2}, "list of different"),
    "other": ({"visibility": ["canvas"]}, "bidirectional"),
    "alignment": ({"alignment": "left"}, "alignment='left'.*shifted"),
    "no block": ({"block_size": None}, "without block_size"),
    "negative block": ({"block_size": -4}, "block_size=-4"),
    "mask outside": ({"mask_token_id": 72}, "mask_token_id=72: use an id below 72"),
    "no mask": ({"mask_token_id": None}, r"unknown fields \['alignment'"),
}


@pytest.mark.parametrize("case", REFUSED)
def test_refused_fields(case):
    changes, words = REFUSED[case]
    data = json.loads((GOLDEN / "models" / "qwen3" / "config.json").read_text())
    assert checkpoints.read_config({**data, **OWN}, "planted: all of them")
    with pytest.raises(errors.ConfigError, match=words):
        checkpoints.read_config({**data, **OWN, **changes}, "config.json")


def test_a_family_has_values_of_its_own():
    """Where a file lacks them; the file's own come first."""
    config = loaded("sdar").config
    plain = dataclasses.replace(config, mask_token=7, block_size=32)
    empty = fields.Fields({}, "config.json")
    assert masked_diffusion.read(empty, plain) == plain
    other = fields.Fields({"block_size": 8}, "config.json")
    assert masked_diffusion.read(other, plain).block_size == 8
