"""DEL against a fixed exit with a fixed length, and SWIFT, by modelled time.

Entezari Zarch et al., *DEL*, 2025, arXiv 2504.05598, sections 4 and 5; Xia et al.,
*SWIFT*, 2025, arXiv 2410.06916. `exit_4_6` drafts 6 tokens with the first 4 layers in
every round: the paper's baseline. Nothing can have fewer tokens a call than plain
decoding, so that all are compared in modelled time: experiments/studies/self_drafts.py.

python -m experiments.run --config=configs/studies/del_exits.py --workdir=runs/exits

Hardware: two cores, over ten minutes; resumes where it stopped; calls are counted.
Another target: --config.model=DIRECTORY --config.data=question.jsonl.
Expected: plain decoding's texts in every row, and DEL at least as fast as every pair,
which a target trained to exit early (LayerSkip) shows best.
"""

import ml_collections

# A call by its nodes, in calls of one node: `tiny` on two cores of a Xeon, nothing else
# running (experiments/reports/spec_bench.md).
BLOCKS = ((1, 1.0), (2, 1.5), (4, 1.68), (8, 2.39), (16, 4.11), (32, 6.09), (64, 9.21))


def get_config() -> ml_collections.ConfigDict:
    """Return the fields of the stage `self_drafts`."""
    c = ml_collections.ConfigDict()
    c.stage = "self_drafts"
    c.seed = 0
    c.model = "tiny"
    c.mesh, c.rules = "auto", ""
    c.drafts = ml_collections.ConfigDict(type_safe=False)
    c.noises = (0.0,)  # of a draft model's weights: there is none
    drafter = {"name": "drafters/del_exit", "threshold": 0.0}
    fixed = {
        f"exit_{layer}_{length}": {
            "drafter": {**drafter, "exits": (layer,), "length": length}
        }
        for layer in (1, 2, 4, 6)
        for length in (3, 6)
    }
    c.variants = fixed
    c.methods = ("plain", "del_exit", *fixed, "swift")
    # Columns of modelled time: the fields of self_drafts.View.
    c.views = (
        ("layers", {}),
        ("with heads", {"heads": True}),
        ("CPU's blocks", {"heads": True, "blocks": True}),
        ("deep", {"keep": 0.55, "search": False}),
    )
    # (nodes of a block, its cost in plain calls), interpolated.
    c.block_costs = BLOCKS
    c.directions = (
        *(("del_exit", name) for name in fixed),
        *((name, "plain") for name in ("del_exit", *fixed, "swift")),
    )
    c.data = ""
    c.tasks = ("code",)
    c.temperatures = (0.0, 0.8)
    c.prompts = 8
    c.batch = 1
    c.prompt_tokens = 128
    c.max_new_tokens = 128
    return c
