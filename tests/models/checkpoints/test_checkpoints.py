"""HF checkpoints: logits equal to transformers' for every family, and the way back.

The golden files are made by tests/golden/make_golden.py. Tolerance: 1e-4 on fp32 logits
of magnitude about 6; the differences measured are below 2e-5.
"""

import json
import os
import pathlib
import shutil
import subprocess
import sys

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import models
from models import base, checkpoints, transformer
from models.checkpoints import hf
from tests.golden import families
from tests.golden.families import GOLDEN, loaded
from tests.golden.families import arrays as golden
from tests.models import blocks

NAMES = families.names()
TOLERANCE = 1e-4
SIZE = 24  # cache slots of the short sequences


def distance(got, want) -> float:
    return float(np.abs(np.asarray(got) - want).max())


def test_every_family_has_a_golden_model():
    kinds = {loaded(name).family for name in NAMES}
    assert kinds == {m.FAMILY.model_type for m in checkpoints.AUTOREGRESSIVE}


@pytest.mark.parametrize("name", NAMES)
def test_one_block(name):
    lm, want = loaded(name), golden(name)
    got = blocks.whole(lm.model, lm.params, want["tokens"], SIZE)
    assert distance(got, want["logits"]) < TOLERANCE


@pytest.mark.parametrize("name", NAMES)
def test_ragged_chunks_then_single_steps(name):
    """Rows of different lengths: chunks of 6, the rows' ends ragged, then steps."""
    lm, want = loaded(name), golden(name)
    tokens, cache = want["tokens"], lm.model.init_cache(2, SIZE)
    reached = np.array([0, 0])
    for counts in ([6, 3], [4, 6], [0, 5], *[[1, 1]] * 3):
        width = blocks.WIDTH if max(counts) > 1 else 1
        chunk = np.zeros((2, width), np.int32)
        for b, count in enumerate(counts):
            chunk[b, :count] = tokens[b, reached[b] : reached[b] + count]
        args = (lm.model, lm.params, chunk, counts, SIZE)
        out, cache = blocks.prefill(*args, cache=cache)
        for b, count in enumerate(counts):
            rows = slice(reached[b], reached[b] + count)
            got = np.asarray(out.logits[b, :count])
            if count:
                assert distance(got, want["logits"][b, rows]) < TOLERANCE
        reached += counts
    assert (reached == [13, 17]).all()


# A LongRoPE takes its long factors by the cache's size, transformers' by the text's.
@pytest.mark.parametrize(
    "name",
    [
        pytest.param(name, marks=[pytest.mark.long] * (name not in ("deepseek_v2",)))
        for name in NAMES
        if name != "phi3_long"
    ],
)
def test_greedy_text_is_transformers_s(name):
    """Planted: the other row's text."""
    ours, theirs = families.greedy(name)
    assert ours == theirs
    assert ours[0] != theirs[1] and len(ours[0]) == families.NEW


def test_long_factors_past_the_original_context():
    lm, want = loaded("phi3_long"), golden("phi3_long")
    got = blocks.whole(lm.model, lm.params, want["long_tokens"], 40)
    assert distance(got, want["long_logits"]) < TOLERANCE
    # Planted: a cache that fits the original context takes the short factors.
    short = blocks.whole(lm.model, lm.params, want["long_tokens"][:, :20], SIZE)
    assert distance(short, want["long_logits"][:, :20]) > 100 * TOLERANCE


