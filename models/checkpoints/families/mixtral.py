"""Mixtral (arXiv 2401.04088): Mistral with 8 experts in every layer, 2 a token."""

from typing import Any

from models import transformer
from models.checkpoints import fields, hf, standard


def read(f: fields.Fields) -> hf.Config:
    window, count = f.nullable("sliding_window", 0), f.integer("num_hidden_layers")
    experts = transformer.Experts(
        f.integer("num_local_experts", 8),
        f.integer("num_experts_per_tok", 2),
        f.integer("intermediate_size", 14336),
    )
    for name in ("router_aux_loss_coef", "output_router_logits", "router_jitter_noise"):
        f.take(name, None)  # of training
    c = standard.read(f, theta=1e6)
    shape = standard.layer(c, 0, window=window, experts=experts)
    return standard.shaped(c, [shape] * count)


def write(c: hf.Config) -> dict[str, Any]:
    shape = c.layer(0)
    e = shape.experts
    assert e is not None
    return standard.write(
        c,
        intermediate_size=e.width,
        num_local_experts=e.count,
        num_experts_per_tok=e.active,
        sliding_window=shape.window or None,
    )


BLOCK = "block_sparse_moe."

FAMILY = hf.Family(
    model_type="mixtral",
    architectures=("MixtralForCausalLM",),
    entries=(
        *standard.ENTRIES,
        *standard.experts(BLOCK + "gate", BLOCK + "experts.{j}", "w1", "w3", "w2"),
    ),
    read=read,
    write=write,
    ignored=standard.BUFFERS,
    alternatives=(standard.FUSED_EXPERTS,),
)
