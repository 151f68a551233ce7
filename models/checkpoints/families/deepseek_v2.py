"""DeepSeek-V2 and V2-Lite (arXiv 2405.04434): latent attention, many small experts.

The files rotate interleaved pairs (2i, 2i + 1); rows are permuted at load, so that
pairs are (i, i + r / 2) as everywhere, and back when they are written. The first layers
are dense, and every token visits the shared experts.
"""

from typing import Any

import numpy as np

from models import transformer
from models.checkpoints import fields, hf, rope, standard

ATTENTION = standard.ATTENTION
OURS = standard.OURS
# Of training, or of the program that reads the file.
UNUSED = (
    "aux_loss_alpha seq_aux ep_size router_aux_loss_coef output_router_logits "
    "head_dim qk_head_dim num_key_value_heads"
)


def _pairs(turned: int, inverse: bool = False) -> np.ndarray:
    """Return the order in which interleaved pairs become halves, or its inverse."""
    order = np.arange(turned).reshape(-1, 2).T.reshape(-1)
    return np.argsort(order) if inverse else order


def _turn(c: hf.Config, x: Any, inverse: bool) -> Any:
    """Permute the rotated rows, the last of the second axis of x [.., rows, in]."""
    assert c.latent is not None
    turned = c.latent.turned
    rest = np.arange(x.shape[-2] - turned)
    last = len(rest) + _pairs(turned, inverse)
    return x[..., np.concatenate([rest, last]), :]


def _join_queries(c: hf.Config, theirs: Any) -> Any:
    heads = theirs[0].reshape(c.n_heads, -1, theirs[0].shape[1])
    return _turn(c, heads, False).transpose(2, 0, 1)


def _split_queries(c: hf.Config, x: Any) -> tuple:
    heads = _turn(c, x.transpose(1, 2, 0), True)
    return (heads.reshape(-1, heads.shape[2]),)


QUERIES = hf.Layout(_join_queries, _split_queries)
LATENTS = hf.Layout(
    lambda c, t: _turn(c, t[0], False).T, lambda c, x: (_turn(c, x.T, True),)
)
BASES = hf.Layout(  # rows of every head, of keys, then of values
    lambda c, t: t[0].reshape(c.n_heads, -1, t[0].shape[1]).swapaxes(1, 2),
    lambda c, x: (x.swapaxes(1, 2).reshape(-1, x.shape[1]),),
)


def read(f: fields.Fields) -> hf.Config:
    count = f.integer("num_hidden_layers")
    f.fixed("attention_bias", False)
    f.fixed("mlp_bias", False)
    f.fixed("scoring_func", "softmax")
    f.fixed("norm_topk_prob", False)
    f.fixed("moe_layer_freq", 1)
    groups = f.integer("n_group", 1) or 1
    kept = f.integer("topk_group", 1) or 1
    method = f.take("topk_method", "greedy")
    if method not in ("greedy", "group_limited_greedy"):
        raise f.wrong("topk_method", "'greedy' or 'group_limited_greedy'")
    if method == "greedy":
        groups = kept = 1
    width = f.integer("moe_intermediate_size", 1407)
    experts = transformer.Experts(
        f.integer("n_routed_experts", f.integer("num_experts", 64)),
        f.integer("num_experts_per_tok"),
        width,
        normalised=False,
        scale=f.number("routed_scaling_factor", 1.0),
        groups=groups,
        kept_groups=kept,
        shared=width * f.integer("n_shared_experts", 2),
    )
    latent = transformer.Latent(
        f.integer("kv_lora_rank", 512),
        f.integer("qk_rope_head_dim", 64),
        f.integer("qk_nope_head_dim", 128),
        f.integer("v_head_dim", 128),
        f.integer("q_lora_rank", 0) if "q_lora_rank" in f.data else 1536,
    )
    dense = f.integer("first_k_dense_replace", 0, least=0)
    for name in UNUSED.split():
        f.take(name, None)
    out = standard.shape(f)
    out.update(n_kv_heads=1, head_dim=latent.rank + latent.turned)
    raw = rope.parameters(f, 10000.0)
    spun = rope.build(raw, latent.turned, out["max_positions"], f.where)
    scale = (latent.plain + latent.turned) ** -0.5
    if raw.get("mscale_all_dim"):
        scale *= rope.yarn_growth(raw, raw["mscale_all_dim"]) ** 2
    c = transformer.Config(**out, ropes=(spun,), latent=latent, attention_scale=scale)
    shapes = [
        standard.layer(c, i, experts=None if i < dense else experts)
        for i in range(count)
    ]
    return standard.shaped(c, shapes)


def write(c: hf.Config) -> dict[str, Any]:
    layers = [c.layer(i) for i in range(c.n_layers)]
    e = next(layer.experts for layer in layers if layer.experts)
    a = c.latent
    assert a is not None
    return standard.write(
        c,
        num_key_value_heads=c.n_heads,
        head_dim=a.turned,
        kv_lora_rank=a.rank,
        q_lora_rank=a.query_rank or None,
        qk_rope_head_dim=a.turned,
        qk_nope_head_dim=a.plain,
        v_head_dim=a.value,
        first_k_dense_replace=sum(not layer.experts for layer in layers),
        n_routed_experts=e.count,
        num_experts_per_tok=e.active,
        moe_intermediate_size=e.width,
        n_shared_experts=e.shared // e.width,
        routed_scaling_factor=e.scale,
        topk_method="greedy" if e.groups == 1 else "group_limited_greedy",
        n_group=e.groups,
        topk_group=e.kept_groups,
        norm_topk_prob=e.normalised,
    )


def has_latent_queries(c: hf.Config) -> bool:
    return c.latent is not None and bool(c.latent.query_rank)


SHARED = "layers.{i}.mlp.shared_experts."

FAMILY = hf.Family(
    model_type="deepseek_v2",
    architectures=("DeepseekV2ForCausalLM",),
    entries=(
        *standard.TOP,
        *standard.NORMS,
        hf.Entry(
            OURS + "query_heads",
            (ATTENTION + "q_proj.weight",),
            QUERIES,
            lambda c: not has_latent_queries(c),
        ),
        hf.Entry(
            OURS + "query_heads",
            (ATTENTION + "q_b_proj.weight",),
            QUERIES,
            has_latent_queries,
        ),
        hf.Entry(OURS + "query_in", (ATTENTION + "q_a_proj.weight",), hf.KERNEL),
        *hf.norm(OURS + "query_norm", ATTENTION + "q_a_layernorm"),
        hf.Entry(
            OURS + "latent_in", (ATTENTION + "kv_a_proj_with_mqa.weight",), LATENTS
        ),
        *hf.norm(OURS + "latent_norm", ATTENTION + "kv_a_layernorm"),
        hf.Entry(OURS + "bases", (ATTENTION + "kv_b_proj.weight",), BASES),
        hf.Entry(OURS + "out", (ATTENTION + "o_proj.weight",), hf.KERNEL),
        *standard.PROJECTIONS[-4:],
        *standard.experts(
            "mlp.gate", "mlp.experts.{j}", "gate_proj", "up_proj", "down_proj"
        ),
        hf.Entry(
            standard.MLP + "shared/up",
            (SHARED + "gate_proj.weight", SHARED + "up_proj.weight"),
            hf.KERNEL_PAIR,
        ),
        hf.Entry(
            standard.MLP + "shared/down", (SHARED + "down_proj.weight",), hf.KERNEL
        ),
    ),
    read=read,
    write=write,
    ignored=standard.BUFFERS,
    alternatives=(standard.FUSED_EXPERTS,),
)