def _damaged(params, kind):
    """Layer 1 with one thing in the wrong place."""
    layer = jax.tree.map(lambda x: x, params["layer_1"])
    attention = dict(layer["attention"])
    if kind == "gate and up swapped":
        layer = {**layer, "mlp": {**layer["mlp"], "up": layer["mlp"]["up"][:, ::-1]}}
    elif kind == "two q heads swapped":
        order = np.r_[1, 0, 2 : attention["qkv"].shape[2]]
        attention["qkv"] = attention["qkv"][:, :, order]
    elif kind == "k and v swapped":
        last = attention["qkv"].shape[2] - 1
        order = np.r_[0 : last - 1, last, last - 1]
        attention["qkv"] = attention["qkv"][:, :, order]
    elif kind == "groups swapped":
        attention["qkv"] = attention["qkv"][:, ::-1]
    elif kind == "rotary pairs interleaved":
        dim = attention["qkv"].shape[3]
        order = np.arange(dim).reshape(2, -1).T.reshape(-1)
        attention["qkv"] = attention["qkv"][..., order]
    elif kind == "norms swapped":
        layer["mlp_norm"] = layer["attention_norm"]
    return {**params, "layer_1": {**layer, "attention": attention}}


@pytest.mark.parametrize(
    "kind",
    [
        "gate and up swapped",
        "two q heads swapped",
        "k and v swapped",
        "groups swapped",
        "rotary pairs interleaved",
        "norms swapped",
    ],
)
def test_fault_misplaced_weights(kind):
    lm, want = loaded("llama3"), golden("llama3")
    params = _damaged(lm.params, kind)
    if kind == "norms swapped":
        params["layer_1"] = {**params["layer_1"], "mlp": lm.params["layer_1"]["mlp"]}
    got = blocks.whole(lm.model, params, want["tokens"], SIZE)
    assert distance(got, want["logits"]) > 100 * TOLERANCE


# ---------------------------------------------------------------- spellings


def version_4(data: dict) -> dict:
    """A config.json of transformers 5 as version 4 wrote it."""
    data = json.loads(json.dumps(data))
    if "text_config" in data:
        return {**data, "text_config": version_4(data["text_config"])}
    ropes = data.pop("rope_parameters", None)
    data["torch_dtype"] = data.pop("dtype", "float32")
    data.pop("_sliding_window_pattern", None)
    if ropes and "full_attention" in ropes:
        data["rope_local_base_freq"] = ropes["sliding_attention"]["rope_theta"]
        ropes = ropes["full_attention"]
    if ropes:
        data["rope_theta"] = ropes.pop("rope_theta")
        if data["model_type"] == "phi3":
            data["partial_rotary_factor"] = ropes.pop("partial_rotary_factor", 1.0)
            ropes.pop("original_max_position_embeddings", None)
            ropes["type"] = ropes.pop("rope_type")
        plain = ropes.get("rope_type", ropes.get("type")) == "default"
        data["rope_scaling"] = None if plain else ropes
    return data


# Gemma 4 came with version 5.
@pytest.mark.parametrize("name", [n for n in NAMES if n != "gemma4_text"])
def test_both_spellings_give_one_config(name):
    raw = json.loads((GOLDEN / "models" / name / "config.json").read_text())
    old = version_4(raw)
    assert "rope_parameters" not in json.dumps(old)
    _, expected = checkpoints.read_config(raw, "v5")
    assert checkpoints.read_config(old, "v4")[1] == expected
    if "layer_types" in old:  # derived from the older fields where absent
        if name.startswith("gemma3"):
            old["sliding_window_pattern"] = 2
        del old["layer_types"]
        assert checkpoints.read_config(old, "v4")[1] == expected


def test_published_fields_of_gemma3_are_enough():
    """The sparse text_config of google/gemma-3-4b-it."""
    text = {
        "hidden_size": 2560,
        "intermediate_size": 10240,
        "model_type": "gemma3_text",
        "num_hidden_layers": 34,
        "rope_scaling": {"factor": 8.0, "rope_type": "linear"},
        "sliding_window": 1024,
    }
    names = ["Gemma3ForConditionalGeneration"]
    data = {"architectures": names, "model_type": "gemma3", "text_config": text}
    config = checkpoints.read_config(data, "config.json")[1]
    assert (config.vocab_size, config.n_heads, config.head_dim) == (262208, 8, 256)
    assert config.windows[:6] == (1024,) * 5 + (0,)
    assert config.ropes[0].frequencies[0] == 1 / 8
    assert config.rope_of[:6] == (1, 1, 1, 1, 1, 0)


