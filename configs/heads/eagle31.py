"""EAGLE-3.1's draft layer for `tiny`: EAGLE-3's with two norms more.

*Attention Drift: What Autoregressive Speculative Decoding Models Learn*, 2026, arXiv
2605.09992: each of the three states is normed before they are
joined, and the draft hands on its output after the last norm, so that magnitudes do not
grow from step to step.

Command:  python -m experiments.run --config=configs/heads/eagle31.py
              --workdir=runs/eagle31
Hardware: 2 CPU cores.
At scale: eagle31.py:llama3_8b, EAGLE-3's schedule.
Params:   EAGLE-3's, and 3 D.
"""

import ml_collections

from configs.heads import eagle3


def get_config(target: str = "tiny") -> ml_collections.ConfigDict:
    c = eagle3.get_config(target)
    c.name = c.weights = "eagle31"
    c.init.update(fuse_norm="rows", output_norm=True)
    return c
