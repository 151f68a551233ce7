"""LLaDA-8B and LLaDA 1.5: masked diffusion on Llama blocks, with OLMo's names.

Nie et al., *Large Language Diffusion Models*, 2025, arXiv 2502.09992. A block's
`ff_proj` is the gate and its `ff_out` the way down; the top's `ff_out` is the head.
Every position sees all others, and its output is of itself. Of the variants of
upstream's config.json those of the released checkpoints are read.
"""

from typing import Any

from models import transformer
from models.checkpoints import fields, hf, rope

BLOCK = "blocks.{i}."
ATTENTION = "layer_{i}/attention/"
MLP = "layer_{i}/mlp/"
ENTRIES = (
    hf.Entry("embedding/tokens", ("wte.weight",), hf.SAME),
    hf.Entry("embedding/head", ("ff_out.weight",), hf.SAME),
    *hf.norm("embedding/norm", "ln_f"),
    *hf.norm("layer_{i}/attention_norm", BLOCK + "attn_norm"),
    *hf.norm("layer_{i}/mlp_norm", BLOCK + "ff_norm"),
    hf.Entry(
        ATTENTION + "qkv",
        tuple(f"{BLOCK}{x}_proj.weight" for x in "qkv"),
        hf.KERNEL_HEADS,
    ),
    hf.Entry(
        ATTENTION + "qkv_bias", tuple(f"{BLOCK}{x}_proj.bias" for x in "qkv"), hf.HEADS
    ),
    hf.Entry(ATTENTION + "out", (BLOCK + "attn_out.weight",), hf.KERNEL),
    hf.Entry(
        MLP + "up", (BLOCK + "ff_proj.weight", BLOCK + "up_proj.weight"), hf.KERNEL_PAIR
    ),
    hf.Entry(MLP + "down", (BLOCK + "ff_out.weight",), hf.KERNEL),
)
MASK = 126336  # of LLaDA-8B and 1.5
# Upstream's defaults are other ones: the checkpoint must name them.
NAMED = {
    "block_type": "llama",
    "activation_type": "silu",
    "layer_norm_type": "rms",
    "rope": True,
}
# Variants of upstream's code that no released checkpoint has, by their off value.
OFF = {
    "alibi": False,
    "attention_layer_norm": False,
    "bias_for_layer_norm": False,
    "block_group_size": 1,
    "include_bias": False,
    "input_emb_norm": False,
    "layer_norm_with_affine": True,
    "multi_query_attention": False,
    "rope_full_precision": True,
    "scale_logits": False,
}
UNUSED = (
    *("alibi_bias_max", "attention_layer_norm_with_affine", "flash_attention"),
    *("flash_attn_varlen", "init_cutoff_factor", "init_device", "init_fn"),
    *("mlp_ratio", "precision", "residual_dropout"),
)

DROPOUTS = ("attention_dropout", "embedding_dropout", "residual_dropout")


def read(f: fields.Fields) -> hf.Config:
    for name in NAMED:
        f.take(name)
    f.complete()
    for name, only in {**NAMED, **OFF}.items():
        f.fixed(name, only)
    for name in UNUSED:
        f.take(name, None)
    d_model, n_heads = f.integer("d_model"), f.integer("n_heads")
    vocab_size, n_layers = f.integer("vocab_size"), f.integer("n_layers")
    d_ff, longest = f.integer("mlp_hidden_size"), f.integer("max_sequence_length")
    f.complete()
    f.fixed("embedding_size", vocab_size)
    raw = rope.normal({"rope_theta": f.number("rope_theta", 10000.0)})
    spun = rope.build(raw, d_model // n_heads, longest, f.where)
    return transformer.Config(
        vocab_size=vocab_size,
        d_model=d_model,
        n_layers=n_layers,
        n_heads=n_heads,
        n_kv_heads=f.integer("n_kv_heads", n_heads),
        head_dim=d_model // n_heads,
        d_ff=d_ff,
        max_positions=longest,
        norm_eps=f.number("rms_norm_eps", 1e-5),
        ropes=(spun,),
        qkv_bias=f.flag("include_qkv_bias", False),
        tied=f.flag("weight_tying", True),
        mask_token=MASK,
        visibility=("bidirectional",),
    )


def write(c: hf.Config) -> dict[str, Any]:
    return {
        **NAMED,
        **OFF,
        "multi_query_attention": None,  # false is many heads, whatever n_kv_heads says
        "d_model": c.d_model,
        "n_heads": c.n_heads,
        "n_kv_heads": c.n_kv_heads,
        "n_layers": c.n_layers,
        "mlp_hidden_size": c.d_ff,
        "vocab_size": c.vocab_size,
        "embedding_size": c.vocab_size,
        "max_sequence_length": c.max_positions,
        "rms_norm_eps": c.norm_eps,
        "rope_theta": rope.written(c.ropes[0])["rope_theta"],
        "include_qkv_bias": c.qkv_bias,
        "weight_tying": c.tied,
        **dict.fromkeys(DROPOUTS, 0.0),  # upstream's defaults are 0.1
    }


FAMILY = hf.Family(
    model_type="llada",
    architectures=("LLaDAModelLM",),
    entries=ENTRIES,
    read=read,
    write=write,
    prefixes=("model.transformer.", "transformer.", ""),
)