def test_llama3_frequencies_against_the_published_rule():
    """Low frequencies divided by 8, high ones kept, between them a mixture."""
    data = {
        "model_type": "llama",
        "hidden_size": 4096,
        "num_attention_heads": 32,
        "num_key_value_heads": 8,
        "num_hidden_layers": 32,
        "intermediate_size": 14336,
        "vocab_size": 128256,
        "max_position_embeddings": 131072,
        "rope_theta": 500000.0,
        "rope_scaling": {
            "factor": 8.0,
            "low_freq_factor": 1.0,
            "high_freq_factor": 4.0,
            "original_max_position_embeddings": 8192,
            "rope_type": "llama3",
        },
    }
    got = checkpoints.read_config(data, "config.json")[1].ropes[0].frequencies
    plain = transformer.rope_frequencies(128, 500000.0)
    wavelength = 2 * np.pi / np.array(plain)
    ratio = np.array(plain) / np.array(got)
    assert np.allclose(ratio[wavelength < 2048], 1)
    assert np.allclose(ratio[wavelength > 8192], 8)
    between = (wavelength > 2048) & (wavelength < 8192)
    assert between.any() and ((ratio[between] > 1) & (ratio[between] < 8)).all()


# ---------------------------------------------------------------- and back


@pytest.fixture(scope="module")
def saved(tmp_path_factory) -> pathlib.Path:
    """Every golden model, saved by us; llama3 in shards."""
    root = tmp_path_factory.mktemp("saved")
    for name in NAMES:
        small = {"shard_bytes": 30_000} if name == "llama3" else {}
        models.save(loaded(name), root / name, **small)
        np.save(root / name / "tokens.npy", golden(name)["tokens"])
    return root


@pytest.mark.parametrize("name", NAMES)
def test_round_trip_is_bitwise(name, saved):
    before, after = loaded(name), models.load(saved / name)
    assert after.config == before.config
    assert jax.tree.structure(after.params) == jax.tree.structure(before.params)
    for a, b in zip(jax.tree.leaves(before.params), jax.tree.leaves(after.params)):
        np.testing.assert_array_equal(a, b)
    if name == "llama3":
        assert (saved / name / "model.safetensors.index.json").exists()
        assert after.config.eos == (2, 3)


def test_the_original_tensors_come_back():
    """Names, shapes and bits of the files that transformers wrote."""
    for name in ("gpt2", "phi3", "qwen2", "opt"):
        lm = models.load(GOLDEN / "models" / name, dtype="bfloat16")
        family = checkpoints.FAMILIES[lm.family]
        found = checkpoints.hf.tensors.scan(GOLDEN / "models" / name)
        slots = hf.slots(family, lm.config, family.prefixes[0])
        flat = hf.flatten(lm.params)
        names = [n for slot in slots for n in slot.names]
        assert sorted(names) == sorted(found)
        for slot in slots:
            parts = slot.layout.split(lm.config, np.asarray(flat[slot.path]))
            for tensor, part in zip(slot.names, parts):
                stored = found[tensor].read().astype(jnp.bfloat16)
                np.testing.assert_array_equal(part, stored)


def test_saving_over_shards_removes_them(tmp_path):
    lm = loaded("llama3")
    models.save(lm, tmp_path, shard_bytes=30_000)
    assert len(list(tmp_path.glob("model-*.safetensors"))) > 1
    models.save(lm, tmp_path)
    files = {path.name for path in tmp_path.iterdir()}
    assert {name for name in files if "model" in name} == {"model.safetensors"}
    assert models.load(tmp_path).config == lm.config


