"""SAM-Decoding: copy after a long match of the text's end, else Token Recycling.

Hu et al., *SAM Decoding*, 2025, arXiv 2411.10666; 39 tokens after a match of 5 or more.

python -m experiments.generate --model=tiny --method=sam_decoding --prompt="def main("

With the arguments `datastore`, which python -m experiments.datastore makes of texts, it
copies from a corpus too. With `inner`, as "drafters/eagle3", and a topology it drafts
with a head or a model where nothing is copied: `sam_eagle3` of configs/spec_bench.py.

Paper:   2.27x, 3.03 tokens a call with Token Recycling, Vicuna-7B, Spec-Bench, A6000.
Here:    3.00 tokens a call on held-out code, T = 0.8.
Report:  experiments/reports/sam_decoding.md
"""

import ml_collections


def get_config() -> ml_collections.ConfigDict:
    config = ml_collections.ConfigDict()
    # The parts and their arguments, as decoding.Method.from_config reads them.
    config.method = {"drafter": "drafters/sam_decoding"}
    return config
