"""Every field that a recipe of the stage `evaluate` may set, with its default."""

from ml_collections import ConfigDict


def get_config() -> ConfigDict:
    """Return the complete configuration of an evaluation against plain decoding."""
    config = ConfigDict()
    # The stage: the name of a file in experiments/studies/ or experiments/trainings/.
    config.stage = "evaluate"
    config.seed = 0  # of prompts, trainings and sampled texts
    config.seeds = ()  # several seeds: one row each; (): `seed` alone

    config.model = "tiny"  # the target: a shipped model, or a directory in HF layout
    # Parameters that the target costs without writing other texts; 0: its own. See
    # models/synthetic/larger.py.
    config.larger = 0
    # Other models by role. A recipe's trained part goes here as well.
    config.drafts = ConfigDict({"draft": "tiny-draft"})
    config.methods = ("plain",)  # names of recipes in configs/
    # Name -> method, as a recipe's field `method`: more names for config.methods.
    config.variants = ConfigDict(type_safe=False)
    # Name -> the export of a head training, or packaged heads. Its heads.json names the
    # method; its params are the method's `heads`.
    config.trained = ConfigDict(type_safe=False)
    # Kinds of prompt: experiments/prompts/builtin_tasks.py.
    config.tasks = ("code", "copy", "text")
    # Questions in place of the built-in tasks, in JSONL or parquet, also of the hub
    # (hf://datasets/..); `tasks` are then their categories, () all of them. See
    # experiments/prompts/question_files.py.
    config.data = ""
    config.chat = True  # questions in the model's chat template, if it has one
    # Variables of that template, such as {"enable_thinking": False}.
    config.chat_variables = ConfigDict(type_safe=False)
    # "auto": the blocks that decode fastest here; "paper": the methods' own; or both.
    config.width = ("paper",)
    config.temperatures = (0.0, 0.8)  # 0 decodes greedily
    config.prompts = 4  # of each task
    config.prompt_tokens = 192  # longer prompts are cut at their beginning
    config.max_new_tokens = 128  # of each text
    config.batch = 1  # prompts decoded together
    # "data=2,tensor=4": the devices as a mesh; "auto": by the model's size. Rules, as
    # in "vocab=,batch=data+fsdp", override those of models/distributed/axis_rules.py.
    config.mesh = "auto"
    # As `mesh`: overrides of the sharding rules.
    config.rules = ""
    config.repeats = 3  # each in turns with plain decoding
    # Task -> transforms of every method on that task, and the methods it is run with.
    config.transforms = ConfigDict(type_safe=False)
    # Task -> the methods that it is run with; a task that is not named: all.
    config.task_methods = ConfigDict(type_safe=False)
    # Pairs (more, less) of methods whose tokens a call are compared over all tasks.
    config.directions = ()
    # Pairs (row key, {metric: value}): a key has a dot, which no field's name may have.
    config.expected = ()
    config.tolerance = ConfigDict(type_safe=False)  # metric -> relative deviation

    config.curve = True  # cost of a call by block width
    # Nodes of the blocks that `curve` times.
    config.widths = (1, 2, 4, 8, 16, 32, 64, 128)
    config.trees = ()  # methods whose rounds are drawn
    config.tree_rounds = 4  # drawn of each tree
    config.profile = False  # a jax profiler trace of one text of every method
    return config
