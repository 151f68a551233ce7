"""Broken model directories: each a project error that names the value and the remedy.

Nothing may be compiled before the error: compilations are counted.
"""

import json
import pathlib
import shutil
import struct

import jax
import numpy as np
import pytest
import safetensors.numpy

import models
from models import errors
from models.checkpoints import tensors

GOLDEN = pathlib.Path(__file__).parents[2] / "golden" / "models"


@pytest.fixture
def copy(tmp_path):
    """A copy of a golden model, with an edited config.json."""

    def make(name: str, edit=None, **changes) -> pathlib.Path:
        shutil.copytree(GOLDEN / name, tmp_path / name)
        path = tmp_path / name / "config.json"
        data = {**json.loads(path.read_text()), **changes}
        if edit is not None:
            edit(data)
        path.write_text(json.dumps(data))
        return tmp_path / name

    return make


COMPILED: list[str] = []


def _count(event: str, duration: float, **_) -> None:
    if "backend_compile" in event:
        COMPILED.append(event)


jax.monitoring.register_event_duration_secs_listener(_count)


def test_compilations_are_counted():
    before = len(COMPILED)
    jax.jit(lambda x: x * 3.125)(np.ones(3))
    assert len(COMPILED) == before + 1


def refused(directory, kind, *words):
    """Loading fails with `kind`, and the message holds all of `words`."""
    before = len(COMPILED)
    with pytest.raises(kind) as caught:
        models.load(directory)
    assert len(COMPILED) == before
    for word in words:
        assert word in str(caught.value), str(caught.value)


CONFIGS = {
    "missing": (
        {"hidden_size": None, "num_hidden_layers": None},
        ["missing", "hidden_size", "num_hidden_layers", "config.json"],
    ),
    "unknown": (
        {"num_experts": 8, "moe_top": 2},
        ["unknown fields ['moe_top', 'num_experts']", "remove"],
    ),
    "quantised": (
        {"quantization_config": {"quant_method": "gptq"}},
        ["quantization_config"],
    ),
    "family": (
        {"model_type": "mamba", "architectures": ["MambaForCausalLM"]},
        ["'mamba'", "not supported", "llama", "gemma3_text", "opt"],
    ),
    "head": (
        {"architectures": ["LlamaForSequenceClassification"]},
        ["LlamaForSequenceClassification of 2 labels", "LlamaForCausalLM"],
    ),
    "other head": (
        {"architectures": ["LlamaForTokenClassification"]},
        ["LlamaForTokenClassification", "LlamaForCausalLM"],
    ),
    "rope type": (
        {"rope_parameters": {"rope_type": "dynamic", "rope_theta": 1e4, "factor": 2}},
        ["rope_type='dynamic'", "llama3", "longrope"],
    ),
    "rope number": (
        {"rope_parameters": {"rope_type": "linear", "rope_theta": 9, "factor": "8"}},
        ["factor='8'", "number above 0"],
    ),
    "rope keys": (
        {"rope_parameters": {"rope_type": "linear", "mrope_section": [1]}},
        ["'factor'", "mrope_section"],
    ),
    "activation": ({"hidden_act": "xielu"}, ["hidden_act='xielu'", "silu"]),
    "zero": ({"num_attention_heads": 0}, ["num_attention_heads=0", "at least 1"]),
    "text": ({"hidden_size": "32"}, ["hidden_size='32'", "integer"]),
    "heads": ({"num_key_value_heads": 3}, ["n_kv_heads=3", "divisor"]),
    "flag": ({"mlp_bias": "no"}, ["mlp_bias='no'", "true or false"]),
}


@pytest.mark.parametrize("case", CONFIGS)
def test_config_fields(copy, case):
    changes, words = CONFIGS[case]
    refused(copy("llama3", **changes), errors.ConfigError, *words)


@pytest.mark.parametrize("kinds", [["chunked_attention"] * 3, ["full_attention"], 7])
def test_layer_types(copy, kinds):
    path = copy("qwen2", layer_types=kinds)
    refused(path, errors.ConfigError, f"layer_types={kinds}", "sliding_attention")


