"""Settings that all recipes of draft heads share: data, budget and schedule.

By default a recipe is for `tiny`: two windows a step and no clip, by AdamW, or by Muon
for layers' matrices, as configs/heads/head_recipes.py chose. A colon and the name of a
target of configs/base/targets.py make it a recipe for that target on its slice, with
its paper's rate, warm-up, batch of all devices, length, epochs, AdamW and clipping. Its
rows hold whole conversations, as in the papers' codes; those of `tiny` begin anywhere
in a stream of texts:

python -m experiments.preflight --config=configs/heads/medusa.py:llama3_8b
    --topology=v5e:4x4

`experiments.preflight` prints the heads' parameters H and the operations of a step: at
least 2 P + 6 H a token, with P the target's weights in products. In recipes' headers D,
V, F are the widths of the target, of its vocabulary and of its MLP. All schedules have
a warm-up of at most a quarter of the steps (a warning names one that is cut), a
plateau, and a quarter of decay; papers mostly decay all the way. Weight decay is of
matrices alone, in PyTorch of all params. Recipes of draft models and predictors take
`data`, `train` and `decoding` from here.
"""

import ml_collections

from configs.base import targets


def data(tokens: int) -> ml_collections.ConfigDict:
    """Return fields of the text, and the number of its tokens to train on."""
    c = ml_collections.ConfigDict()
    c.source = "tfds:stdlib_code"  # the text: see training/data/sources.py
    c.directory = ""  # empty: workdir/data
    c.tokens = tokens  # to train on
    c.batch = 8  # rows of a step
    c.window = 256  # tokens of a row
    return c


def train(
    rate: float = 0.001,
    warmup: int = 10,
    clip: float = 1.0,
    rows_at_once: int = 4,
    save_every: int = 50,
) -> ml_collections.ConfigDict:
    """Return fields of the schedule, of checkpoints and of the log."""
    c = ml_collections.ConfigDict()
    c.optimizer = "adamw"  # or "muon": of the matrices of layers
    c.rate = rate  # peak learning rate
    c.muon_rate = 0.02  # peak rate of Muon's matrices
    c.weight_decay = 0.0  # of AdamW
    c.warmup = warmup  # steps of a rising rate
    c.b2 = 0.95  # of AdamW: decay of the mean of squared gradients
    c.clip = clip  # largest norm of the gradient; 0: no bound
    c.clip_value = 0.0  # largest size of each number in the gradient; 0: no bound
    c.compute_dtype = ""  # the weights' own; or bfloat16: training/loop/fit.py
    c.rows_at_once = rows_at_once  # of a batch, whose gradients exist at a time; 0: all
    c.save_every = save_every  # steps between checkpoints
    c.keep = 2  # checkpoints that stay
    c.log_every = 5  # steps whose metrics are fetched at a time
    c.bad_steps = "stop"  # or skip, roll_back: training/loop/step_health.py
    c.norm_limit = 0.0  # a larger gradient norm makes a step bad; 0: none
    c.patience = 10  # bad steps in a row that skip and roll_back accept
    return c


def distill(
    prompts: int, held: int, temperatures: tuple[float, ...]
) -> ml_collections.ConfigDict:
    """Return fields of the target's own text, generated after prompts of the data.

    `prompts` are of the training split, `held` of the held-out one.
    """
    c = ml_collections.ConfigDict()
    c.prompts = prompts  # of the training split
    c.held = held  # prompts of the held-out split
    c.prompt_tokens = 64  # of each
    c.new_tokens = 128  # most of each text
    c.temperatures = temperatures  # the prompts are divided among them
    c.batch = 32  # texts at once
    return c


def teacher() -> ml_collections.ConfigDict:
    """Return fields of the teacher: the source of the target's states in training."""
    c = ml_collections.ConfigDict()
    # online: its forward in each step; offline, hybrid: a cache on disk. See
    # training/teacher/sources.py
    c.teacher = "online"
    c.features = ml_collections.ConfigDict()
    c.features.directory = ""  # of the cache; empty: in the run's folder
    c.features.dtype = "bfloat16"  # or float32
    c.features.topk = 0  # likeliest tokens stored in place of the last normed state
    c.features.taps = ()  # states stored beside those that the objective reads
    c.features.shard_rows = 0  # 0: shards of 256 MiB
    c.features.keep = "cache"  # or delete: drop the shards that hybrid writes
    return c


def decoding() -> ml_collections.ConfigDict:
    """Return fields of decoding beside plain decoding, as in recipes/defaults.py."""
    c = ml_collections.ConfigDict()
    c.tasks = ("code",)  # kinds of prompt: experiments/prompts/builtin_tasks.py
    c.temperatures = (0.0, 0.8)  # 0 decodes greedily
    c.prompts = 12  # of each task
    c.prompt_tokens = 128  # longer prompts are cut at their beginning
    c.max_new_tokens = 96  # of each text
    c.batch = 1  # prompts decoded together
    c.repeats = 3  # each in turns with plain decoding
    return c


