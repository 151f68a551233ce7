"""Llama 2 and 3 (arXiv 2307.09288, 2407.21783)."""

from typing import Any

from models.checkpoints import fields, hf, standard


def read(f: fields.Fields) -> hf.Config:
    bias = f.flag("attention_bias", False)
    return standard.read(
        f, qkv_bias=bias, out_bias=bias, mlp_bias=f.flag("mlp_bias", False)
    )


def write(c: hf.Config) -> dict[str, Any]:
    return standard.write(c, attention_bias=c.qkv_bias, mlp_bias=c.mlp_bias)


FAMILY = hf.Family(
    model_type="llama",
    architectures=("LlamaForCausalLM",),
    entries=standard.ENTRIES,
    read=read,
    write=write,
    ignored=standard.BUFFERS,
)
