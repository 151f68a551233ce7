"""What do schedules and caches of a diffusion model save, and what do they cost?

Every schedule writes code, copies with an edit, and identifiers in held-out code, under
the caches that it may have, one text at a time and eight at once, greedily and at
temperature 0.8. The autoregressive model that the diffusion model was made from stands
in every table, and judges the texts.

Command:  python -m experiments.run --config=configs/studies/diffusion.py
              --workdir=runs/diffusion
Hardware: 2 CPU cores. Every row is stored: the same command resumes after a kill.

Expected: most rows are slower than the autoregressive model, since on a CPU a call of
32 nodes costs as much as some six of one. Thresholds save calls and change texts;
FreeDave saves calls and changes none. An approximate cache changes texts, dkv fewer
than dual.
"""

import ml_collections

CACHES = ("recompute", "prefix", "dual", "dkv", "block_causal")
STEADY = tuple(name for name in CACHES if name != "dkv")  # that verify several states


def get_config() -> ml_collections.ConfigDict:
    """Return the fields of the stage `diffusion`."""
    c = ml_collections.ConfigDict()
    c.stage = "diffusion"
    c.model = "tiny_diffusion"  # shipped, or a folder such as runs/x/export
    c.target = "tiny"  # autoregressive, of the same tokenizer: baseline and judge
    c.tasks = ("code", "copy", "infilling")
    c.temperatures = (0.0, 0.8)
    c.batches = (1, 8)  # texts at once; each divides `prompts`
    c.prompts = 8  # of each task
    c.alone = 3  # of them where one is written at a time: for its speed
    c.prompt_tokens = 64  # of a prompt of code or copying, at most
    c.new_tokens = 64  # of such a text
    c.around = 48  # tokens on either side of an identifier
    c.most = 8  # tokens of an identifier
    c.seed = 0

    one, sure = "diffusion/llada", "diffusion/fast_dllm"
    # Schedules. `caches`: files of decoding/caches that one is measured under, without
    # any recompute; `texts_of`: whose texts it must write; `beside`: what it is
    # compared with on code.
    c.arms = (
        {"name": "1 a step", "schedule": (one,), "caches": CACHES},
        {"name": "2 a step", "schedule": ({"name": one, "steps": 16},)},
        {"name": "1 a step, one block", "schedule": (one, "diffusion/blocks")},
        {"name": "Dream", "schedule": ("diffusion/dream",)},
        {"name": "threshold .9", "schedule": (sure,), "caches": CACHES},
        {"name": "threshold .7", "schedule": ({"name": sure, "threshold": 0.7},)},
        {"name": "factor 1", "schedule": ({"name": sure, "factor": 1.0},)},
        {"name": "LocalLeap", "schedule": ("diffusion/localleap",)},
        {"name": "CCD-DS", "schedule": ("diffusion/ccd",)},
        {"name": "entropy .5", "schedule": ("diffusion/dparallel",)},
        {
            "name": "AdaBlock, threshold .9",
            "schedule": (sure, "diffusion/adablock"),
            "caches": ("recompute", "dual"),
            "beside": "threshold .9",
        },
        {
            "name": "FreeDave, 1 a step",
            "schedule": (one, {"name": "diffusion/freedave", "branches": 4}),
            "caches": STEADY,
            "texts_of": "1 a step",
        },
        {
            "name": "FreeDave, threshold .9",
            "schedule": (sure, {"name": "diffusion/freedave", "branches": 4}),
            "caches": ("dual",),
            "texts_of": "threshold .9",
        },
    )
    c.reference = "1 a step"  # whose texts under the first cache others are held to
    c.free = 128  # nodes of a call that cost as much as one, where speed is modelled
    return c