def get_config(
    target: str = "tiny",
    batch: int = 16,
    window: int = 2047,
    rate: float = 5e-4,
    warmup: int = 1000,
    weight_decay: float = 0.0,
    clip: float = 0.5,
    clip_value: float = 0.0,
    b2: float = 0.999,
    epochs: int = 20,
) -> ml_collections.ConfigDict:
    """Return the fields of the stage `draft_heads`.

    All arguments but `target` are a paper's and hold at scale alone, not for `tiny`.

    Args:
        target: `tiny`, or a name of configs/base/targets.py.
        batch: rows of a step.
        window: tokens of a row, less its last.
        rate: peak learning rate.
        warmup: steps.
        weight_decay: of AdamW.
        clip: largest norm of the gradient; 0: no bound.
        clip_value: largest size of each number in it; 0: no bound.
        b2: of AdamW; the default is that of PyTorch and of Hugging Face's trainer.
        epochs: over `targets.CONVERSATIONS`, each a row of at most 2,048 tokens. Rows
            pack several, so that the steps are the papers' and the passes are more.
    """
    c = ml_collections.ConfigDict()
    c.stage = "draft_heads"  # a file of experiments/trainings
    c.name = ""  # of the run, in reports
    c.seed = 0  # of data, weights and sampled texts
    c.seeds = ()  # several seeds: one training and one row each; (): `seed` alone
    c.model = "tiny"  # the target: a shipped model, or a directory in HF layout
    c.mesh = "auto"  # "data=2,tensor=4": see experiments/recipes/defaults.py
    # As `mesh`: overrides of the sharding rules.
    c.rules = ""
    c.head = ""  # a file of training/objectives/heads
    # Arguments of the head's `init`.
    c.init = ml_collections.ConfigDict(type_safe=False)
    # Arguments of the head's objective.
    c.objective = ml_collections.ConfigDict(type_safe=False)
    c.draft_vocab = 0  # tokens of the draft's own vocabulary; 0: the target's
    # The method that decodes with the head: its parts and their arguments.
    c.method = ml_collections.ConfigDict(type_safe=False)
    # Other parts that the trained head decodes with, in place of the method's, by name.
    c.beside = ml_collections.ConfigDict(type_safe=False)
    # Nodes of the static tree built from the measured hits; 0: the tree of `method`.
    c.tree_nodes = 32
    # Candidates and prompt tokens of PPD's trees, one tree a state; 0: no such trees.
    c.tree_budget = 0

    c.data = data(tokens=500_000)
    c.data.batch = 2
    c.data.recut = True  # False: all epochs cut the text into the same windows
    c.data.segments = False  # True: attention stays within a document
    # True: a row holds whole documents, kept apart, each from its own beginning.
    c.data.whole = False
    c.update(teacher())
    c.train = train(warmup=20, clip=0.0, rows_at_once=2, save_every=160)
    # True: layers' activations are computed twice, to save memory.
    c.train.remat = False
    c.train.evaluate_every = 245  # steps between evaluations; 0: none

    c.evaluate = ml_collections.ConfigDict()
    c.evaluate.temperature = 0.8  # of the evaluations while training
    c.evaluate.tokens = 16_384  # held-out tokens to measure hits on
    c.evaluate.window = 256  # tokens of a row of them
    c.evaluate.depth = 5  # of the hits: drafts ahead
    c.evaluate.ranks = 8  # candidates of a draft that are counted
    c.evaluate.nodes = 32  # of the tree whose tokens per call are predicted
    c.evaluate.prompts = 8  # decoded in an evaluation
    c.evaluate.prompt_tokens = 64  # of each
    c.evaluate.new_tokens = 48  # of each text

    c.update(decoding())
    # Pairs (more, less) of recipes to compare in tokens a call, prompt by prompt.
    c.directions = ()
    c.export = ""  # a folder for the finished heads; empty: workdir/export
    c.export_dtype = "bfloat16"  # of its weights; figures are for rounded weights
    if target != "tiny":
        targets.scale(c, target)
        c.data.update(batch=batch, window=window)
        c.data.tokens = epochs * targets.CONVERSATIONS * min(window, 2047)
        c.train.update(rate=rate, warmup=warmup, weight_decay=weight_decay, b2=b2)
        c.train.update(clip=clip, clip_value=clip_value, save_every=40)
        c.train.evaluate_every = 80
        c.train.rows_at_once = min(c.train.rows_at_once, batch)
    return c


def muon(c: ml_collections.ConfigDict, part: float = 1.0) -> None:
    """Train the layers' matrices of `tiny`'s heads by Muon, in place.

    `part` scales both rates, Muon's 0.02 and 0.002 of all else.
    """
    c.train.update(optimizer="muon", muon_rate=0.02 * part, rate=0.002 * part)
