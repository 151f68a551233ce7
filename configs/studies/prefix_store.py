"""What do stored prefixes cost: nats, bits a value, and seconds to load?

CacheGen (arXiv 2310.07240) reports caches 3.7 to 4.3 times smaller than 8-bit codes at
little loss. Here the levels are compared on held-out files of the standard library.

python -m experiments.run --config=configs/studies/prefix_store.py
--workdir=runs/prefix_store

Hardware: a CPU, about five minutes. Expected: level 2 loses about 0.01 nats and takes
3.2 bits a value, 2.3 times less than 8-bit codes with a scale a token.
"""

import ml_collections


def get_config() -> ml_collections.ConfigDict:
    """Return the fields of the stage `prefix_store`."""
    c = ml_collections.ConfigDict()
    c.stage = "prefix_store"
    c.model = "tiny"
    c.calibration = 16  # files that the tables are counted on
    c.files = 16  # further files that are measured
    c.prefix_tokens = 512  # in the cache
    c.next_tokens = 128  # whose nats are compared
    c.repeats = 5  # of the times
    return c
