"""LLaDA's config.json as published, its table, and the variants that are refused."""

import math

import pytest

from models import checkpoints, errors
from models.checkpoints import hf

# GSAI-ML/LLaDA-8B-Instruct; those of Base and 1.5 have the same sizes.
PUBLISHED = {
    "activation_type": "silu",
    "alibi": False,
    "alibi_bias_max": 8.0,
    "architectures": ["LLaDAModelLM"],
    "attention_dropout": 0.0,
    "attention_layer_norm": False,
    "attention_layer_norm_with_affine": True,
    "auto_map": {"AutoModel": "modeling_llada.LLaDAModelLM"},
    "bias_for_layer_norm": False,
    "block_group_size": 1,
    "block_type": "llama",
    "d_model": 4096,
    "embedding_dropout": 0.0,
    "embedding_size": 126464,
    "eos_token_id": 126081,
    "flash_attention": True,
    "flash_attn_varlen": True,
    "include_bias": False,
    "include_qkv_bias": False,
    "init_cutoff_factor": None,
    "init_device": "meta",
    "init_fn": "mitchell",
    "init_std": 0.02,
    "input_emb_norm": False,
    "layer_norm_type": "rms",
    "layer_norm_with_affine": True,
    "mask_token_id": 126336,
    "max_sequence_length": 4096,
    "mlp_hidden_size": 12288,
    "mlp_ratio": 4,
    "model_type": "llada",
    "multi_query_attention": None,
    "n_heads": 32,
    "n_kv_heads": 32,
    "n_layers": 32,
    "pad_token_id": 126081,
    "precision": "amp_bf16",
    "residual_dropout": 0.0,
    "rms_norm_eps": 1e-05,
    "rope": True,
    "rope_full_precision": True,
    "rope_theta": 500000.0,
    "scale_logits": False,
    "torch_dtype": "bfloat16",
    "transformers_version": "4.51.2",
    "use_cache": False,
    "vocab_size": 126464,
    "weight_tying": False,
}


def read(**changes):
    return checkpoints.read_config({**PUBLISHED, **changes}, "config.json")


def count(data: dict) -> int:
    """Parameters in the files, by the family's table."""
    family, config = checkpoints.read_config(data, "config.json")
    slots = hf.slots(family, config, family.prefixes[0])
    return sum(math.prod(shape) for slot in slots for shape in slot.shapes)


def test_the_published_config():
    config = read()[1]
    assert (config.mask_token, config.visibility) == (126336, ("bidirectional",))
    assert (config.alignment, config.block_size) == ("same", 0)
    assert (config.head_dim, config.d_ff, config.tied) == (128, 12288, False)
    assert config.ropes[0].frequencies[1] == 500000.0 ** (-2 / 128)
    assert read(mask_token_id=None)[1] == config  # the family's own
    assert read(n_kv_heads=8)[1].n_kv_heads == 8
    assert read(n_kv_heads=None)[1] == config


def test_the_table_has_the_size_of_the_release():
    """16,031,162,368 bytes in bfloat16. Planted: without the head."""
    assert 2 * count(PUBLISHED) == 16_031_162_368
    one = {**PUBLISHED, "n_layers": 1}
    tied = count({**one, "weight_tying": True})
    assert count(one) - tied == 126464 * 4096


def test_names_of_a_layer():
    family, config = read(include_qkv_bias=True, n_layers=1)
    slots = hf.slots(family, config, family.prefixes[0])
    names = {slot.path: slot.names for slot in slots}
    block = "model.transformer.blocks.0."
    gate, up = names["layer_0/mlp/up"]
    assert (gate, up) == (f"{block}ff_proj.weight", f"{block}up_proj.weight")
    assert names["layer_0/mlp/down"] == (f"{block}ff_out.weight",)
    assert names["embedding/head"] == ("model.transformer.ff_out.weight",)
    assert names["layer_0/attention/qkv_bias"][2] == f"{block}v_proj.bias"


def test_written_again():
    family, config = read(include_qkv_bias=True, n_kv_heads=8)
    data = {"model_type": "llada", **family.write(config)}
    assert checkpoints.read_config(data, "written")[1] == config


REFUSED = {
    "block": ({"block_type": "sequential"}, "block_type='sequential'"),
    "absent": ({"activation_type": None, "rope": None}, r"activation_type', 'rope'"),
    "bias": ({"include_bias": True}, "include_bias=True"),
    "norms of q and k": ({"attention_layer_norm": True}, "attention_layer_norm=True"),
    "grouped": ({"block_group_size": 4}, "block_group_size=4"),
    "more rows": ({"vocab_size": 126400}, "embedding_size=126464: use 126400"),
    "other": ({"time_embedding": 3}, r"unknown fields \['time_embedding'\]"),
}


@pytest.mark.parametrize("case", REFUSED)
def test_refused(case):
    changes, words = REFUSED[case]
    with pytest.raises(errors.ConfigError, match=words):
        read(**changes)
