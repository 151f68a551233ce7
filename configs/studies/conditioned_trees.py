"""Do trees pay on a block drafter, and must they be conditioned on their path?

One drafter, DSpark's block (arXiv 2607.05147), trained for `tiny`; the same number of
drafts a call:

    chain         the likeliest tokens, each after the one before; seven of them
    marginal      DDTree (arXiv 2604.12989) of the block's own laws
    jetspec       JetSpec's tree (arXiv 2606.18394) of the conditioned laws
    jetspec_gap   the same, narrow where the block is sure
    conditioned   the most probable tree, every law after its token above: PCTree
                  (arXiv 2608.02123)

Command:  python -m experiments.run --config=configs/heads/dspark.py
              --workdir=runs/dspark
          python -m experiments.run --config=configs/studies/conditioned_trees.py
              --workdir=runs/conditioned_trees
Hardware: 2 CPU cores. Every row is stored: the same command resumes after a kill.

Expected: conditioned ≥ chain in tokens a call, by more with more drafts. The marginal
tree is right on the spine and wrong behind a sibling; the conditioned one is alike on
both.
"""

import ml_collections

DEPTH = 7  # drafts of DSpark's block
BUDGETS = (8, 16, 32, 63)  # drafts a call


def trees() -> tuple[tuple, ...]:
    """List (name, drafts, topology) of every arm."""
    rows: list[tuple] = []
    chain = {"name": "topologies/chain", "length": DEPTH}
    for budget in BUDGETS:
        size = {"nodes": budget + 1, "depth": DEPTH}
        best = {"name": "topologies/best_first", **size}
        jetspec = {"name": "topologies/jetspec", **size}
        rows += [
            ("chain", budget, chain),  # beside every tree, prompt by prompt
            ("marginal", budget, {**best, "marginal": True}),
            ("jetspec", budget, jetspec),
            ("jetspec_gap", budget, {**jetspec, "gap": True}),
            ("conditioned", budget, best),
        ]
    return tuple(rows)


def get_config() -> ml_collections.ConfigDict:
    """Return the fields of the stage `conditioned_trees`."""
    c = ml_collections.ConfigDict()
    c.stage = "conditioned_trees"
    c.model = "tiny"
    c.heads = "runs/dspark/heads/dspark-s0/export"  # of a block with a head
    c.seed = 0
    c.data = ""  # questions of a file in place of the project's own tasks
    c.tasks = ("code",)
    c.prompts = 24  # of each task
    c.batch = 24
    c.prompt_tokens = 128
    c.max_new_tokens = 96
    c.temperatures = (0.0, 0.8)
    c.trees = trees()
    c.timed = 16  # drafts of the arms whose speed is measured; 0: none
    c.alone = 8  # prompts that are timed, one at a time
    c.repeats = 3
    # Parameters of the target beside whose call the drafts are timed; 0: none are.
    c.larger = 29_000_000
    c.directions = (
        ("conditioned", "chain"),
        ("marginal", "chain"),
        ("conditioned", "marginal"),
        ("conditioned", "jetspec"),
        ("jetspec_gap", "jetspec"),
    )
    return c
