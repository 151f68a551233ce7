"""RAPID's target that leans towards the draft: more tokens a call, at what loss?

Chen, Feng, Ni, Li, Shieh, *Long-Context Inference with Retrieval-Augmented
Speculative Decoding*, 2025, arXiv 2502.20330, sections 3.1 and 3.2. The prompt fills
`tiny`'s positions; the draft model reads at most 512 of its tokens, an eighth. `chain`
drafts from the whole prompt and `tail` from its end alone; `lossless` has the default
verifier, `eta_0` exact speculative sampling, and the others the paper's, which is
lossy. As in the authors' code drafts are at most 10 and end below a confidence of 0.1.

python -m experiments.run --config=configs/studies/rapid.py --workdir=runs/rapid

Hardware: two cores, fifty minutes beside other work; calls are counted. The paper's
pair, a target that drafts for itself: --config.drafts.draft=tiny; greedily the lossless
rows alone: --config.temperatures='(0.0,)'
--config.methods="('plain','chain','lossless','tail')". Expected: plain decoding's texts
of `chain`, `lossless` and `tail`; more tokens a call with eta than without.
"""

import ml_collections

STOP = {"name": "topologies/confidence_stop", "length": 10, "threshold": 0.1}
ETAS = (0.0, 10.0, 20.0, 50.0)


def get_config() -> ml_collections.ConfigDict:
    config = ml_collections.ConfigDict()
    config.model = "tiny"
    config.drafts = {"draft": "tiny-draft"}
    reader = {"name": "drafters/rapid", "chunk": 128, "kept": 512}
    config.variants = {
        "chain": {"drafter": "drafters/model", "topology": STOP},
        "lossless": {"drafter": reader, "topology": STOP},
        # No chunk is so like the prompt's end: the end alone is read.
        "tail": {"drafter": {**reader, "threshold": 1.5}, "topology": STOP},
    }
    for eta in ETAS:
        config.variants[f"eta_{eta:g}"] = {
            "drafter": reader,
            "topology": STOP,
            "verifier": {"name": "verifiers/rapid", "eta": eta, "alpha": 0.1},
        }
    config.methods = ("plain", *config.variants)
    config.tasks = ("code",)
    config.temperatures = (0.8,)
    config.prompts = 12
    config.batch = 12
    config.prompt_tokens = 3968
    config.max_new_tokens = 64
    config.repeats = 1
    config.curve = False
    return config
