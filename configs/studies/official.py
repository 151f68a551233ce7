"""Tokens a call beside the authors' code, on the same weights and prompts.

python -m experiments.run --config=configs/heads/eagle3.py --workdir=runs/eagle3
python -m experiments.run --config=configs/heads/hydra_pp.py --workdir=runs/hydra_pp
python -m experiments.run --config=configs/studies/official.py --workdir=runs/official

The run folder's `official/` then holds `tiny`, its draft model and its heads in the
layouts that the official codes load, and the prompts. Their calls come back as a file:
`--config.peers=FILE.json`, whose form is in experiments/studies/official.py. Greedy,
float32, batch 1, blocks as wide as in the papers.

Hardware: two cores, ten minutes. Expected: plain decoding's text everywhere, and at
least as many tokens a call as the official code.
"""

import ml_collections

from configs.trees import medusa

CHAIN = "topologies/chain"


def get_config() -> ml_collections.ConfigDict:
    config = ml_collections.ConfigDict()
    config.stage = "official"
    config.model = "tiny"
    config.draft = "tiny-draft"  # the draft model of `assisted`
    config.data = ""
    config.tasks = ("code",)
    config.prompts = 12
    config.prompt_tokens = 128
    config.max_new_tokens = 96
    config.seed = 0
    config.peers = ""  # JSON of the official codes' calls and texts
    recycling = {"drafter": "drafters/token_recycling"}
    eagle3, hydra = "drafters/eagle3", "drafters/hydra"
    # Name -> method, at the settings of the official code.
    config.variants = {
        "lookup_2": {"drafter": lookup(2)},
        "lookup_3": {"drafter": lookup(3)},
        "assisted": {"drafter": "drafters/model", "topology": chain(5)},
        "recycling_kept": recycling,
        "recycling_reset": recycling,
        "lookahead": {
            "drafter": {
                "name": "drafters/lookahead",
                "ngram": 5,
                "window": 15,
                "guesses": 15,
            }
        },
        "eagle3_tree": {
            "drafter": eagle3,
            "topology": {
                "name": "topologies/eagle2",
                "nodes": 60,
                "depth": 6,  # the official code counts its first level as none
                "top_k": 10,
            },
        },
        "eagle3_chain": {"drafter": eagle3, "topology": chain(5)},
        "hydra_tree": {
            "drafter": hydra,
            "topology": {
                "name": "topologies/static",
                "choices": medusa.TREES["mc_sim_7b_63"],
            },
        },
        "hydra_chain": {"drafter": hydra, "topology": chain(4)},
    }
    config.methods = tuple(config.variants)
    # Drafter -> the heads that it drafts with.
    config.heads = {
        "eagle3": "runs/eagle3/heads/eagle3-s0/export",
        "hydra": "runs/hydra_pp/heads/hydra_pp-s0/export",
    }
    config.kept = ("recycling_kept",)  # methods whose memory outlives a prompt
    # Method -> seeds, where its drafts are random: its calls are their mean.
    config.seeds = {"lookahead": (0, 1, 2)}
    return config


def lookup(size: int) -> dict:
    return {"name": "drafters/prompt_lookup", "n_max": size, "k": 10}


def chain(length: int) -> dict:
    return {"name": CHAIN, "length": length}