def test_variants_that_are_not_implemented(copy):
    path = copy("opt", do_layer_norm_before=False)
    refused(path, errors.ConfigError, "do_layer_norm_before=False", "True")
    path = copy("gpt2", scale_attn_by_inverse_layer_idx=True)
    refused(path, errors.ConfigError, "scale_attn_by_inverse_layer_idx=True")
    path = copy("gemma3_text", use_bidirectional_attention=True)
    refused(path, errors.ConfigError, "use_bidirectional_attention=True")


def test_longrope_factor_lists(copy):
    def edit(data):
        data["rope_parameters"]["short_factor"] = [1.0]

    path = copy("phi3_long", edit)
    refused(path, errors.ConfigError, "short_factor has 1", "3 pairs")


def test_end_of_text_outside_the_vocabulary(copy):
    path = copy("gpt2")
    (path / "generation_config.json").write_text('{"eos_token_id": 50256}')
    refused(path, errors.ConfigError, "eos_token_id=[50256]", "72")


@pytest.mark.parametrize("text", ["{'a': 1}", "[1, 2]", "\x00\x01"])
def test_config_that_is_not_json(copy, text):
    path = copy("gpt2")
    (path / "config.json").write_text(text)
    refused(path, errors.CheckpointError, "config.json", "restore")


def test_absent_files(copy, tmp_path):
    refused(tmp_path / "nowhere", errors.CheckpointError, "nowhere", "tiny-draft")
    path = copy("gpt2")
    (path / "config.json").unlink()
    refused(path, errors.CheckpointError, "config.json is missing")
    path = copy("llama3")
    (path / "model-00002-of-00003.safetensors").unlink()
    refused(path, errors.CheckpointError, "model-00002-of-00003.safetensors")
    path = copy("opt")
    (path / "model.safetensors").unlink()
    refused(path, errors.CheckpointError, "no weights", "model.safetensors")
    (path / "pytorch_model.bin").write_bytes(b"\x80\x04N.")
    refused(path, errors.CheckpointError, "pytorch_model.bin", "convert", "safetensors")


def edit_tensors(path, edit):
    file = path / "model.safetensors"
    arrays = safetensors.numpy.load_file(file)
    edit(arrays)
    safetensors.numpy.save_file(arrays, file)


def test_tensors_that_do_not_fit_are_all_named(copy):
    path = copy("gpt2")

    def edit(arrays):
        del arrays["transformer.ln_f.bias"], arrays["transformer.h.1.mlp.c_fc.weight"]
        arrays["transformer.h.3.ln_1.weight"] = np.ones(32, np.float32)
        arrays["score.weight"] = np.ones(32, np.float32)
        arrays["transformer.wpe.weight"] = np.ones((65, 32), np.float32)

    edit_tensors(path, edit)
    refused(
        path,
        errors.CheckpointError,
        "missing tensors: ['transformer.h.1.mlp.c_fc.weight', 'transformer.ln_f.bias']",
        "extra tensors: ['score.weight', 'transformer.h.3.ln_1.weight']",
        "transformer.wpe.weight: (65, 32) in the file, (64, 32) by config.json",
        "copy",
    )


def test_head_of_an_untied_model(copy):
    path = copy("qwen3", tie_word_embeddings=False)
    refused(path, errors.CheckpointError, "missing tensors: ['lm_head.weight']")


def test_harmless_extra_tensors(copy):
    """Buffers of old files, a stored copy of a tied head, names without prefix."""
    path = copy("gpt2")

    def edit(arrays):
        for name in list(arrays):
            arrays[name.removeprefix("transformer.")] = arrays.pop(name)
        arrays["h.0.attn.bias"] = np.ones((1, 1, 64, 64), np.float32)
        arrays["lm_head.weight"] = arrays["wte.weight"].copy()

    edit_tensors(path, edit)
    want = models.load(GOLDEN / "gpt2").params
    for a, b in zip(jax.tree.leaves(models.load(path).params), jax.tree.leaves(want)):
        np.testing.assert_array_equal(a, b)


