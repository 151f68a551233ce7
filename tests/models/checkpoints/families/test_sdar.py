"""SDAR's config.json as published, and its table."""

from models import checkpoints
from tests.models.checkpoints.families import test_llada

# JetLM/SDAR-4B-Chat.
PUBLISHED = {
    "architectures": ["SDARForCausalLM"],
    "auto_map": {"AutoModel": "modeling_sdar.SDARModel"},
    "attention_bias": False,
    "attention_dropout": 0.0,
    "attn_implementation": "flex_attention",
    "bos_token_id": 151643,
    "debug": False,
    "eos_token_id": 151643,
    "block_size": 4,
    "mask_token_id": 151669,
    "ep_size": 1,
    "fuse_cross_entropy": True,
    "head_dim": 128,
    "hidden_act": "silu",
    "hidden_size": 2560,
    "initializer_range": 0.02,
    "intermediate_size": 9728,
    "max_position_embeddings": 32768,
    "max_window_layers": 36,
    "micro_forward": False,
    "model_type": "sdar",
    "num_attention_heads": 32,
    "num_hidden_layers": 36,
    "num_key_value_heads": 8,
    "rms_norm_eps": 1e-06,
    "rope_scaling": None,
    "rope_theta": 1000000,
    "skip_checkpoint": False,
    "sliding_window": None,
    "tie_word_embeddings": False,
    "torch_dtype": "bfloat16",
    "transformers_version": "4.52.4",
    "use_cache": False,
    "use_deepep": False,
    "use_sliding_window": False,
    "vocab_size": 151936,
}


def test_the_published_config():
    family, config = checkpoints.read_config(PUBLISHED, "config.json")
    assert (config.mask_token, config.block_size) == (151669, 4)
    assert (config.visibility, config.alignment) == (("block_causal",), "same")
    assert config.qk_norm and not config.qkv_bias
    data = {"model_type": "sdar", **family.write(config)}
    assert checkpoints.read_config(data, "written")[1] == config


def test_absent_fields_are_those_of_the_release():
    """Planted: a release with blocks of 32, which names them."""
    want = checkpoints.read_config(PUBLISHED, "config.json")[1]
    data = {
        n: x for n, x in PUBLISHED.items() if n not in ("block_size", "mask_token_id")
    }
    assert checkpoints.read_config(data, "config.json")[1] == want
    other = checkpoints.read_config({**data, "block_size": 32}, "config.json")[1]
    assert other.block_size == 32 and other != want


def test_the_table_has_the_size_of_the_release():
    """The index names 8,822,848,512 bytes in bfloat16. Planted: no norms of heads."""
    assert 2 * test_llada.count(PUBLISHED) == 8_822_848_512
    llama = {"model_type": "llama", "architectures": ["LlamaForCausalLM"]}
    names = ("hidden_size", "intermediate_size", "num_hidden_layers", "vocab_size")
    names += ("num_attention_heads", "num_key_value_heads", "head_dim")
    names += ("max_position_embeddings",)
    one = {**PUBLISHED, "num_hidden_layers": 1}
    llama |= {name: one[name] for name in names}
    assert test_llada.count(one) - test_llada.count(llama) == 2 * 128
