"""Dream-7B: masked diffusion on Qwen 2.5's blocks and names.

Ye et al., *Dream 7B: Diffusion Large Language Models*, 2025, arXiv 2508.15487. Every
position sees all others. The head is still that of the autoregressive model it began
as: the output of position i is of position i + 1.
"""

from typing import Any

from models.checkpoints import fields, hf, standard

MASK = 151666  # of Dream-7B


def read(f: fields.Fields) -> hf.Config:
    f.fixed("use_sliding_window", False)  # upstream's code warns, and has no windows
    f.take("sliding_window", None)
    return standard.read(
        f,
        qkv_bias=True,
        mask_token=MASK,
        visibility=("bidirectional",),
        alignment="shifted",
    )


def write(c: hf.Config) -> dict[str, Any]:
    return standard.write(c, use_sliding_window=False, sliding_window=None)


FAMILY = hf.Family(
    model_type="Dream",
    architectures=("DreamModel",),
    entries=standard.ENTRIES,
    read=read,
    write=write,
    ignored=standard.BUFFERS,
)
