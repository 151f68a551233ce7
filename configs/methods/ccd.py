"""CCD-DS: all positions on which the last steps agreed.

Chen et al., *Beyond Confidence: Adaptive and Coherent Decoding for Diffusion Language
Models*, 2025, arXiv 2512.02044, in the text's form.

python -m experiments.generate --model=tiny_diffusion --method=ccd \\
    --prompt="def main("

Paper:   up to 3.48x, and 3.91 % better, on Dream-7B.
Here:    2.78 tokens a call on code, T = 0, of 3.72 bits each; one a step has 0.74.
Report:  experiments/reports/diffusion.md
"""

import ml_collections


def get_config() -> ml_collections.ConfigDict:
    config = ml_collections.ConfigDict()
    # The parts and their arguments, as decoding.Method.from_config reads them.
    config.method = {
        "schedule": ["diffusion/ccd"],
    }
    config.model = "tiny_diffusion"
    return config
