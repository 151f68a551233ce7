"""EasySpec: what do layers in parallel cost in acceptance, and what do they gain?

Wu, Gao, Li, Wu, *EasySpec: Layer-Parallel Speculative Decoding for Efficient
Multi-GPU Utilization*, 2025, arXiv 2502.02493. `tiny` of eight layers drafts for
itself, so that groups of up to six exist. Exact, its drafts are all right: what
`group_n` loses is the fuzzy call's. With `noise` on its weights it is a draft model
that errs. Time is modelled (experiments/studies/self_drafts.py): c is a draft call in
target calls, and a group's layers cost one.

python -m experiments.run --config=configs/studies/easyspec.py --workdir=runs/easyspec

Hardware: two cores, eight minutes; resumes where it stopped; calls are counted.
Expected: plain decoding's texts; no draft of `group_1` refused without noise;
`group_4` faster than `group_1` (the paper: drafting up to 1.62x, 7 % accepted less).
"""

import ml_collections

from configs.studies import del_exits

# An 8B draft of a 70B target: a tenth of its weights, two fifths of its layers.
RATIOS = (0.1, 0.2, 0.4)


def get_config() -> ml_collections.ConfigDict:
    """Return the fields of the stage `self_drafts`."""
    c = ml_collections.ConfigDict()
    c.stage = "self_drafts"
    c.seed = 0
    c.model = "tiny"
    c.mesh, c.rules = "auto", ""
    c.drafts = ml_collections.ConfigDict({"draft": "tiny"})
    c.noises = (0.0, 0.2)  # of the draft's weights, in their rms
    chain = {"name": "topologies/chain", "length": 5}
    c.variants = {
        f"group_{size}": {
            "drafter": {"name": "drafters/easyspec", "group": size},
            "topology": chain,
        }
        for size in (1, 2, 3, 4)
    }
    c.methods = ("plain", *c.variants)
    # `attention`: half a layer's time is its attention, which alone runs at once.
    c.views = (
        *((f"c = {c_}", {"ratio": c_}) for c_ in RATIOS),
        *((f"c = {c_}, half", {"ratio": c_, "attention": 0.5}) for c_ in RATIOS),
    )
    # (nodes of a block, its cost in plain calls), interpolated.
    c.block_costs = del_exits.BLOCKS
    c.directions = (
        *((name, "group_1") for name in ("group_2", "group_3", "group_4")),
        *((name, "plain") for name in c.variants),
    )
    c.data = ""
    c.tasks = ("code",)
    c.temperatures = (0.0, 0.8)
    c.prompts = 8
    c.batch = 8
    c.prompt_tokens = 128
    c.max_new_tokens = 128
    return c
