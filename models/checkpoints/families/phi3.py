"""Phi-3, Phi-3.5 mini and Phi-4 (arXiv 2404.14219): fused projections, LongRoPE."""

from typing import Any

from models import transformer
from models.checkpoints import fields, hf, rope, standard

ENTRIES = (
    *standard.TOP,
    *standard.NORMS,
    hf.Entry(
        "layer_{i}/attention/qkv",
        ("layers.{i}.self_attn.qkv_proj.weight",),
        hf.KERNEL_FUSED_HEADS,
    ),
    hf.Entry(
        "layer_{i}/attention/out", ("layers.{i}.self_attn.o_proj.weight",), hf.KERNEL
    ),
    hf.Entry(
        "layer_{i}/mlp/up",
        ("layers.{i}.mlp.gate_up_proj.weight",),
        hf.KERNEL_FUSED_PAIR,
    ),
    hf.Entry("layer_{i}/mlp/down", ("layers.{i}.mlp.down_proj.weight",), hf.KERNEL),
)


def read(f: fields.Fields) -> hf.Config:
    f.fixed("attention_bias", False)
    out = standard.shape(f, rms_norm_eps=1e-5)
    raw = rope.parameters(f, 10000.0)
    original = f.integer("original_max_position_embeddings", 4096)
    if raw["rope_type"] in ("su", "yarn"):
        raw["rope_type"] = "longrope"  # the names of the first Phi-3 files
    if raw["rope_type"] == "longrope":
        raw["original_max_position_embeddings"] = original
    spun = rope.build(raw, out["head_dim"], out["max_positions"], f.where)
    window = f.nullable("sliding_window", 0)
    windows = (window,) * out["n_layers"] if window else ()
    return transformer.Config(**out, ropes=(spun,), windows=windows)


def write(c: hf.Config) -> dict[str, Any]:
    window = c.windows[0] if c.windows else None
    out = standard.write(c, sliding_window=window)
    original = c.ropes[0].original or c.max_positions
    out["original_max_position_embeddings"] = original
    if "rope_scaling" in out:
        # Version 4 reads `type` and the two factor lists, and refuses other keys.
        scaling = out["rope_scaling"]
        factors = {k: scaling[k] for k in ("short_factor", "long_factor")}
        out["rope_scaling"] = {"type": "longrope", **factors}
    return out


FAMILY = hf.Family(
    model_type="phi3",
    architectures=("Phi3ForCausalLM",),
    entries=ENTRIES,
    read=read,
    write=write,
    ignored=standard.BUFFERS,
)
