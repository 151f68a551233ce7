"""The kernels: what compiles for which TPU, what it moves, and its time where it runs.

python -m experiments.run --config=configs/kernels.py --workdir=runs/kernels

Needs the extra `tpu` (libtpu): the real TPU compiler, on any machine. One layer's tree
attention at the shapes of Llama 3 8B and 70B in bfloat16, with the write of the block's
keys before it. Every piece is kept: the same command again goes on where it stopped.

Hardware: any; 192 compilations of one to four seconds on two free cores. The times of
the second table are of the machine that it runs on; on a CPU that is XLA alone.
Expected: every configuration compiles within its chip's vector memory, in one pass over
the cache, and moves at most 1.1 times the bytes of the cache, q and the output.
"""

import ml_collections


def get_config() -> ml_collections.ConfigDict:
    config = ml_collections.ConfigDict()
    config.stage = "kernels"
    config.chips = ("v4", "v5e", "v5p", "v6e")
    config.models = ("8B", "70B")
    config.sizes = (8192, 32768)
    config.nodes = (1, 64, 256, 1024)
    config.batches = (1, 8, 32)
    # Times on this machine: one layer of the first model, batch 1, `repeats` calls.
    config.timed = {"size": 8192, "nodes": (1, 64), "repeats": 5}
    return config
