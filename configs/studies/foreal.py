"""FoReaL-Decoding: the large model begins each sentence. How much must it write?

Li, Yang, Wang, Li, Lin, Zhou, Wang, *What makes Reasoning Models Different? Follow the
Reasoning Leader for Efficient Decoding*, 2025, arXiv 2506.06998. `tiny` writes the
first n tokens of a sentence with probability p, and `tiny-draft` the rest: with
`verifiers/accept_drafted` the paper's decoding, which is lossy. `lossless` is the same
drafter (n = 15, p = 1) under the default verifier; `small` writes alone (p = 0), and
plain decoding is the large model alone. In code a line stands for the sentence; on
prose a sentence ends with a full stop, too.

python -m experiments.run --config=configs/studies/foreal.py --workdir=runs/foreal

Hardware: two cores, five minutes; calls are counted. Prose:
--config=configs/studies/foreal.py:text --config.prompts=8 --config.batch=8.
Expected: plain decoding's texts of `lossless`; nats that fall with n and p.
"""

import ml_collections

LOSSY = "verifiers/accept_drafted"
TERMINATORS = {"code": "\n", "text": ".!?\n"}


def get_config(task: str = "code") -> ml_collections.ConfigDict:
    config = ml_collections.ConfigDict()
    config.model = "tiny"
    config.drafts = {"draft": "tiny-draft"}
    drafter = {"name": "drafters/foreal", "terminators": TERMINATORS[task]}
    config.variants = {"lossless": {"drafter": {**drafter, "lead": 15}}}
    rules = {
        f"n{lead}_p{gate:g}".replace(".", ""): {"lead": lead, "gate": gate}
        for lead in (1, 5, 15)
        for gate in (0.5, 1.0)
    }
    rules["small"] = {"gate": 0.0}
    for name, rule in rules.items():
        config.variants[name] = {"drafter": {**drafter, **rule}, "verifier": LOSSY}
    config.methods = ("plain", *config.variants)
    config.tasks = (task,)
    config.temperatures = (0.0, 0.8)
    config.prompts = 16
    config.batch = 16
    config.prompt_tokens = 192
    config.max_new_tokens = 96
    config.repeats = 1
    config.curve = False
    return config
