"""Settings that recipes on slices share: the targets' shapes, data, and trees.

`architecture` holds fields of the target's config.json, so that `experiments.preflight`
needs no weights. Data is a folder with `train/` and `validation/`, or files of rows,
also of the hub (`training/data/documents.py`). It holds conversations, or better, the
target's own answers (`python -m training.distill`).
"""

import ml_collections

LLAMA3_8B = {
    "model_type": "llama",
    "hidden_size": 4096,
    "intermediate_size": 14336,
    "num_hidden_layers": 32,
    "num_attention_heads": 32,
    "num_key_value_heads": 8,
    "vocab_size": 128256,
    "max_position_embeddings": 8192,
    "rope_theta": 500000.0,
    "rms_norm_eps": 1e-5,
    "hidden_act": "silu",
    "tie_word_embeddings": False,
}
# Llama 3.1, whose positions go to 131,072.
LLAMA3_70B = {
    **LLAMA3_8B,
    "hidden_size": 8192,
    "intermediate_size": 28672,
    "num_hidden_layers": 80,
    "num_attention_heads": 64,
    "max_position_embeddings": 131072,
    "rope_scaling": {
        "rope_type": "llama3",
        "factor": 8.0,
        "low_freq_factor": 1.0,
        "high_freq_factor": 4.0,
        "original_max_position_embeddings": 8192,
    },
}
QWEN3_8B = {
    "model_type": "qwen3",
    "hidden_size": 4096,
    "intermediate_size": 12288,
    "num_hidden_layers": 36,
    "num_attention_heads": 32,
    "num_key_value_heads": 8,
    "head_dim": 128,
    "vocab_size": 151936,
    "max_position_embeddings": 40960,
    "rope_theta": 1000000.0,
    "rms_norm_eps": 1e-6,
    "hidden_act": "silu",
    "tie_word_embeddings": False,
}
QWEN3_30B_A3B = {
    "model_type": "qwen3_moe",
    "hidden_size": 2048,
    "intermediate_size": 6144,
    "num_hidden_layers": 48,
    "num_attention_heads": 32,
    "num_key_value_heads": 4,
    "head_dim": 128,
    "num_experts": 128,
    "num_experts_per_tok": 8,
    "moe_intermediate_size": 768,
    "norm_topk_prob": True,
    "vocab_size": 151936,
    "max_position_embeddings": 40960,
    "rope_theta": 1000000.0,
    "rms_norm_eps": 1e-6,
    "hidden_act": "silu",
    "tie_word_embeddings": False,
}
GPT_OSS_20B = {
    "model_type": "gpt_oss",
    "hidden_size": 2880,
    "intermediate_size": 2880,
    "num_hidden_layers": 24,
    "num_attention_heads": 64,
    "num_key_value_heads": 8,
    "head_dim": 64,
    "num_local_experts": 32,
    "num_experts_per_tok": 4,
    "sliding_window": 128,
    "vocab_size": 201088,
    "max_position_embeddings": 131072,
    "rope_theta": 150000.0,
    "rope_scaling": {
        "rope_type": "yarn",
        "factor": 32.0,
        "beta_fast": 32.0,
        "beta_slow": 1.0,
        "truncate": False,
        "original_max_position_embeddings": 4096,
    },
    "rms_norm_eps": 1e-5,
    "hidden_act": "silu",
    "tie_word_embeddings": False,
}
# Medusa's tree of 63 drafts (configs/trees/medusa.py); Hydra decodes with it too.
MEDUSA_TREE = "10 | 10,7,3,2,1,1,1,1,1,1 | 10,3,2,1,1,1,1,1,0,0,2,0,0,0,0,0,0,1 | 2"


# Each target's slice (mesh), and the context and batch that are served.
TARGETS = {
    # 16 v5e: two copies, each over eight chips.
    "llama3_8b": {
        "model": "Meta-Llama-3-8B-Instruct",  # a directory in HF layout
        "architecture": LLAMA3_8B,
        "mesh": "fsdp=2,tensor=8",
        "context": 8192,
        "batch": 16,
    },
    # 32 v5p chips (v5p-64): four copies, each over eight.
    "llama3_70b": {
        "model": "Llama-3.1-70B-Instruct",
        "architecture": LLAMA3_70B,
        "mesh": "fsdp=4,tensor=8",
        "context": 32768,
        "batch": 32,
    },
    # 16 v5e: two copies, each over eight chips, which cut every expert.
    "qwen3_30b_a3b": {
        "model": "Qwen3-30B-A3B-Instruct-2507",
        "architecture": QWEN3_30B_A3B,
        "mesh": "fsdp=2,tensor=8",
        "context": 8192,
        "batch": 16,
    },
    "gpt_oss_20b": {
        "model": "gpt-oss-20b",
        "architecture": GPT_OSS_20B,
        "mesh": "fsdp=2,tensor=8",
        "context": 8192,
        "batch": 16,
    },
    # Four v5p: two copies, each over two chips.
    "qwen3_8b": {
        "model": "Qwen3-8B",
        "architecture": QWEN3_8B,
        "mesh": "fsdp=2,tensor=2",
        "context": 8192,
        "batch": 16,
    },
}
# Of ShareGPT, the papers' text: EAGLE's and Clover's codes train on files 0 to 67,999.
CONVERSATIONS = 68_000
ROWS_AT_ONCE = {
    "llama3_8b": 4,
    "qwen3_8b": 4,
    "qwen3_30b_a3b": 2,
    "gpt_oss_20b": 2,
}  # rows of a training batch at a time; others: all


def scale(c: ml_collections.ConfigDict, target: str) -> None:
    """Change a recipe of configs/heads in place to a target of TARGETS on its slice."""
    if target not in TARGETS:
        raise ValueError(f"target {target!r}: use tiny or one of {sorted(TARGETS)}")
    # Fields of the target's config.json, for experiments.preflight.
    c.architecture = ml_collections.ConfigDict(type_safe=False)
    c.context = 0  # tokens of a served text, for experiments.preflight
    c.update(TARGETS[target])
    c.objective.part = 0  # positions whose logits exist at a time; 0: all
    c.data.source = "conversations"
    c.data.whole = True  # as a served text begins
    c.train.compute_dtype = "bfloat16"  # of losses; params and AdamW are float32
    c.train.rows_at_once = ROWS_AT_ONCE.get(target, 0)
    c.evaluate.update(tokens=131_072, window=1024)
    c.train.evaluate_every = 2000
    c.train.save_every = 500
    c.train.log_every = 20
    c.tree_nodes = 64  # Medusa's tree, and its root
    c.prompts = 32
    c.prompt_tokens = 256
    c.max_new_tokens = 1024
