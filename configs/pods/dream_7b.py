"""Dream-7B on v5e-16: decoding by Fast-dLLM's threshold under its dual cache.

Ye et al., *Dream 7B: Diffusion Large Language Models*, 2025, arXiv 2508.15487;
Wu et al., *Fast-dLLM: Training-free Acceleration of Diffusion LLM by Enabling KV Cache
and Parallel Decoding*, 2025, arXiv 2505.22618. 16 canvases of 1,024 tokens, prompts
included.

Command:   python -m experiments.run --config=configs/pods/dream_7b.py
               --workdir=runs/dream_7b
Preflight: python -m experiments.preflight --config=configs/pods/dream_7b.py
               --topology=v5e:4x4
Figures:   decoding: 4.2 of a chip's 16 GiB (3.5 weights, 0.05 cache, 0.6 temporaries);
           a block's call runs 132 tokens beside a copy, of which 241 cost no more than
           one. experiments/reports/preflight.md
"""

import ml_collections

# Of Dream-org/Dream-v0-Instruct-7B; Base has the same shape.
DREAM_7B = {
    "model_type": "Dream",
    "hidden_size": 3584,
    "intermediate_size": 18944,
    "num_hidden_layers": 28,
    "num_attention_heads": 28,
    "num_key_value_heads": 4,
    "vocab_size": 152064,
    "max_position_embeddings": 131072,
    "rms_norm_eps": 1e-6,
    "rope_theta": 1000000.0,
    "hidden_act": "silu",
    "tie_word_embeddings": False,
    "mask_token_id": 151666,
}


def get_config() -> ml_collections.ConfigDict:
    c = ml_collections.ConfigDict()
    c.name = "dream_7b"  # of the recipe
    c.model = "Dream-v0-Instruct-7B"  # a directory in HF layout
    # Fields of the target's config.json, for experiments.preflight.
    c.architecture = ml_collections.ConfigDict(DREAM_7B)
    # The parts and their arguments, as decoding.Method.from_config reads them.
    c.method = {"schedule": [{"name": "diffusion/fast_dllm"}], "policy": "caches/dual"}
    c.methods = ("plain", "fast_dllm")
    c.mesh = "data=4,tensor=4"  # four copies, each over four chips
    c.prompt_tokens = 512
    c.max_new_tokens = 512
    c.batch, c.prompts = 16, 16
    c.tasks = ("code", "copy")
    return c
