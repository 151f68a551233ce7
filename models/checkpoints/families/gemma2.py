"""Gemma 2 (arXiv 2408.00118): post-norms, soft caps, every other layer slides."""

from typing import Any

from models import transformer
from models.checkpoints import fields, hf, rope, standard

NORMS = (
    *hf.norm("layer_{i}/attention_norm", "layers.{i}.input_layernorm"),
    *hf.norm("layer_{i}/post_attention_norm", "layers.{i}.post_attention_layernorm"),
    *hf.norm("layer_{i}/mlp_norm", "layers.{i}.pre_feedforward_layernorm"),
    *hf.norm("layer_{i}/post_mlp_norm", "layers.{i}.post_feedforward_layernorm"),
)
ENTRIES = (*standard.TOP, *NORMS, *standard.PROJECTIONS)
# The defaults of HF's config classes, which published files rely on.
DEFAULTS = {"num_attention_heads": 8, "num_key_value_heads": 4, "head_dim": 256}


def shape(f: fields.Fields, period: int, **defaults: Any) -> dict[str, Any]:
    """Read the fields of Gemma 2 and 3; layer i is full where (i + 1) % period == 0."""
    out = standard.shape(f, **{"tied": True, **DEFAULTS, **defaults})
    f.fixed("use_bidirectional_attention", False)
    bias = f.flag("attention_bias", False)
    default = [
        fields.SLIDING if (i + 1) % period else fields.FULL
        for i in range(out["n_layers"])
    ]
    kinds = fields.layer_types(f, out["n_layers"], default)
    return {
        **out,
        "activation": f.choice(
            "hidden_activation", fields.ACTIVATIONS, "gelu_pytorch_tanh"
        ),
        "windows": fields.windows(kinds, f.nullable("sliding_window", 4096)),
        "attention_scale": f.number("query_pre_attn_scalar", 256) ** -0.5,
        "embed_scale": out["d_model"] ** 0.5,
        "norm_offset": 1.0,
        "post_norms": True,
        "qkv_bias": bias,
        "out_bias": bias,
    }


def dims(c: hf.Config) -> dict[str, Any]:
    """Return the fields of config.json that `shape` reads."""
    out = standard.dims(c)
    out["hidden_activation"] = out["hidden_act"]
    scalar = round(c.attention_scale**-2, 6)
    return {
        **out,
        "attention_bias": c.qkv_bias,
        "query_pre_attn_scalar": int(scalar) if scalar == int(scalar) else scalar,
        "sliding_window": max(c.windows) if c.windows else 4096,
        "layer_types": fields.kinds(c.windows, c.n_layers),
        "final_logit_softcapping": c.final_softcap or None,
        "attn_logit_softcapping": c.attention_softcap or None,
    }


def cap(f: fields.Fields, name: str, default: float) -> float:
    """Read a soft cap: null switches it off, absence means the default."""
    return f.number(name, 0.0) if name in f.data else default


def read(f: fields.Fields) -> hf.Config:
    f.take("hidden_act", None)  # superseded by hidden_activation
    out = shape(f, period=2)
    raw = rope.parameters(f, 10000.0)
    spun = rope.build(raw, out["head_dim"], out["max_positions"], f.where)
    return transformer.Config(
        **out,
        ropes=(spun,),
        final_softcap=cap(f, "final_logit_softcapping", 30.0),
        attention_softcap=cap(f, "attn_logit_softcapping", 50.0),
    )


def write(c: hf.Config) -> dict[str, Any]:
    return {**dims(c), **rope.spellings(c.ropes[0])}


FAMILY = hf.Family(
    model_type="gemma2",
    architectures=("Gemma2ForCausalLM",),
    entries=ENTRIES,
    read=read,
    write=write,
    ignored=standard.BUFFERS,
)
