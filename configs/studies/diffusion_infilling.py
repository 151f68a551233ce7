"""Does a diffusion model fill holes better than one that reads the left side alone?

Holes of known length in held-out code: identifiers, by whether the name stands before
the hole, behind it, on both sides or on neither; and lines and spans of HumanEval's
functions (Bavarian et al., arXiv 2207.14255), where `humaneval` names a folder with its
files. Both models write greedily and neither may end the text in a hole; the diffusion
model under several schedules, the autoregressive one from left to right.

Command:  python -m experiments.run --config=configs/studies/diffusion_infilling.py
              --workdir=runs/diffusion_infilling
Beside:   --config.humaneval=FOLDER, with the files HumanEval-*Infilling.jsonl.gz
Hardware: 2 CPU cores, minutes. Every row is stored: the same command resumes.

Expected: a name that stands behind its hole alone is found by the diffusion model and
not by the other; one that stands before it by both. One token a forward is best.
"""

import ml_collections


def get_config() -> ml_collections.ConfigDict:
    """Return the fields of the stage `diffusion_infilling`."""
    c = ml_collections.ConfigDict()
    c.stage = "diffusion_infilling"
    c.model = "tiny_diffusion"  # shipped, or a folder such as runs/x/export
    c.target = "tiny"  # autoregressive, of the same tokenizer
    c.seed = 0  # of the holes
    c.identifiers = 400  # holes in held-out code
    c.humaneval = ""  # a folder; "": without its holes
    c.kinds = ("single_line", "random_span")  # of its files
    c.holes = 128  # of each kind
    c.around = 64  # tokens on either side
    c.most = 12  # tokens of a hole
    c.batch = 16  # holes of a call
    # Name -> the parts of a schedule.
    c.arms = ml_collections.ConfigDict(type_safe=False)
    c.arms.one = ("diffusion/llada",)
    c.arms.dream = ("diffusion/dream",)
    c.arms.threshold = ("diffusion/fast_dllm",)
    c.arms.at_once = ({"name": "diffusion/llada", "steps": 1},)
    return c
