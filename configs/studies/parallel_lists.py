"""What do tokens that are written at once cost, by how much they depend on one another?

ParallelBench (arXiv 2510.04767) reports that diffusion models lose quality where tokens
depend on one another, and that no schedule adapts to it. Three small models learn six
list rules on letters, and write 150 lists each under every schedule, beside the closed
forms of independent tokens. Each model is trained on for three more questions: with
dParallel's loss (arXiv 2509.26488) on its own texts, with and without the entropy; on
canvases that are longer than an answer, whose end can be guessed (EoTP); and with
Learn2PD's filter (arXiv 2509.25188), beside the oracle that bounds every filter.

Command:  python -m experiments.run --config=configs/studies/parallel_lists.py
              --workdir=runs/parallel_lists
Hardware: 2 CPU cores. Every training and every schedule of it is stored: the same
command resumes after a kill.

Expected: copy, reverse, sort and replace-index hold from 1 to 7 tokens a call; shuffle
and replace-random collapse, towards (n! - 1) / n^n and (1 - 1/n)^(n - 1) where tokens
are sampled in one shot. A threshold is better than a fixed number at equal calls, and
no threshold is best for all rules. LocalLeap and CCD save calls and lose accuracy where
tokens depend on one another. No filter needs fewer calls than the oracle. dParallel
saves calls, with and without the entropy, and does not repair shuffle. FreeDave writes
its rule's texts in fewer calls.
"""

import ml_collections

KINDS = {
    "llada": "diffusion/llada",
    "fast_dllm": "diffusion/fast_dllm",
    "dparallel": "diffusion/dparallel",
    "localleap": "diffusion/localleap",
    "freedave": "diffusion/freedave",
    "ccd": "diffusion/ccd",
    "learn2pd": "diffusion/learn2pd",
    "eotp": "diffusion/eotp",
}
THRESHOLDS = (0.95, 0.9, 0.7, 0.5)


def part(name: str, **fields: float | str | bool) -> dict:
    """Return a part of a schedule."""
    return {"name": KINDS[name], **fields}


def threshold(value: float) -> str:
    """Name the arm of a threshold."""
    return f"threshold {value:g}".replace("0.", ".")


def further(
    train: ml_collections.ConfigDict, steps: int, batch: int, rate: float
) -> ml_collections.ConfigDict:
    """Return the fields of a training that goes on from a model."""
    found = train.copy_and_resolve_references()
    found.steps, found.batch, found.rate = steps, batch, rate
    found.warmup, found.decay = steps // 10, steps // 3
    return found


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

    c.dparallel = further(c.train, 200, 32, 0.002)  # as `train`: with its loss
    c.dparallel.lists = 100  # of each rule, that a model writes to learn from
    c.tail = further(c.train, 150, 128, 0.001)  # as `train`: on longer canvases

    c.learn2pd = ml_collections.ConfigDict()
    c.learn2pd.lists = 50  # of each rule, that the filter's cases come from
    c.learn2pd.hidden = 32  # numbers between the filter's layers
    c.learn2pd.rate = 0.003  # learning rate
    c.learn2pd.steps = 2000  # updates, each on all cases

    one, sure = part("llada"), part("fast_dllm", threshold=0.9)
    random, long = {"order": "random"}, 14
    # Schedules; `texts_of` names the arm whose texts an arm must write. Eight states a
    # forward cost eight times as much: they write fewer `lists`. `weight`: of the
    # entropy, a model that dParallel trained; `canvas`: positions, one that was trained
    # on so many; `filter`: it has Learn2PD's; `oracle`: the calls are the oracle's.
    c.arms = (
        {"name": "1 a step", "schedule": (one,)},
        {"name": "2 a step", "schedule": (part("llada", steps=4),)},
        {"name": "4 a step", "schedule": (part("llada", steps=2),)},
        {"name": "7 a step", "schedule": (part("llada", steps=1),)},
        *(
            {"name": threshold(x), "schedule": (part("fast_dllm", threshold=x),)}
            for x in THRESHOLDS
        ),
        {"name": "factor .3", "schedule": (part("fast_dllm", factor=0.3),)},
        {"name": "factor 1", "schedule": (part("fast_dllm", factor=1.0),)},
        {"name": "entropy .2", "schedule": (part("dparallel", most=0.2),)},
        {"name": "entropy .5", "schedule": (part("dparallel", most=0.5),)},
        {"name": "LocalLeap .9/.75", "schedule": (part("localleap", near=0.75),)},
        {"name": "LocalLeap .9/.5", "schedule": (part("localleap", near=0.5),)},
        {"name": "CCD-DS", "schedule": (part("ccd"),)},
        {"name": "CCD-DS, the code's", "schedule": (part("ccd", average=False),)},
        {
            "name": "Learn2PD .96",
            "schedule": (part("learn2pd"),),
            "filter": True,
        },
        {"name": "oracle filter", "schedule": (one,), "oracle": True},
        *(
            {
                "name": f"dParallel, weight {weight:g}",
                "schedule": (part("dparallel", most=0.5),),
                "weight": weight,
            }
            for weight in (2.0, 0.0)
        ),
        {
            "name": f"canvas of {long}",
            "schedule": (one,),
            "canvas": long,
            "lists": 100,
        },
        {
            "name": f"canvas of {long}, EoTP",
            "schedule": (one, part("eotp")),
            "canvas": long,
            "lists": 100,
        },
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
    # The arms of which none is best for all rules; the most careful one first.
    c.thresholds = tuple(map(threshold, THRESHOLDS))
    # (arm, arm, rules, figure): the first has more right lists on these rules, or fewer
    # calls; "one" and "several": by the number of right answers.
    c.claims = (
        ("1 a step", "7 a step", "one", "right"),
        ("1 a step", "7 a step", "shuffle", "right"),
        ("1 a step", "7 a step", "replace_random", "right"),
        ("threshold .95", "2 a step", "several", "right"),
        ("threshold .9", "4 a step", "several", "right"),
        ("LocalLeap .9/.75", "threshold .9", "all", "calls"),
        ("threshold .9", "LocalLeap .9/.75", "replace_random", "right"),
        ("threshold .9", "LocalLeap .9/.5", "replace_random", "right"),
        ("CCD-DS", "1 a step", "all", "calls"),
        ("1 a step", "CCD-DS", "one", "right"),
        ("1 a step", "CCD-DS", "several", "right"),
        ("threshold .9", "CCD-DS", "all", "calls"),
        ("oracle filter", "Learn2PD .96", "all", "calls"),
        ("Learn2PD .96", "1 a step", "all", "calls"),
        ("1 a step", "Learn2PD .96", "several", "right"),
        (f"canvas of {long}, EoTP", f"canvas of {long}", "all", "calls"),
        (f"canvas of {long}", f"canvas of {long}, EoTP", "all", "right"),
        ("dParallel, weight 2", "entropy .5", "all", "calls"),
        ("dParallel, weight 2", "dParallel, weight 0", "all", "calls"),
        ("dParallel, weight 2", "dParallel, weight 0", "several", "right"),
        ("1 a step", "dParallel, weight 2", "shuffle", "right"),
        ("entropy .5", "dParallel, weight 2", "shuffle", "right"),
    )
    return c
