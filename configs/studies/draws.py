"""Which draw of children is best for which tree: coupled, or the likeliest ones?

The default verifier accepts a child that is the target's own draw at its position
(`verifiers/gumbel_coupled.py`). A child that was drawn with the same noise often is;
the likeliest children are chosen without it. A chain's one child should be coupled. In
a tree a wrong draw costs one of several children, so that the likeliest may win.

Command:  python -m experiments.run --config=configs/studies/draws.py
              --workdir=runs/draws
Hardware: 2 CPU cores, some 10 minutes; calls are counted, nothing is timed.

Expected: coupled drafts are above the likeliest, by more in trees and by most on prose.
Texts of all rows are plain decoding's.
"""

import ml_collections

HEADS = {"eagle": "tiny-eagle2", "fspad": "tiny-fspad"}
MODEL = "model"  # a draft model in place of heads
DRAWS = ("coupled", "point")
NODES = 32  # of a tree, root included
SHAPES: dict[str, dict[str, object]] = {
    "chain": {"name": "topologies/chain", "length": 4},
    "static": {"name": "topologies/static"},
    "eagle2": {"name": "topologies/eagle2", "depth": 4, "nodes": NODES, "top_k": 6},
}


def get_config() -> ml_collections.ConfigDict:
    """Return a recipe of the stage `evaluate`."""
    config = ml_collections.ConfigDict()
    config.drafts = {"draft": "tiny-draft"}
    config.variants, config.trained, directions = {}, {}, []
    for drafter in (*HEADS, MODEL):
        for shape, topology in SHAPES.items():
            names = [f"{drafter}_{shape}_{draw}" for draw in DRAWS]
            directions.append(tuple(names))
            for name, draw in zip(names, DRAWS):
                config.variants[name] = {
                    "drafter": f"drafters/{drafter}",
                    "topology": {**topology, "draw": draw},
                }
                if drafter in HEADS:
                    config.trained[name] = HEADS[drafter]
    config.methods = ("plain", *config.variants)
    config.directions = tuple(directions)
    config.tasks = ("code", "text")
    config.temperatures = (0.8,)
    config.seeds = (0, 1, 2)
    config.prompts = 8
    config.batch = 8
    config.prompt_tokens = 128
    config.max_new_tokens = 96
    config.repeats = 1
    config.curve = False
    return config
