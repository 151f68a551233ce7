"""OPT (arXiv 2205.01068): learned positions from row 2 on, LayerNorm before, ReLU."""

from typing import Any

from models import transformer
from models.checkpoints import fields, hf

LAYER = "layer_{i}/"
ATTENTION = "layers.{i}.self_attn."
ENTRIES = (
    hf.Entry("embedding/tokens", ("embed_tokens.weight",), hf.SAME),
    hf.Entry("embedding/positions", ("embed_positions.weight",), hf.SAME),
    hf.Entry("embedding/head", ("/lm_head.weight",), hf.SAME),
    *hf.norm("embedding/norm", "final_layer_norm", bias=True),
    *hf.norm(LAYER + "attention_norm", "layers.{i}.self_attn_layer_norm", bias=True),
    hf.Entry(
        LAYER + "attention/qkv",
        tuple(f"{ATTENTION}{x}_proj.weight" for x in "qkv"),
        hf.KERNEL_HEADS,
    ),
    hf.Entry(
        LAYER + "attention/qkv_bias",
        tuple(f"{ATTENTION}{x}_proj.bias" for x in "qkv"),
        hf.HEADS,
    ),
    hf.Entry(LAYER + "attention/out", (ATTENTION + "out_proj.weight",), hf.KERNEL),
    hf.Entry(LAYER + "attention/out_bias", (ATTENTION + "out_proj.bias",), hf.SAME),
    *hf.norm(LAYER + "mlp_norm", "layers.{i}.final_layer_norm", bias=True),
    hf.Entry(LAYER + "mlp/up", ("layers.{i}.fc1.weight",), hf.KERNEL),
    hf.Entry(LAYER + "mlp/up_bias", ("layers.{i}.fc1.bias",), hf.SAME),
    hf.Entry(LAYER + "mlp/down", ("layers.{i}.fc2.weight",), hf.KERNEL),
    hf.Entry(LAYER + "mlp/down_bias", ("layers.{i}.fc2.bias",), hf.SAME),
)


def read(f: fields.Fields) -> hf.Config:
    # The 350M model alone norms after each part and projects its embeddings.
    f.fixed("do_layer_norm_before", True)
    f.fixed("_remove_final_layer_norm", False)
    f.fixed("layer_norm_elementwise_affine", True)
    d_model, n_heads = f.integer("hidden_size"), f.integer("num_attention_heads")
    vocab_size, n_layers = f.integer("vocab_size"), f.integer("num_hidden_layers")
    d_ff, max_positions = f.integer("ffn_dim"), f.integer("max_position_embeddings")
    f.complete()
    f.fixed("word_embed_proj_dim", d_model)
    bias = f.flag("enable_bias", True)
    return transformer.Config(
        vocab_size=vocab_size,
        d_model=d_model,
        n_layers=n_layers,
        n_heads=n_heads,
        n_kv_heads=n_heads,
        head_dim=d_model // n_heads,
        d_ff=d_ff,
        max_positions=max_positions,
        norm="layer",
        activation=f.choice("activation_function", fields.ACTIVATIONS, "relu"),
        gated=False,
        position="learned",
        position_offset=2,
        qkv_bias=bias,
        out_bias=bias,
        mlp_bias=bias,
        tied=f.flag("tie_word_embeddings", True),
    )


def write(c: hf.Config) -> dict[str, Any]:
    return {
        "vocab_size": c.vocab_size,
        "hidden_size": c.d_model,
        "word_embed_proj_dim": c.d_model,
        "num_hidden_layers": c.n_layers,
        "num_attention_heads": c.n_heads,
        "ffn_dim": c.d_ff,
        "max_position_embeddings": c.max_positions,
        "activation_function": c.activation,
        "do_layer_norm_before": True,
        "enable_bias": c.qkv_bias,
        "tie_word_embeddings": c.tied,
    }


FAMILY = hf.Family(
    model_type="opt",
    architectures=("OPTForCausalLM",),
    entries=ENTRIES,
    read=read,
    write=write,
    prefixes=("model.decoder.", "decoder.", ""),
)
