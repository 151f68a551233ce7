"""A day with an accelerator: parity, bandwidth, models and training, in one command.

python -m experiments.run --config=configs/studies/accelerator_day.py --workdir=runs/day

On a Hopper GPU or a TPU host: every kernel beside its reference; tree attention (rows
and pages), passes over logits and stretches of the XLA form as shares of a copy's
bandwidth, with calls chained in one program; plain steps and rounds with trees of 1B
and 8B shapes; rows that share a prefix; the MFU of a 1B model's training. Elsewhere the
same stages run on small shapes, as a rehearsal. A piece that fails tells why and the
others go on; the same command resumes after a kill.

Hardware: one H100 or H200, or a TPU of 32 GiB; under ten minutes. Three minutes of two
CPU cores for the rehearsal.
Expected: every case equal, and the shares that the report says it is held to.
"""

import ml_collections


def get_config() -> ml_collections.ConfigDict:
    config = ml_collections.ConfigDict()
    config.stage = "accelerator_day"
    config.chip = settings()
    config.rehearsal = rehearsal()
    return config


def settings() -> ml_collections.ConfigDict:
    """Return the settings on an accelerator."""
    forms, nodes = ("xla", "pallas"), (1, 16, 64)
    vocab = 128256
    day = ml_collections.ConfigDict()
    day.ceilings = {"copy_bytes": 2**32, "product_side": 8192, "repeats": 5}
    day.parity = {
        "forms": forms,
        "nodes": nodes,
        "batch": 4,
        "size": 2048,
        "page": 256,
        "vocab": vocab,
    }
    common = {
        "model": "8B",
        "repeats": 5,
        "seconds": 0.01,  # of one program, at the bandwidth of a copy
        "resident_bytes": 2**27,  # of all operands of a program: no cache holds them
        "layers": 8,  # at most
    }
    day.kernels = {
        **common,
        "forms": forms,
        "nodes": nodes,
        "caches": ((1, 4096), (1, 32768), (8, 4096), (8, 32768)),  # rows, slots
        "page": 256,
        "cudnn": True,  # JAX's cuDNN flash attention, at one node
        "batch": 8,
        "vocab": vocab,
    }
    day.stretches = {
        **common,
        "caches": ((1, 32768), (8, 8192)),
        "nodes": (1, 64),
        "stretches": (512, 2048, 8192, 32768),
    }
    llama = {"vocab": vocab, "groups": 8}
    day.models = {
        "shapes": {
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
        },
        "rounds": ("1B", "8B"),
        "prefixed": "1B",
        "trained": "1B",
        "forms": forms,
        "nodes": nodes,
        "size": 8192,
        "rounds_a_program": 20,
        "repeats": 3,
        "shared_batch": 256,
        "prefixes": (1024, 16384),
        "suffix": 128,
        "largest_copied": 1024,
    }
    day.training = {"rows": 4, "window": 2048, "updates": 5}
    return day


def rehearsal() -> ml_collections.ConfigDict:
    """Return settings that a CPU takes."""
    day = settings()
    small = {"repeats": 1, "seconds": 1e-9, "resident_bytes": 1, "cudnn": False}
    day.ceilings.update({"copy_bytes": 2**24, "product_side": 256, "repeats": 1})
    day.parity.update({"forms": ("xla",), "nodes": (1, 8), "size": 256, "page": 64})
    day.parity.vocab = 1000
    day.kernels.update({**small, "forms": ("xla",), "nodes": (1, 8), "vocab": 1000})
    day.kernels.update({"caches": ((1, 256),), "page": 64, "batch": 2})
    day.stretches.update({"repeats": 1, "seconds": 1e-9, "resident_bytes": 1})
    day.stretches.update({"caches": ((1, 512),), "nodes": (1, 8)})
    day.stretches.stretches = (128, 512)
    for shape in day.models.shapes.values():
        shape.update({"vocab": 300, "groups": 2, "heads": 2, "head_dim": 8})
        shape.update({"d_model": 32, "layers": 2, "d_ff": 48})
    day.models.update({"forms": ("xla",), "nodes": (1, 8), "size": 64, "repeats": 1})
    day.models.update({"rounds_a_program": 2, "shared_batch": 2, "prefixes": (32, 64)})
    day.models.update({"suffix": 16, "largest_copied": 32})
    day.training.update({"rows": 2, "window": 16, "updates": 1})
    return day
