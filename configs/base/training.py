"""What all recipes of draft heads share: data, budget and schedule.

A recipe is for `tiny`, where no head has a schedule of its own, so that they can be
compared; or, with the name of a target of configs/base/targets.py behind a colon, for
that target on its slice, with its paper's rate, warm-up, batch and length:

python -m experiments.preflight --config=configs/heads/medusa.py:llama3_8b
    --topology=v5e:4x4

`experiments.preflight` prints what such a training is: the heads' parameters H, and a
step's operations, at least (2 P + 6 H) for a token, with P the target's weights in
products. In recipes' headers D, V, F are the widths of the target, of its vocabulary
and of its MLP. Schedules have one form (a warm-up of at most a quarter of the steps, a
plateau, a quarter of decay), where papers mostly decay all the way. Recipes of draft
models and predictors take `data`, `train` and `decoding` from here.
"""

import ml_collections

from configs.base import targets


def data(tokens: int) -> ml_collections.ConfigDict:
    """The text, and how many of its tokens are learned from."""
    c = ml_collections.ConfigDict()
    c.source = "tfds:stdlib_code"
    c.directory = ""  # empty: workdir/data
    c.tokens = tokens
    c.batch = 8
    c.window = 256
    return c


def train(
    rate: float = 0.001,
    warmup: int = 10,
    clip: float = 1.0,
    rows_at_once: int = 4,
    save_every: int = 50,
) -> ml_collections.ConfigDict:
    """The schedule, and what is kept and logged."""
    c = ml_collections.ConfigDict()
    c.rate = rate
    c.weight_decay = 0.0
    c.warmup = warmup
    c.clip = clip
    c.compute_dtype = ""  # the weights' own; or bfloat16: training/loop/fit.py
    c.rows_at_once = rows_at_once
    c.save_every = save_every
    c.keep = 2
    c.log_every = 5
    c.bad_steps = "stop"  # or skip, roll_back: training/loop/step_health.py
    c.norm_limit = 0.0
    c.patience = 10
    return c


def distill(
    prompts: int, held: int, temperatures: tuple[float, ...]
) -> ml_collections.ConfigDict:
    """What the target writes after beginnings of the text, and of held-out text."""
    c = ml_collections.ConfigDict()
    c.prompts = prompts
    c.held = held
    c.prompt_tokens = 64
    c.new_tokens = 128
    c.temperatures = temperatures  # which share the prompts
    c.batch = 32
    return c


def teacher() -> ml_collections.ConfigDict:
    """Where the states of a target that is learned from come from."""
    c = ml_collections.ConfigDict()
    # Its forward in the step; or offline, hybrid: a cache on disk,
    # training/teacher/sources.py
    c.teacher = "online"
    c.features = ml_collections.ConfigDict()
    c.features.directory = ""  # empty: beside what is trained
    c.features.dtype = "bfloat16"  # or float32
    c.features.topk = 0  # likeliest tokens kept instead of the last normed state
    c.features.taps = ()  # states kept beside those that the objective reads
    c.features.shard_rows = 0  # 0: shards of 256 MiB
    c.features.keep = "cache"  # or delete: what hybrid makes
    return c


def decoding() -> ml_collections.ConfigDict:
    """Decoding beside plain decoding; see experiments/recipes/defaults.py."""
    c = ml_collections.ConfigDict()
    c.tasks = ("code",)
    c.temperatures = (0.0, 0.8)
    c.prompts = 12
    c.prompt_tokens = 128
    c.max_new_tokens = 96
    c.batch = 1
    c.repeats = 3
    return c


def get_config(
    target: str = "tiny",
    batch: int = 16,
    window: int = 2047,
    rate: float = 5e-4,
    warmup: int = 1000,
    weight_decay: float = 0.0,
    clip: float = 0.5,
) -> ml_collections.ConfigDict:
    """The fields of the stage `draft_heads`.

    The numbers are a paper's, `window` without the last token of a row, and hold at
    scale alone.
    """
    c = ml_collections.ConfigDict()
    c.stage = "draft_heads"
    c.name = ""
    c.seed = 0
    c.seeds = ()  # several seeds: one training and one row each; (): `seed` alone
    c.model = "tiny"
    c.mesh = "auto"  # "data=2,tensor=4": see experiments/recipes/defaults.py
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

    c.data = data(tokens=500_000)
    c.data.recut = True  # False: later epochs show the first one's windows again
    c.data.segments = False  # True: the documents of a window do not see each other
    c.update(teacher())
    c.train = train(warmup=20, clip=0.5, rows_at_once=2, save_every=40)
    c.train.remat = False
    c.train.evaluate_every = 80

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

    c.update(decoding())
    # Pairs (more, less) of recipes whose tokens a call are compared, prompt by prompt.
    c.directions = ()
    c.export = ""  # a folder for the finished heads; empty: workdir/export
    c.export_dtype = "bfloat16"  # of its weights; figures are of the rounded ones
    if target != "tiny":
        targets.scale(c, target)
        c.data.update(batch=batch, window=window)
        c.train.update(rate=rate, warmup=warmup, weight_decay=weight_decay, clip=clip)
        c.train.rows_at_once = min(c.train.rows_at_once, batch)
    return c
