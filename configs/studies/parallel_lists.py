"""What do tokens that are written at once cost, by how much they depend on one another?

ParallelBench (arXiv 2510.04767) reports that diffusion models lose quality where tokens
depend on one another, and that no schedule adapts to it. Three small models learn six
list rules on letters, and write 150 lists each under every schedule, beside the closed
forms of independent tokens.

Command:  python -m experiments.run --config=configs/studies/parallel_lists.py
              --workdir=runs/parallel_lists
Hardware: 2 CPU cores. Every training and every schedule of it is stored: the same
command resumes after a kill.

Expected: copy, reverse, sort and replace-index hold from 1 to 7 tokens a call; shuffle
and replace-random collapse, towards (n! - 1) / n^n and (1 - 1/n)^(n - 1) where tokens
are sampled in one shot. A threshold is better than a fixed number at equal calls, and
no threshold is best for all rules. FreeDave writes its rule's texts in fewer calls.
"""

import ml_collections

KINDS = {
    "llada": "diffusion/llada",
    "fast_dllm": "diffusion/fast_dllm",
    "dparallel": "diffusion/dparallel",
    "localleap": "diffusion/localleap",
    "freedave": "diffusion/freedave",
}


def part(name: str, **fields: float | str) -> dict:
    """Return a part of a schedule."""
    return {"name": KINDS[name], **fields}


def get_config() -> ml_collections.ConfigDict:
    """Return the fields of the stage `parallel_lists`."""
    c = ml_collections.ConfigDict()
    c.stage = "parallel_lists"
    c.model = "six list rules"  # in the report's title
    c.seeds = (0, 1, 2)  # of the trainings
    # Rules that are learned and decoded, of experiments/benchmarks/list_rules.py.
    c.rules = (
        *("copy", "sort", "reverse", "replace_index"),
        *("shuffle", "replace_random"),
    )
    c.length = 6  # items of a list
    c.lists = 150  # of each rule
    c.batch = 150  # lists decoded at once

    c.network = ml_collections.ConfigDict()
    c.network.width = 64  # of the states
    c.network.layers = 3  # of the transformer
    c.network.heads = 4  # of attention, for queries and keys alike
    c.network.hidden = 170  # of an MLP
    c.network.positions = 64  # of a text at most

    c.train = ml_collections.ConfigDict()
    c.train.steps = 2100  # updates
    c.train.batch = 128  # texts of an update
    c.train.rows_at_once = 0  # of a batch, whose gradients exist at a time; 0: all
    c.train.rate = 0.003  # peak learning rate
    c.train.warmup = 100  # updates
    c.train.decay = 700  # updates, the last ones
    c.train.weight_decay = 0.01  # of matrices
    c.train.clip = 1.0  # largest norm of the gradient; 0: no bound
    c.train.save_every = 300  # updates between checkpoints
    c.train.keep = 1  # checkpoints
    c.train.log_every = 50  # updates whose metrics are fetched at a time

    one, sure = part("llada"), part("fast_dllm", threshold=0.9)
    random = {"order": "random"}
    # Schedules; `texts_of` names the arm whose texts an arm must write. Eight states a
    # forward cost eight times as much: they write fewer `lists`.
    c.arms = (
        {"name": "1 a step", "schedule": (one,)},
        {"name": "2 a step", "schedule": (part("llada", steps=4),)},
        {"name": "4 a step", "schedule": (part("llada", steps=2),)},
        {"name": "7 a step", "schedule": (part("llada", steps=1),)},
        {
            "name": "threshold .95",
            "schedule": (part("fast_dllm", threshold=0.95),),
        },
        {"name": "threshold .9", "schedule": (sure,)},
        {"name": "threshold .7", "schedule": (part("fast_dllm", threshold=0.7),)},
        {"name": "threshold .5", "schedule": (part("fast_dllm", threshold=0.5),)},
        {"name": "factor .3", "schedule": (part("fast_dllm", factor=0.3),)},
        {"name": "factor 1", "schedule": (part("fast_dllm", factor=1.0),)},
        {"name": "entropy .2", "schedule": (part("dparallel", most=0.2),)},
        {"name": "entropy .5", "schedule": (part("dparallel", most=0.5),)},
        {"name": "LocalLeap .9/.75", "schedule": (part("localleap", near=0.75),)},
        {"name": "LocalLeap .9/.5", "schedule": (part("localleap", near=0.5),)},
        {
            "name": "T = 1, 1 a step",
            "schedule": (part("llada", **random),),
            "temperature": 1.0,
        },
        {
            "name": "T = 1, 2 a step",
            "schedule": (part("llada", steps=4, **random),),
            "temperature": 1.0,
        },
        {
            "name": "T = 1, 4 a step",
            "schedule": (part("llada", steps=2, **random),),
            "temperature": 1.0,
        },
        {
            "name": "T = 1, one shot",
            "schedule": (part("llada", steps=1, **random),),
            "temperature": 1.0,
        },
        {
            "name": "FreeDave, K = 8",
            "schedule": (one, part("freedave", branches=8)),
            "texts_of": "1 a step",
            "lists": 50,
        },
        {
            "name": "FreeDave, K = 2",
            "schedule": (one, part("freedave", branches=2)),
            "texts_of": "1 a step",
            "lists": 50,
        },
        {
            "name": "FreeDave, K = 8, threshold .9",
            "schedule": (sure, part("freedave", branches=8)),
            "texts_of": "threshold .9",
            "lists": 50,
        },
    )
    c.reference = "1 a step"  # the arm that all are compared with
    c.loss = 0.02  # accuracy below the reference's that a rule may lose
    # (arm, arm, rules): the first is better on these; "one" and "several": answers.
    c.claims = (
        ("1 a step", "7 a step", "one"),
        ("1 a step", "7 a step", "shuffle"),
        ("1 a step", "7 a step", "replace_random"),
        ("threshold .95", "2 a step", "several"),
        ("threshold .9", "4 a step", "several"),
        ("threshold .9", "LocalLeap .9/.75", "replace_random"),
        ("threshold .9", "LocalLeap .9/.5", "replace_random"),
    )
    return c
