"""Dream's config.json as published, and its table."""

import pytest

from models import checkpoints, errors
from tests.models.checkpoints.families import test_llada

# Dream-org/Dream-v0-Instruct-7B.
PUBLISHED = {
    "architectures": ["DreamModel"],
    "attention_dropout": 0.0,
    "auto_map": {"AutoModel": "modeling_dream.DreamModel"},
    "bos_token_id": 151643,
    "eos_token_id": 151643,
    "hidden_act": "silu",
    "hidden_size": 3584,
    "initializer_range": 0.02,
    "intermediate_size": 18944,
    "mask_token_id": 151666,
    "max_position_embeddings": 131072,
    "max_window_layers": 28,
    "model_type": "Dream",
    "num_attention_heads": 28,
    "num_hidden_layers": 28,
    "num_key_value_heads": 4,
    "pad_token_id": 151643,
    "rms_norm_eps": 1e-06,
    "rope_scaling": None,
    "rope_theta": 1000000.0,
    "sliding_window": None,
    "tie_word_embeddings": False,
    "torch_dtype": "bfloat16",
    "use_cache": True,
    "use_sliding_window": False,
    "vocab_size": 152064,
}


def test_the_published_config():
    config = checkpoints.read_config(PUBLISHED, "config.json")[1]
    assert (config.mask_token, config.alignment) == (151666, "shifted")
    assert config.visibility == ("bidirectional",) and config.qkv_bias
    # Planted: Qwen2, of the same names, is autoregressive.
    qwen = {**PUBLISHED, "model_type": "qwen2", "architectures": ["Qwen2ForCausalLM"]}
    del qwen["mask_token_id"]
    assert checkpoints.read_config(qwen, "config.json")[1].mask_token is None


def test_the_table_has_the_size_of_the_release():
    """7,615,616,512 parameters. Planted: no biases of q, k and v."""
    assert test_llada.count(PUBLISHED) == 7_615_616_512
    one = {**PUBLISHED, "num_hidden_layers": 1}
    llama = {**one, "model_type": "llama", "architectures": ["LlamaForCausalLM"]}
    del llama["mask_token_id"]
    biases = (28 + 2 * 4) * 128
    assert test_llada.count(one) - test_llada.count(llama) == biases


def test_a_reasoner_of_the_same_layout():
    """Without the shift, and in blocks: explicit fields."""
    fields = {
        "mask_token_id": 151669,
        "visibility": ["block_causal"],
        "alignment": "same",
        "block_size": 32,
    }
    family, config = checkpoints.read_config({**PUBLISHED, **fields}, "config.json")
    assert (config.alignment, config.block_size) == ("same", 32)
    data = {"model_type": "Dream", **family.write(config), **fields}
    assert checkpoints.read_config(data, "written")[1] == config


def test_windows_are_refused():
    with pytest.raises(errors.ConfigError, match="use_sliding_window=True"):
        checkpoints.read_config({**PUBLISHED, "use_sliding_window": True}, "config")
