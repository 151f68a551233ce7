"""A day with an accelerator: parity, bandwidth, models and training, in one command.

python -m experiments.run --config=configs/studies/accelerator_day.py --workdir=runs/day

On a Hopper GPU or a TPU host: every kernel beside its reference; tree attention (rows
and pages), passes over logits and stretches of the XLA form as shares of a copy's
bandwidth, with calls chained in one program; masks of a grammar; plain steps and rounds
with trees of 1B and 8B shapes; rows that share a prefix; the MFU of a 1B model's
training. Elsewhere the same stages run on small shapes, as a rehearsal. A piece that
fails tells why and the others go on; the same command resumes after a kill.

Hardware: one H100 or H200, or a TPU of 32 GiB; under ten minutes. Three minutes of two
CPU cores for the rehearsal.
Expected: every case equal, and the shares that the report says it is held to.
"""

import ml_collections


def get_config() -> ml_collections.ConfigDict:
    config = ml_collections.ConfigDict()
    config.stage = "accelerator_day"
    config.chip = chip()  # the sizes on an accelerator
    config.rehearsal = rehearsal()  # the sizes on a CPU
    return config


def chip() -> ml_collections.ConfigDict:
    """Return the settings on an accelerator."""
    forms, nodes = ("xla", "pallas"), (1, 16, 64)
    vocab = 128256
    day = ml_collections.ConfigDict()
    # Bytes of the arrays that are copied and summed, the side of the matrices that are
    # multiplied, and the runs of each.
    day.ceilings = {"copy_bytes": 2**32, "product_side": 8192, "repeats": 5}
    day.parity = {
        "forms": forms,  # of a kernel that are compared with its reference
        "nodes": nodes,  # of a block
        "batch": 4,  # rows
        "size": 2048,  # slots of a cache
        "page": 256,  # slots of a page
        "vocab": vocab,  # tokens that a pass over logits reads
    }
    timed = {
        "model": "8B",  # whose heads a call has
        "repeats": 5,  # runs of a program
        "seconds": 0.01,  # of one program, at the best bandwidth
        "resident_bytes": 2**27,  # of all operands of a program: no cache holds them
        "layers": 8,  # operands of a program, at most
    }
    # Timed calls of kernels.
    day.kernels = {
        **timed,
        "forms": forms,  # of the kernels
        "nodes": nodes,  # of a block
        "caches": ((1, 4096), (1, 32768), (8, 4096), (8, 32768)),  # rows, slots
        "page": 256,  # slots of a page
        "cudnn": True,  # whether JAX's cuDNN flash attention runs too, at one node
        "batch": 8,  # rows of logits
        "vocab": vocab,  # tokens
    }
    # Timed calls of the XLA form of tree attention.
    day.stretches = {
        **timed,
        "caches": ((1, 32768), (8, 8192)),  # rows, slots
        "nodes": (1, 64),  # of a block
        "stretches": (512, 2048, 8192, 32768),  # slots of a step
    }
    # Masks of a JSON schema.
    day.masks = {
        # Tokens, and how many of them end a string; 0: those of `tiny`. Of 114,989 that
        # were trained on text about 230 do; with more code in it about 1,000.
        "vocabularies": ((0, 0), (vocab, 230), (vocab, 1000)),
        "nodes": (1, 64),  # at once
        "batches": 8,  # of nodes, in turn
        "calls": 64,  # of a program
        "repeats": 5,  # runs of a program
    }
    llama = {"vocab": vocab, "groups": 8}
    shapes = {
        "1B": {
            **llama,
            "d_model": 2048,
            "layers": 16,
            "heads": 4,
            "head_dim": 64,
            "d_ff": 8192,
            "tied": True,
        },
        "8B": {
            **llama,
            "d_model": 4096,
            "layers": 32,
            "heads": 4,
            "head_dim": 128,
            "d_ff": 14336,
            "tied": False,
        },
    }
    day.models = {
        "shapes": shapes,  # of models, by name; `groups` KV heads of `heads` each
        "rounds": ("1B", "8B"),  # models that decode
        "prefixed": "1B",  # the model whose rows share a prefix
        "trained": "1B",  # the model that is trained
        "forms": forms,  # of the kernels
        "nodes": nodes,  # of a round
        "size": 8192,  # slots of a cache
        "rounds_a_program": 20,  # in one compiled loop
        "repeats": 3,  # runs of a program
        "shared_batch": 256,  # rows that share a prefix
        "prefixes": (1024, 16384),  # tokens
        "suffix": 128,  # slots behind the prefix
        "largest_copied": 1024,  # the longest prefix that is copied for every row
    }
    # Rows and tokens of a batch, and timed updates.
    day.training = {"rows": 4, "window": 2048, "updates": 5}
    return day


def rehearsal() -> ml_collections.ConfigDict:
    """Return settings that a CPU takes."""
    day = chip()
    small = {"repeats": 1, "seconds": 1e-9, "resident_bytes": 1, "cudnn": False}
    day.ceilings.update({"copy_bytes": 2**24, "product_side": 256, "repeats": 1})
    day.parity.update({"forms": ("xla",), "nodes": (1, 8), "size": 256, "page": 64})
    day.parity.vocab = 1000
    day.kernels.update({**small, "forms": ("xla",), "nodes": (1, 8), "vocab": 1000})
    day.kernels.update({"caches": ((1, 256),), "page": 64, "batch": 2})
    day.stretches.update({"repeats": 1, "seconds": 1e-9, "resident_bytes": 1})
    day.stretches.update({"caches": ((1, 512),), "nodes": (1, 8)})
    day.stretches.stretches = (128, 512)
    day.masks.update({"vocabularies": ((0, 0), (8192, 64)), "nodes": (1, 8)})
    day.masks.update({"batches": 2, "calls": 8, "repeats": 1})
    for shape in day.models.shapes.values():
        shape.update({"vocab": 300, "groups": 2, "heads": 2, "head_dim": 8})
        shape.update({"d_model": 32, "layers": 2, "d_ff": 48})
    day.models.update({"forms": ("xla",), "nodes": (1, 8), "size": 64, "repeats": 1})
    day.models.update({"rounds_a_program": 2, "shared_batch": 2, "prefixes": (32, 64)})
    day.models.update({"suffix": 16, "largest_copied": 32})
    day.training.update({"rows": 2, "window": 16, "updates": 1})
    return day
