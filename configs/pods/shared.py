"""What recipes on slices share: the shapes of their targets, data, and one tree.

`architecture` holds fields of the target's config.json, so that
`experiments.preflight` can look at a recipe where the weights are not. Data is a folder
with `train/` and `validation/`, a text a file, best written by the target itself
(`python -m training.distill`).
"""

import ml_collections

from configs.heads import shared

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
# Medusa's tree of 63 drafts (configs/trees/medusa.py), with which Hydra decodes too.
MEDUSA_TREE = "10 | 10,7,3,2,1,1,1,1,1,1 | 10,3,2,1,1,1,1,1,0,0,2,0,0,0,0,0,0,1 | 2"


def get_config() -> ml_collections.ConfigDict:
    """The stage `train_heads` at scale."""
    c = shared.get_config()
    c.architecture = ml_collections.ConfigDict(type_safe=False)
    c.objective.part = 0  # positions whose logits exist at a time; 0: all
    c.data.source = "conversations"
    c.data.tokens = 400_000_000
    c.data.window = 2047  # and the token after it
    c.train.rate = 5e-4
    c.train.warmup = 1000
    c.train.rows_at_once = 0
    c.train.evaluate_every = 2000
    c.train.save_every = 500
    c.train.log_every = 20
    c.tree_nodes = 0
    c.tasks = ("code",)
    c.temperatures = (0.0, 0.8)
    c.prompts = 32
    c.prompt_tokens = 256
    c.max_new_tokens = 1024
    return c


def llama3_8b() -> ml_collections.ConfigDict:
    """Llama-3-8B on 16 v5e: two copies, each over eight chips."""
    c = get_config()
    c.model = "Meta-Llama-3-8B-Instruct"  # a directory in HF layout
    c.architecture.update(LLAMA3_8B)
    c.mesh = "fsdp=2,tensor=8"
    c.data.batch = 16
    c.train.rows_at_once = 4
    c.context = 8192  # of a served text, for experiments.preflight
    c.batch = 16
    return c


def llama3_70b() -> ml_collections.ConfigDict:
    """Llama-3.1-70B on 32 v5p chips (v5p-64): four copies, each over eight."""
    c = get_config()
    c.model = "Llama-3.1-70B-Instruct"
    c.architecture.update(LLAMA3_70B)
    c.mesh = "fsdp=4,tensor=8"
    c.data.batch = 16
    c.context = 32768  # of a served text, for experiments.preflight
    c.batch = 32
    return c


def hydra(c: ml_collections.ConfigDict) -> ml_collections.ConfigDict:
    """Hydra++ on the target of `c`."""
    c.head = "hydra"
    c.init.update(heads=4, prefix=True, deep=True)
    c.objective.update(label=0.0, soft=1.0, dropout=0.2)
    c.method.drafter = "drafters/hydra"
    c.method.topology = {"name": "topologies/static", "choices": MEDUSA_TREE}
    return c


def eagle3(c: ml_collections.ConfigDict) -> ml_collections.ConfigDict:
    """EAGLE-3 on the target of `c`, with the paper's draft vocabulary and tree."""
    c.head = "eagle3"
    c.draft_vocab = 32_000
    c.method.drafter = "drafters/eagle3"
    c.method.topology = {
        "name": "topologies/eagle2",
        "nodes": 60,
        "depth": 6,
        "top_k": 10,
    }
    return c