def test_bfloat16_and_a_mesh(tmp_path):
    mesh = jax.make_mesh((1,), ("data",))
    lm = models.load(GOLDEN / "models" / "qwen3", mesh=mesh, dtype="bfloat16")
    assert {x.dtype.name for x in jax.tree.leaves(lm.params)} == {"bfloat16"}
    leaf = lm.params["embedding"]["tokens"]
    assert leaf.sharding.is_equivalent_to(
        jax.sharding.NamedSharding(mesh, jax.sharding.PartitionSpec()), leaf.ndim
    )
    want = golden("qwen3")
    assert lm.model.init_cache(1, 4).layers[0].k.dtype == jnp.bfloat16
    got = blocks.whole(lm.model, lm.params, want["tokens"], SIZE)
    # bf16 has 8 bits: logits of about 6 are wrong in the second digit, no more.
    assert 1e-3 < distance(got, want["logits"]) < 0.5
    models.save(lm, tmp_path)
    data = json.loads((tmp_path / "config.json").read_text())
    assert data["dtype"] == data["torch_dtype"] == "bfloat16"


def test_a_model_made_here_can_be_saved(tmp_path):
    config = transformer.Config(
        vocab_size=16,
        d_model=16,
        n_layers=2,
        n_heads=4,
        n_kv_heads=2,
        head_dim=4,
        d_ff=24,
        max_positions=32,
        ropes=(transformer.rope(4, 10000.0),),
        eos=(0,),
    )
    model = transformer.transformer(config)
    lm = models.Loaded(model, blocks.numpy_params(model))
    models.save(lm, tmp_path)
    again = models.load(tmp_path)
    assert again.config == config and again.tokenizer is None
    tokens = np.arange(8).reshape(1, 8)
    np.testing.assert_array_equal(
        blocks.whole(again.model, again.params, tokens, SIZE),
        blocks.whole(model, lm.params, tokens, SIZE),
    )


def _interpreter_with_transformers() -> str:
    """DECODAX_PEERS, or this interpreter, if it imports torch and transformers."""
    candidate = os.environ.get("DECODAX_PEERS", sys.executable)
    probe = [candidate, "-c", "import torch, transformers"]
    if subprocess.run(probe, capture_output=True, check=False).returncode:
        pytest.skip("needs an interpreter with the extra `peers` (DECODAX_PEERS)")
    return candidate


@pytest.mark.peers
def test_transformers_reads_what_we_save(saved):
    python = _interpreter_with_transformers()
    script = str(GOLDEN / "read_back.py")
    command = [python, script, *[str(saved / name) for name in NAMES]]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr[-2000:]
    for name in NAMES:
        got = np.load(saved / name / "logits.npy", allow_pickle=False)
        assert distance(got, golden(name)["logits"]) < TOLERANCE


def test_hidden_states_are_those_between_layers():
    lm, want = loaded("gemma2"), golden("gemma2")
    tokens = blocks.ints(want["tokens"])
    cache = lm.model.init_cache(2, SIZE)
    block = blocks.causal(tokens, cache.length, blocks.ints([20, 20]), SIZE, base.ALL)
    taps = (0, 2, lm.config.n_layers, "norm")
    out, _ = blocks.call(lm.model, taps)(lm.params, cache, block)
    head = lm.model.head(lm.params, out.hidden["norm"])
    np.testing.assert_allclose(head, out.logits, atol=1e-5)
    embedded = lm.model.embed(lm.params, tokens, block.positions)
    np.testing.assert_allclose(out.hidden[0], embedded, atol=1e-6)


def test_copies_do_not_alias_the_file(tmp_path):
    shutil.copytree(GOLDEN / "models" / "gpt2", tmp_path, dirs_exist_ok=True)
    lm = models.load(tmp_path)
    before = np.array(lm.params["embedding"]["tokens"])
    path = tmp_path / "model.safetensors"
    raw = bytearray(path.read_bytes())
    raw[-4096:] = bytes(4096)
    with path.open("r+b") as file:
        file.write(raw)
    np.testing.assert_array_equal(before, lm.params["embedding"]["tokens"])
