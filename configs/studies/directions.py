"""Two directions that can fail: RASD and a tree of as many nodes; Jacobi's two rules.

Quan, Feng, Hao, Jiang, Zhang, Wang, *RASD: Retrieval-Augmented Speculative Decoding*,
2025, arXiv 2503.03434: `rasd` joins 32 retrieved nodes to a static tree of 17,
`rasd_sequoia` to Sequoia's tree of 17; `sequoia`, `eagle2` and `dyspec` are the draft
model's trees of 49 nodes without retrieval, `model_tree` has the 17. Teng, Shi, Liu,
Ning, Dai, Wang, Li, Liu, *Accelerating Auto-regressive Text-to-Image Generation with
Training-free Speculative Jacobi Decoding*, 2025, arXiv 2410.01699: `jacobi_pq` accepts
by p/q, the paper's rule, and `jacobi` by the coupled verifier; new positions begin with
random tokens, and in `_sample` with draws from the law on their left.

python -m experiments.run --config=configs/studies/directions.py
    --workdir=runs/directions

Hardware: two cores, half an hour; calls are counted. Greedily, where all seeds are one
and the two rules are one: --config.temperatures='(0.0,)' --config.seeds='(0,)'.
Expected: plain decoding's texts of all rows but those of p/q, whose law is its law.
"""

import ml_collections

NODES = 49  # of RASD's block
# Acceptance of the draft of each rank: configs/methods/sequoia.py.
ACCEPTANCE = (0.628, 0.148, 0.060, 0.032)


def sequoia(budget: int) -> dict:
    """Return Sequoia's tree of `budget` nodes, root included."""
    return {"name": "topologies/sequoia", "acceptance": ACCEPTANCE, "budget": budget}


def get_config() -> ml_collections.ConfigDict:
    config = ml_collections.ConfigDict()
    config.model = "tiny"
    config.drafts = {"draft": "tiny-draft"}
    config.variants = {
        "rasd": {"drafter": "drafters/rasd", "topology": "topologies/static"},
        "rasd_sequoia": {"drafter": "drafters/rasd", "topology": sequoia(17)},
    }
    trees = {
        "sequoia": sequoia(NODES),
        "eagle2": {"name": "topologies/eagle2", "nodes": NODES},
        "dyspec": {"name": "topologies/dyspec", "nodes": NODES},
    }
    for name, topology in trees.items():
        config.variants[name] = {"drafter": "drafters/model", "topology": topology}
    for name, init in (("", "random"), ("_sample", "sample")):
        window = {"name": "drafters/speculative_jacobi", "init": init}
        config.variants[f"jacobi{name}"] = {"drafter": window}
        config.variants[f"jacobi_pq{name}"] = {
            "drafter": window,
            "verifier": "verifiers/rejection",
        }
    config.methods = ("plain", "model_tree", *config.variants)
    config.directions = (
        *(("rasd", name) for name in ("model_tree", *trees)),
        *(("rasd_sequoia", name) for name in trees),
        ("jacobi_pq", "jacobi"),
        ("jacobi_pq_sample", "jacobi_sample"),
        ("jacobi_sample", "jacobi"),
        ("jacobi_pq_sample", "jacobi_pq"),
    )
    config.tasks = ("code", "text")
    config.temperatures = (0.8,)
    config.seeds = (0, 1, 2)
    config.prompts = 8
    config.batch = 8
    config.prompt_tokens = 384
    config.max_new_tokens = 64
    config.repeats = 1
    config.curve = False
    return config
