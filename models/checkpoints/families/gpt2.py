"""GPT-2 (Radford et al. 2019): learned positions, LayerNorm, kernels [in, out]."""

from typing import Any

from models import transformer
from models.checkpoints import fields, hf

LAYER = "layer_{i}/"
ENTRIES = (
    hf.Entry("embedding/tokens", ("wte.weight",), hf.SAME),
    hf.Entry("embedding/positions", ("wpe.weight",), hf.SAME),
    hf.Entry("embedding/head", ("/lm_head.weight",), hf.SAME),
    *hf.norm("embedding/norm", "ln_f", bias=True),
    *hf.norm(LAYER + "attention_norm", "h.{i}.ln_1", bias=True),
    hf.Entry(
        LAYER + "attention/qkv", ("h.{i}.attn.c_attn.weight",), hf.TRANSPOSED_HEADS
    ),
    hf.Entry(LAYER + "attention/qkv_bias", ("h.{i}.attn.c_attn.bias",), hf.FUSED_HEADS),
    hf.Entry(LAYER + "attention/out", ("h.{i}.attn.c_proj.weight",), hf.SAME),
    hf.Entry(LAYER + "attention/out_bias", ("h.{i}.attn.c_proj.bias",), hf.SAME),
    *hf.norm(LAYER + "mlp_norm", "h.{i}.ln_2", bias=True),
    hf.Entry(LAYER + "mlp/up", ("h.{i}.mlp.c_fc.weight",), hf.SAME),
    hf.Entry(LAYER + "mlp/up_bias", ("h.{i}.mlp.c_fc.bias",), hf.SAME),
    hf.Entry(LAYER + "mlp/down", ("h.{i}.mlp.c_proj.weight",), hf.SAME),
    hf.Entry(LAYER + "mlp/down_bias", ("h.{i}.mlp.c_proj.bias",), hf.SAME),
)


def read(f: fields.Fields) -> hf.Config:
    f.fixed("scale_attn_by_inverse_layer_idx", False)
    f.fixed("add_cross_attention", False)
    f.flag("reorder_and_upcast_attn", False)  # only the order of the products
    d_model, n_heads = f.integer("n_embd"), f.integer("n_head")
    scaled = f.flag("scale_attn_weights", True)
    vocab_size, n_layers = f.integer("vocab_size"), f.integer("n_layer")
    max_positions = f.integer("n_positions")
    f.complete()
    return transformer.Config(
        vocab_size=vocab_size,
        d_model=d_model,
        n_layers=n_layers,
        n_heads=n_heads,
        n_kv_heads=n_heads,
        head_dim=d_model // n_heads,
        d_ff=f.integer("n_inner", 4 * d_model),
        max_positions=max_positions,
        norm="layer",
        norm_eps=f.number("layer_norm_epsilon", 1e-5),
        activation=f.choice("activation_function", fields.ACTIVATIONS, "gelu_new"),
        gated=False,
        position="learned",
        attention_scale=0.0 if scaled else 1.0,
        qkv_bias=True,
        out_bias=True,
        mlp_bias=True,
        tied=f.flag("tie_word_embeddings", True),
    )


def write(c: hf.Config) -> dict[str, Any]:
    return {
        "vocab_size": c.vocab_size,
        "n_embd": c.d_model,
        "n_layer": c.n_layers,
        "n_head": c.n_heads,
        "n_inner": c.d_ff,
        "n_positions": c.max_positions,
        "layer_norm_epsilon": c.norm_eps,
        "activation_function": {"gelu_tanh": "gelu_new"}.get(
            c.activation, c.activation
        ),
        "scale_attn_weights": c.attention_scale != 1.0,
        "tie_word_embeddings": c.tied,
    }


FAMILY = hf.Family(
    model_type="gpt2",
    architectures=("GPT2LMHeadModel",),
    entries=ENTRIES,
    read=read,
    write=write,
    prefixes=("transformer.", ""),
    ignored=("*h.*.attn.bias", "*h.*.attn.masked_bias"),  # causal masks as buffers
)
