"""What all recipes of draft heads for `tiny` share: data, budget and schedule.

No head has a schedule of its own, so that they can be compared.
"""

import ml_collections


def get_config() -> ml_collections.ConfigDict:
    """The fields of the stage `train_heads`."""
    c = ml_collections.ConfigDict()
    c.stage = "train_heads"
    c.name = ""
    c.seed = 0
    c.seeds = ()  # several seeds: one training and one row each; (): `seed` alone
    c.model = "tiny"
    c.mesh = "auto"  # "data=2,tensor=4": see experiments/defaults.py
    c.rules = ""
    c.head = ""
    c.init = ml_collections.ConfigDict(type_safe=False)
    c.objective = ml_collections.ConfigDict(type_safe=False)
    c.draft_vocab = 0  # tokens of the draft's own vocabulary; 0: the target's
    c.method = ml_collections.ConfigDict(type_safe=False)
    # Nodes of the static tree that is made from the measured hits; 0: as in `method`.
    c.tree_nodes = 32
    # Candidates and prompt tokens of the trees for every state (PPD); 0: no such trees.
    c.tree_budget = 0

    c.data = ml_collections.ConfigDict()
    c.data.source = "tfds:stdlib_code"
    c.data.directory = ""  # empty: workdir/data
    c.data.tokens = 500_000
    c.data.batch = 8
    c.data.window = 256

    c.train = ml_collections.ConfigDict()
    c.train.rate = 0.001
    c.train.weight_decay = 0.0
    c.train.warmup = 20
    c.train.clip = 0.5
    c.train.rows_at_once = 2
    c.train.remat = False
    c.train.evaluate_every = 80
    c.train.save_every = 40
    c.train.keep = 2
    c.train.log_every = 5
    c.train.bad_steps = "stop"  # or skip, roll_back: training/health.py
    c.train.norm_limit = 0.0
    c.train.patience = 10

    c.evaluate = ml_collections.ConfigDict()
    c.evaluate.temperature = 0.8
    c.evaluate.tokens = 16_384  # held-out tokens on which hits are measured
    c.evaluate.window = 256
    c.evaluate.depth = 5
    c.evaluate.ranks = 8
    c.evaluate.nodes = 32  # of the tree whose tokens per call are predicted
    c.evaluate.prompts = 8
    c.evaluate.prompt_tokens = 64
    c.evaluate.new_tokens = 48

    # Decoding with the heads beside plain decoding; see experiments/defaults.py.
    c.tasks = ("code",)
    c.temperatures = (0.0, 0.8)
    c.prompts = 12
    c.prompt_tokens = 128
    c.max_new_tokens = 96
    c.batch = 1
    c.repeats = 3
    c.export = ""  # a folder for the finished heads; empty: workdir/export
    return c
