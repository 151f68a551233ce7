"""The kernels: compilation for TPUs, bytes moved, and times on this machine.

python -m experiments.run --config=configs/studies/kernels.py --workdir=runs/kernels

Needs the extra `tpu` (libtpu): the real TPU compiler, on any machine. One layer's tree
attention at the shapes of Llama 3 8B and 70B in bfloat16, with the write of the block's
keys before it. Three tables count the instruction bundles of a grid step beside the
cycles of its copy: of rows' caches, of pages of each KV head, and of column sums. One
more counts the bundles of whole programs: the masks of a grammar. Every piece is
stored: the same command resumes after a kill.

Hardware: any; 270 compilations of one to four seconds on two free cores, and sixteen of
the masks' programs, of up to a minute. The last table times the machine that runs it;
on a CPU, XLA alone.
Expected: every configuration compiles within its chip's vector memory, in one pass over
the cache, and moves at most 1.1 times the bytes of the cache, q and the output.
"""

import ml_collections


def get_config() -> ml_collections.ConfigDict:
    config = ml_collections.ConfigDict()
    config.stage = "tpu_compilation"
    config.chips = ("v4", "v5e", "v5p", "v6e")  # TPUs that are compiled for
    config.models = ("8B", "70B")  # sizes of Llama 3
    config.sizes = (8192, 32768)  # slots of the cache
    config.nodes = (1, 64, 256, 1024)  # of a block
    config.batches = (1, 8, 32)  # rows
    # Bundles of a grid step, for `groups` KV heads with four query heads each.
    config.bundles = {
        "chips": ("v5e", "v5p", "v6e"),
        "groups": (1, 2, 8),
        "nodes": (1, 16, 64),
        "size": 8192,
    }
    # Of a cache whose KV heads have page tables of their own, by slots of a page.
    config.pages = {
        "chips": ("v5e", "v5p", "v6e"),
        "nodes": (1, 16, 64),
        "pages": (16, 32, 64),
        "size": 8192,
    }
    # Of the sums of attention over stored queries, for each slot.
    config.columns = {
        "chips": ("v5e", "v5p", "v6e"),
        "groups": (1, 8),
        "queries": (32, 128),
        "size": 8192,
    }
    # Of the masks of a JSON schema, over `vocabularies`: their size (0: that of `tiny`)
    # and how many of their tokens end a string.
    config.masks = {
        "chips": ("v5e",),
        "vocabularies": ((0, 0), (128256, 230), (128256, 1000), (128256, 1100)),
        "nodes": (1, 64),
    }
    # Times on this machine: one layer of the first model, batch 1, `repeats` calls.
    config.timed = {"size": 8192, "nodes": (1, 64), "repeats": 5}
    return config
