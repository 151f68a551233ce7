"""Which tree gives the most tokens a call at a fixed number of drafts a call?

Jeon et al., *Recursive Speculative Decoding*, 2024, arXiv 2402.14160: chain, SpecInfer,
RSD-C and RSD-S at equal target budgets; here with Sequoia, EAGLE-2, DySpec and static
trees. `tiny-draft` drafts for `tiny`.

python -m experiments.run --config=configs/studies/tree_budget.py --workdir=runs/budget

Hardware: two cores, an hour, most of it compilation; resumes where it stopped. One
budget alone: '--config.budgets=(30,)'; other texts: --config.data=question.jsonl.
Expected: at T > 0 RSD-S ≥ RSD-C ≥ SpecInfer ≥ a chain, and at T = 0 plain decoding's
texts.
"""

import ml_collections

# Static trees under a guess: each sibling is half as likely as the one before.
HALVES = {
    6: "3 | 2,1",
    10: "4 | 3,2 | 1",
    14: "4 | 3,2,1 | 2,1,0,1",
    21: "5 | 4,3,2,1 | 3,1,0,0,1 | 1",
    30: "5 | 4,3,2,1 | 3,2,1,0,2,1,0,1 | 2,1,0,1,0,0,1",
    64: "7 | 5,4,3,2,1 | 4,3,2,1,0,3,2,1,0,2,1,0,1"
    " | 3,2,1,0,2,1,0,1,0,0,2,1,0,1,0,0,1 | 2,1,0,1,0,0,1,0,0,0,1 | 1",
    126: "7 | 6,5,4,3,2,1 | 5,4,3,2,1,0,4,3,2,1,0,3,2,1,0,2,1,0,1"
    " | 4,3,2,1,0,3,2,1,0,2,1,0,1,0,0,3,2,1,0,2,1,0,1,0,0,2,1,0,1,0,0,1"
    " | 3,2,1,0,2,1,0,1,0,0,2,1,0,1,0,0,1,0,0,0,2,1,0,1,0,0,1,0,0,0,1"
    " | 2,1,0,1,0,0,1,0,0,0,1,0,0,0,0,1",
}
LEVELS = {
    6: (2, 1, 1),
    10: (2, 2, 1),
    14: (2, 2, 2),
    21: (3, 2, 2),
    30: (2, 2, 2, 2),
    64: (4, 3, 2, 1),
    126: (4, 3, 3, 2),
}
BEAMS = {
    6: (2, 3),
    10: (5, 2),
    14: (7, 2),
    21: (7, 3),
    30: (6, 5),
    64: (8, 8),
    126: (14, 9),
}
GROWN = {
    6: (4, 4),
    10: (5, 5),
    14: (6, 6),
    21: (6, 8),
    30: (8, 8),
    64: (8, 16),
    126: (8, 32),
}
LIKELIEST = {
    6: (3, 3),
    10: (4, 4),
    14: (4, 4),
    21: (5, 5),
    30: (5, 6),
    64: (6, 10),
    126: (8, 12),
}
# Acceptance rate of the draft of each rank, at T = 0.8 without replacement, measured by
# configs/studies/verifier_acceptance.py.
ACCEPTANCE = (0.661, 0.106, 0.052, 0.029)


def trees() -> tuple[tuple, ...]:
    """List (name, drafts, topology) of every tree."""
    rows: list[tuple] = []
    for n, branching in LEVELS.items():
        width, beam_depth = BEAMS[n]
        depth, slots = GROWN[n]
        levels, likeliest = LIKELIEST[n]
        if n <= 30:
            rows.append(("chain", n, {"name": "topologies/chain", "length": n}))
        more = {
            "specinfer": {"name": "topologies/specinfer", "expansion": branching},
            "rsd_c": {"name": "topologies/rsd_c", "branching": branching},
            "rsd_s": {"name": "topologies/rsd_s", "width": width, "depth": beam_depth},
            "static": {"name": "topologies/static", "choices": HALVES[n]},
            "sequoia": {
                "name": "topologies/sequoia",
                "acceptance": ACCEPTANCE,
                "budget": n + 1,
                "depth": min(n, 10),
            },
            "eagle2": {
                "name": "topologies/eagle2",
                "nodes": n + 1,
                "depth": levels,
                "top_k": likeliest,
            },
            "dyspec": {
                "name": "topologies/dyspec",
                "nodes": n + 1,
                "depth": depth,
                "width": slots,
            },
        }
        rows += [(name, n, topology) for name, topology in more.items()]
    return tuple(rows)


def get_config() -> ml_collections.ConfigDict:
    config = ml_collections.ConfigDict()
    config.stage = "tree_budget"
    config.model = "tiny"
    config.draft = "tiny-draft"  # the draft model
    config.seed = 0
    config.data = ""  # questions of a file in place of the project's own tasks
    config.tasks = ("code",)
    config.prompts = 24  # of each task
    config.batch = 24
    config.prompt_tokens = 128
    config.max_new_tokens = 64
    config.temperatures = (0.0, 0.8, 1.0)
    config.verifier = "verifiers/recursive_rejection"  # above temperature 0
    config.budgets = ()  # (): all of `trees`
    config.trees = trees()
    config.directions = (
        ("rsd_s", "rsd_c"),
        ("rsd_c", "specinfer"),
        ("specinfer", "chain"),
        ("rsd_s", "chain"),
        ("dyspec", "static"),
        ("dyspec", "sequoia"),
        ("sequoia", "static"),
    )
    return config
