"""Qwen 3, dense (arXiv 2505.09388): a norm on every head of q and k, no biases."""

from typing import Any

from models.checkpoints import fields, hf, standard
from models.checkpoints.families import qwen2


def read(f: fields.Fields) -> hf.Config:
    bias = f.flag("attention_bias", False)
    f.integer("head_dim", 128)
    f.data = {"head_dim": 128, **f.data}  # not hidden_size / heads, unlike Llama
    return standard.read(
        f, qkv_bias=bias, out_bias=bias, qk_norm=True, windows=qwen2.windows(f)
    )


def write(c: hf.Config) -> dict[str, Any]:
    extra = {"attention_bias": c.qkv_bias, **qwen2.written_windows(c)}
    return standard.write(c, **extra)


FAMILY = hf.Family(
    model_type="qwen3",
    architectures=("Qwen3ForCausalLM",),
    entries=standard.ENTRIES,
    read=read,
    write=write,
    ignored=standard.BUFFERS,
)
