"""LLaDA-8B on v5e-16: decoding by Fast-dLLM's threshold under its dual cache.

Nie et al., *Large Language Diffusion Models*, 2025, arXiv 2502.09992; Wu et al.,
*Fast-dLLM: Training-free Acceleration of Diffusion LLM by Enabling KV Cache and
Parallel Decoding*, 2025, arXiv 2505.22618. 16 canvases of 1,024 tokens, prompts
included.

Command:   python -m experiments.run --config=configs/pods/llada_8b.py
               --workdir=runs/llada_8b
Preflight: python -m experiments.preflight --config=configs/pods/llada_8b.py
               --topology=v5e:4x4
Figures:   decoding: 6.1 of a chip's 16 GiB (3.7 weights, 0.5 cache, 1.8 temporaries);
           a block's call runs 132 tokens beside a copy, of which 241 cost no more than
           one. experiments/reports/preflight.md
"""

import ml_collections

# Of GSAI-ML/LLaDA-8B-Instruct; Base and 1.5 have the same shape.
LLADA_8B = {
    "model_type": "llada",
    "d_model": 4096,
    "n_layers": 32,
    "n_heads": 32,
    "n_kv_heads": 32,
    "mlp_hidden_size": 12288,
    "vocab_size": 126464,
    "embedding_size": 126464,
    "max_sequence_length": 4096,
    "rms_norm_eps": 1e-5,
    "rope_theta": 500000.0,
    "block_type": "llama",
    "activation_type": "silu",
    "layer_norm_type": "rms",
    "rope": True,
    "weight_tying": False,
    "mask_token_id": 126336,
}


def get_config() -> ml_collections.ConfigDict:
    c = ml_collections.ConfigDict()
    c.name = "llada_8b"  # of the recipe
    c.model = "LLaDA-8B-Instruct"  # a directory in HF layout
    # Fields of the target's config.json, for experiments.preflight.
    c.architecture = ml_collections.ConfigDict(LLADA_8B)
    # The parts and their arguments, as decoding.Method.from_config reads them.
    c.method = {"schedule": [{"name": "diffusion/fast_dllm"}], "policy": "caches/dual"}
    c.methods = ("plain", "fast_dllm")
    c.mesh = "data=4,tensor=4"  # four copies, each over four chips
    c.prompt_tokens = 512
    c.max_new_tokens = 512
    c.batch, c.prompts = 16, 16
    c.tasks = ("code", "copy")
    return c