def test_truncated_and_foreign_files(copy):
    path = copy("gpt2")
    file = path / "model.safetensors"
    raw = file.read_bytes()
    file.write_bytes(raw[: len(raw) // 2])
    refused(path, errors.CheckpointError, "truncated", "transformer.wte.weight", "copy")
    file.write_bytes(raw[:100])
    refused(path, errors.CheckpointError, "truncated", "header")
    file.write_bytes(raw[:5])
    refused(path, errors.CheckpointError, "truncated", "header")
    file.write_bytes(struct.pack("<Q", 16) + b"x" * 100)
    refused(path, errors.CheckpointError, "not a safetensors file")
    file.write_bytes(struct.pack("<Q", 10) + b'{"a": [1]}')
    refused(path, errors.CheckpointError, "not a safetensors file")
    edit = json.loads(raw[8 : 8 + struct.unpack("<Q", raw[:8])[0]])
    edit["transformer.ln_f.bias"]["shape"] = [31]
    head = json.dumps(edit).encode()
    file.write_bytes(struct.pack("<Q", len(head)) + head + raw)
    refused(path, errors.CheckpointError, "disagree", "transformer.ln_f.bias")


def test_types_that_are_not_weights(copy):
    path = copy("gpt2")

    def edit(arrays):
        arrays["transformer.wte.weight"] = np.ones((72, 32), np.int8)

    edit_tensors(path, edit)
    refused(path, errors.CheckpointError, "transformer.wte.weight (I8)", "dequantise")


def test_tokenizer_larger_than_the_embedding(copy):
    path = copy("gpt2")
    shutil.copy(GOLDEN / "llama3" / "tokenizer.json", path)
    refused(path, errors.CheckpointError, "tokenizer.json has ids up to 319", "72 rows")


@pytest.mark.parametrize("text", ["{", '{"model": 3}'])
def test_tokenizer_that_is_not_one(copy, text):
    path = copy("gpt2")
    (path / "tokenizer.json").write_text(text)
    refused(path, errors.CheckpointError, "tokenizer.json")


@pytest.mark.parametrize("dtype", ["int8", "float64", "half-float", 3])
def test_dtype(dtype):
    with pytest.raises(errors.ConfigError, match="bfloat16"):
        models.load(GOLDEN / "gpt2", dtype=dtype)


def test_save_refuses_what_config_json_cannot_say(tmp_path):
    lm = models.load(GOLDEN / "gemma2")
    wrong = models.Loaded(lm.model, lm.params, family="mistral")
    with pytest.raises(errors.ConfigError, match=r"cannot express.*final_softcap"):
        models.save(wrong, tmp_path / "out")
    with pytest.raises(errors.ConfigError, match="'mystery'"):
        models.save(models.Loaded(lm.model, lm.params, family="mystery"), tmp_path)
    short = {k: v for k, v in lm.params.items() if k != "layer_2"}
    with pytest.raises(errors.CheckpointError, match="layer_2/attention/qkv"):
        models.save(models.Loaded(lm.model, short, family="gemma2"), tmp_path / "out")
    assert not (tmp_path / "out" / "config.json").exists()


def test_an_interrupted_save_leaves_the_old_file(tmp_path):
    good = tensors.Group(("a",), ((2,),), np.float32, lambda: (np.ones(2, "f4"),))
    tensors.write(tmp_path, [good])

    def fail():
        raise OSError("disk full")

    bad = tensors.Group(("b",), ((2,),), np.float32, fail)
    with pytest.raises(OSError, match="disk full"):
        tensors.write(tmp_path, [good, bad])
    assert sorted(tensors.scan(tmp_path)) == ["a"]
    both = safetensors.numpy.load_file(tmp_path / "model.safetensors")
    np.testing.assert_array_equal(both["a"], np.ones(2))
