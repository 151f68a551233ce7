"""OLMo 2 (arXiv 2501.00656): norms after sublayers alone, and of all heads."""

from typing import Any

from models.checkpoints import fields, hf, standard

VARIANTS: dict[str, Any] = {
    "pre_norms": False,
    "post_norms": True,
    "qk_norm": True,
    "qk_norm_whole": True,
}
AT = "layers.{i}."

ENTRIES = (
    *standard.TOP,
    *hf.norm("layer_{i}/post_attention_norm", AT + "post_attention_layernorm"),
    *hf.norm("layer_{i}/post_mlp_norm", AT + "post_feedforward_layernorm"),
    *standard.PROJECTIONS,
)


def read(f: fields.Fields) -> hf.Config:
    bias = f.flag("attention_bias", False)
    f.data = {"rms_norm_eps": 1e-5, **f.data}
    return standard.read(f, qkv_bias=bias, out_bias=bias, **VARIANTS)


def write(c: hf.Config) -> dict[str, Any]:
    return standard.write(c, attention_bias=c.qkv_bias)


FAMILY = hf.Family(
    model_type="olmo2",
    architectures=("Olmo2ForCausalLM",),
    entries=ENTRIES,
    read=read,
    write=write,
    ignored=standard.BUFFERS,
)
