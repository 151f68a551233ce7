"""Qwen 3, mixtures of experts (arXiv 2505.09388): Qwen 3's attention, 128 experts.

A layer has experts unless `mlp_only_layers` names it, or `decoder_sparse_step` passes
it. No expert is shared.
"""

from typing import Any

from models import transformer
from models.checkpoints import fields, hf, standard
from models.checkpoints.families import qwen3


def read(f: fields.Fields) -> hf.Config:
    count = f.integer("num_hidden_layers")
    experts = transformer.Experts(
        f.integer("num_experts", f.integer("num_local_experts", 128)),
        f.integer("num_experts_per_tok", 8),
        f.integer("moe_intermediate_size", 768),
        normalised=f.flag("norm_topk_prob", False),
    )
    dense = f.take("mlp_only_layers", [])
    step = f.integer("decoder_sparse_step", 1)
    if not isinstance(dense, list):
        raise f.wrong("mlp_only_layers", "a list of layers")
    for name in ("router_aux_loss_coef", "output_router_logits"):  # of training
        f.take(name, None)
    sparse = [i not in dense and (i + 1) % step == 0 for i in range(count)]
    c = qwen3.read(f)
    shapes = [
        standard.layer(c, i, experts=experts if sparse[i] else None)
        for i in range(count)
    ]
    return standard.shaped(c, shapes)


def write(c: hf.Config) -> dict[str, Any]:
    layers = [c.layer(i) for i in range(c.n_layers)]
    e = next(layer.experts for layer in layers if layer.experts)
    return {
        **qwen3.write(c),
        "num_experts": e.count,
        "num_experts_per_tok": e.active,
        "moe_intermediate_size": e.width,
        "norm_topk_prob": e.normalised,
        "decoder_sparse_step": 1,
        "mlp_only_layers": [i for i, layer in enumerate(layers) if not layer.experts],
    }


FAMILY = hf.Family(
    model_type="qwen3_moe",
    architectures=("Qwen3MoeForCausalLM",),
    entries=(
        *standard.ENTRIES,
        *standard.experts(
            "mlp.gate", "mlp.experts.{j}", "gate_proj", "up_proj", "down_proj"
        ),
    ),
    read=read,
    write=write,
    ignored=standard.BUFFERS,
    alternatives=(standard.FUSED_EXPERTS,),
)
