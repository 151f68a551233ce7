"""Seven methods and plain decoding on three kinds of prompt, and under a grammar.

python -m experiments.run --config=configs/quickstart.py --workdir=runs/quickstart

Hardware: any; most of the time is compilation: six to ten minutes on two cores. Batch
1, as in most published speed-ups. Code and copying prompts come from the standard
library's held-out files, free text from this project.

Expected: `identical_to_plain` true in every row, whatever the temperature.
"""

import ml_collections

HEADS = {"eagle2": "tiny-eagle2", "fspad": "tiny-fspad"}  # shipped with `tiny`
DRAFTERS = ("model_chain", "model_tree", "prompt_lookup", "copyspec", "token_recycling")


def get_config() -> ml_collections.ConfigDict:
    config = ml_collections.ConfigDict()
    config.model = "tiny"
    config.drafts = {"draft": "tiny-draft"}
    config.trained = HEADS
    config.width = ("auto",)  # "paper" too: each method at its own size as well
    config.methods = ("plain", *DRAFTERS, *HEADS)
    config.tasks = ("code", "copy", "text", "regex")
    config.temperatures = (0.0, 0.8)
    config.prompts = 4
    config.prompt_tokens = 192
    config.max_new_tokens = 96
    config.repeats = 3
    # A list of assignments: an automaton on the device, inside the loop, under a tree.
    pattern = r"([a-z_]{2,12} = [0-9]{1,4}\n)+"
    config.transforms = {"regex": ({"name": "constraints/regex", "pattern": pattern},)}
    config.task_methods = {"regex": ("plain", "token_recycling")}
    config.trees = ("token_recycling", "model_tree")
    return config
