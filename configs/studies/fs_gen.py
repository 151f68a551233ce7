"""FS-GEN's routers: how seldom must the large model write, and at what loss?

Zhang, Wang, Ding, Qi, Hua, Lv, Zhou, *Fast and Slow Generating: An Empirical Study on
Large and Small Language Models Collaborative Decoding*, 2024, arXiv 2406.12295,
section 3. `tiny-draft` writes, and `tiny` where the router is unsure: with
`verifiers/accept_drafted` the paper's decoding with the oracle combiner, which is
lossy. `lossless` is the same drafter under the default verifier. `large` and `small`
write alone; `confidence_05` has t = 0.5.

python -m experiments.run --config=configs/studies/fs_gen.py --workdir=runs/fs_gen

Hardware: two cores, five minutes; calls are counted. Expected: plain decoding's texts
of `lossless` and `large`; nats that fall from `small` to `large`.
"""

import ml_collections

LOSSY = "verifiers/accept_drafted"


def get_config() -> ml_collections.ConfigDict:
    config = ml_collections.ConfigDict()
    config.model = "tiny"
    config.drafts = {"draft": "tiny-draft"}
    routers = {
        "small": ("confidence", 0.0),
        "confidence_0.3": ("confidence", 0.3),
        "confidence_0.5": ("confidence", 0.5),
        "confidence_0.7": ("confidence", 0.7),
        "margin_0.1": ("margin", 0.1),
        "margin_0.2": ("margin", 0.2),
        "large": ("confidence", 1.1),
    }
    drafter = "drafters/fs_gen"
    config.variants = {"lossless": {"drafter": drafter}}
    for name, (router, threshold) in routers.items():
        config.variants[name.replace(".", "")] = {
            "drafter": {"name": drafter, "router": router, "threshold": threshold},
            "verifier": LOSSY,
        }
    config.methods = ("plain", *config.variants)
    config.tasks = ("code",)
    config.temperatures = (0.0, 0.8)
    config.prompts = 16
    config.batch = 16
    config.prompt_tokens = 192
    config.max_new_tokens = 64
    config.repeats = 1
    config.curve = False
    return config
