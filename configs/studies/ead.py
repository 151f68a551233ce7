"""Entropy adaptive decoding: how seldom must the large model write, and at what loss?

Simonds, *Entropy Adaptive Decoding: Dynamic Model Switching for Efficient Inference*,
2025, arXiv 2502.06833. `tiny-draft` writes, and `tiny` while the mean entropy of the
last five tokens exceeds tau bits: with `verifiers/accept_drafted` the paper's decoding,
which is lossy. `lossless` is the same drafter under the default verifier. `small`
writes alone; plain decoding is the large model alone. `tau_2_dwell_1` may switch after
every token, the others after ten.

python -m experiments.run --config=configs/studies/ead.py --workdir=runs/ead

Hardware: two cores, five minutes; calls are counted. Prose: --config.tasks="('text',)"
--config.prompts=8 --config.batch=8.
Expected: plain decoding's texts of `lossless`; nats that fall with tau.
"""

import ml_collections

LOSSY = "verifiers/accept_drafted"
TAUS = (0.5, 1.0, 2.0, 3.0, 4.0)


def get_config() -> ml_collections.ConfigDict:
    config = ml_collections.ConfigDict()
    config.model = "tiny"
    config.drafts = {"draft": "tiny-draft"}
    drafter = {"name": "drafters/ead", "window": 5, "dwell": 10}
    rules = {f"tau_{tau:g}".replace(".", ""): {"threshold": tau} for tau in TAUS}
    rules["tau_2_dwell_1"] = {"threshold": 2.0, "dwell": 1}
    rules["small"] = {"threshold": 99.0}
    config.variants = {"lossless": {"drafter": {**drafter, "threshold": 2.0}}}
    for name, rule in rules.items():
        config.variants[name] = {"drafter": {**drafter, **rule}, "verifier": LOSSY}
    config.methods = ("plain", *config.variants)
    config.tasks = ("code",)
    config.temperatures = (0.0, 0.8)
    config.prompts = 16
    config.batch = 16
    config.prompt_tokens = 192
    config.max_new_tokens = 96
    config.repeats = 1
    config.curve = False
    return config
