"""A set of prompts decoded into texts.jsonl, finished rows refilled; resumable.

python -m experiments.run --config=configs/prompt_set.py --workdir=runs/prompt_set \\
    --config.data=prompts.jsonl

Hardware: any; without `data`, the project's own prompts, about two minutes on two
cores. Lines of `data`: see decoding/serving/prompt_set.py.

Expected: with many requests, an occupancy of the rows of at least 95 %. At `spread=1.0`
at least 1.5 times the throughput of decoding batch by batch.
"""

import ml_collections


def get_config() -> ml_collections.ConfigDict:
    config = ml_collections.ConfigDict()
    config.stage = "prompt_set"
    config.seed = 0
    config.model = "tiny"
    config.mesh = "auto"  # "data=2,tensor=4": see experiments/recipes/defaults.py
    config.rules = ""
    config.drafts = ml_collections.ConfigDict({"draft": "tiny-draft"})
    config.recipe = "token_recycling"  # the method: a recipe of configs/
    config.data = ""  # JSONL; empty: the tasks below
    config.tasks = ("code", "copy")
    config.prompts = 24  # of each task
    config.prompt_tokens = 128
    config.max_new_tokens = 256
    config.spread = 1.0  # sigma of log-normal lengths; 0: all have max_new_tokens
    config.temperature = 0.8  # 0 decodes greedily
    config.batch = 8  # rows that are refilled
    config.compare = True  # time the set again: refilled, and batch by batch
    return config
