"""SDAR, dense: masked diffusion by blocks, on Qwen 3's blocks and names.

Cheng et al., *SDAR: A Synergistic Diffusion-AutoRegression Paradigm for Scalable
Sequence Generation*, 2025, arXiv 2510.06303. A position sees its own block and those
before it, and its output is of itself. config.json has `block_size` and
`mask_token_id`; the defaults are those of the 4B release.
"""

import dataclasses
from typing import Any

from models.checkpoints import fields, hf, standard
from models.checkpoints.families import qwen3

MASK, BLOCK = 151669, 4
# Of the training's code.
UNUSED = (
    *("debug", "ep_size", "fuse_cross_entropy", "micro_forward"),
    *("skip_checkpoint", "use_deepep"),
)


def read(f: fields.Fields) -> hf.Config:
    for name in UNUSED:
        f.take(name, None)
    return dataclasses.replace(
        qwen3.read(f),
        mask_token=MASK,
        visibility=("block_causal",),
        block_size=BLOCK,
    )


def write(c: hf.Config) -> dict[str, Any]:
    # Upstream's code reads it without a default.
    return {**qwen3.write(c), "fuse_cross_entropy": True}


FAMILY = hf.Family(
    model_type="sdar",
    architectures=("SDARForCausalLM",),
    entries=standard.ENTRIES,
    read=read,
    write=write,
    ignored=standard.BUFFERS,
)
