"""Gemma 4, dense text (12B, 31B): layers of two shapes, keys that are values.

Sliding layers have heads of `head_dim`; full ones of `global_head_dim`, fewer KV heads,
a quarter of each head rotated, and with `attention_k_eq_v` no value of their own. The
image models are read as language models. Refused: the mixture of 26B, and the tables
for each layer of E2B and E4B, which share keys among layers.
"""

from typing import Any

from models import transformer
from models.checkpoints import fields, hf, rope, standard
from models.checkpoints.families import gemma2, gemma3

DEFAULTS = {"num_attention_heads": 8, "num_key_value_heads": 4, "head_dim": 256}
ROPES: dict[str, dict[str, Any]] = {
    fields.FULL: {
        "rope_type": "proportional",
        "partial_rotary_factor": 0.25,
        "rope_theta": 1e6,
    },
    fields.SLIDING: {"rope_type": "default", "rope_theta": 10000.0},
}
TOWERS = (*gemma3.VISION, "*audio_tower.*", "*embed_vision.*", "*embed_audio.*")
OUTER = (
    "vision_config audio_config boi_token_id eoi_token_id image_token_id boa_token_id "
    "eoa_token_id audio_token_id video_token_id boa_token_index eoa_token_index "
    "initializer_range tie_word_embeddings vision_soft_tokens_per_image"
)


def read(f: fields.Fields) -> hf.Config:
    if "text_config" in f.data:
        for name in OUTER.split():
            f.take(name, None)
        text = fields.Fields(f.mapping("text_config"), f"{f.where} (text_config)")
        config = read(text)
        text.finish()
        return config
    f.fixed("enable_moe_block", False)
    f.fixed("num_kv_shared_layers", 0)
    f.fixed("use_double_wide_mlp", False)
    f.fixed("attention_bias", False)
    f.fixed("use_bidirectional_attention", None)
    if f.take("hidden_size_per_layer_input", 256) != 0:
        f.data.setdefault("hidden_size_per_layer_input", 256)
        raise f.wrong(
            "hidden_size_per_layer_input", "0 (tables for each layer are not read)"
        )
    for name in ("vocab_size_per_layer_input", "num_experts", "top_k_experts"):
        f.take(name, None)
    f.take("moe_intermediate_size", None)
    f.take("hidden_act", None)
    out = standard.shape(f, tied=True, **DEFAULTS)
    count = out["n_layers"]
    default = [fields.SLIDING if (i + 1) % 6 else fields.FULL for i in range(count)]
    kinds = fields.layer_types(f, count, default)
    window = f.integer("sliding_window", 512)
    is_value = f.flag("attention_k_eq_v", False)
    dim = f.integer("global_head_dim", 512)
    groups = f.integer("num_global_key_value_heads", out["n_kv_heads"])
    overrides = f.mapping("per_layer_config")
    groups = groups if is_value else out["n_kv_heads"]
    given = {**ROPES, **f.mapping("rope_parameters")}
    shapes, spun = [], {}
    for i, kind in enumerate(kinds):
        wide = kind == fields.FULL
        own = overrides.get(str(i), {})
        if not overrides and wide:
            own = {"head_dim": dim, "num_key_value_heads": groups}
        size = own.get("head_dim", out["head_dim"])
        spun[kind] = rope.build(
            rope.normal(given[kind]), size, out["max_positions"], f.where
        )
        shapes.append(
            transformer.LayerShape(
                own.get("num_key_value_heads", out["n_kv_heads"]),
                size,
                out["d_ff"],
                0 if wide else window,
                0 if wide else 1,
                key_is_value=wide and is_value,
            )
        )
    spun = {
        kind: spun.get(kind)
        or rope.build(given[kind], out["head_dim"], out["max_positions"], f.where)
        for kind in (fields.FULL, fields.SLIDING)
    }
    activation = f.choice("hidden_activation", fields.ACTIVATIONS, "gelu_pytorch_tanh")
    config = transformer.Config(
        **{**out, "activation": activation},
        ropes=tuple(spun.values()),
        attention_scale=1.0,
        embed_scale=out["d_model"] ** 0.5,
        final_softcap=gemma2.cap(f, "final_logit_softcapping", 0.0),
        qk_norm=True,
        v_norm=True,
        layer_scalar=True,
        post_norms=True,
    )
    return standard.shaped(config, shapes)


def write(c: hf.Config) -> dict[str, Any]:
    full, sliding = (rope.written(spun) for spun in c.ropes)
    layers = [c.layer(i) for i in range(c.n_layers)]
    own = {
        str(i): {"head_dim": x.head_dim, "num_key_value_heads": x.n_kv_heads}
        for i, x in enumerate(layers)
        if (x.head_dim, x.n_kv_heads) != (c.head_dim, c.n_kv_heads)
    }
    wide = [x for x in layers if not x.window] or layers
    out = standard.dims(c)
    out["hidden_activation"] = out["hidden_act"]
    return {
        **out,
        "hidden_size_per_layer_input": 0,
        "layer_types": fields.kinds(c.every_window, c.n_layers),
        "sliding_window": max(c.every_window, default=512),
        "attention_k_eq_v": any(x.key_is_value for x in layers),
        "global_head_dim": wide[0].head_dim,
        "num_global_key_value_heads": wide[0].n_kv_heads,
        "per_layer_config": own,
        "rope_parameters": {fields.FULL: full, fields.SLIDING: sliding},
        "final_logit_softcapping": c.final_softcap or None,
    }


def has_values(c: hf.Config) -> bool:
    return not c.layer(0).key_is_value


QUERY_KEY = tuple(f"{standard.ATTENTION}{x}_proj.weight" for x in "qk")
QKV = standard.OURS + "qkv"

FAMILY = hf.Family(
    model_type="gemma4_text",
    architectures=("Gemma4ForCausalLM", "Gemma4ForConditionalGeneration"),
    entries=(
        *(
            entry._replace(of=has_values) if entry.ours == QKV else entry
            for entry in gemma2.ENTRIES
        ),
        hf.Entry(QKV, QUERY_KEY, hf.KERNEL_HEADS, lambda c: c.layer(0).key_is_value),
        hf.Entry("layer_{i}/scalar", ("layers.{i}.layer_scalar",), hf.SAME),
    ),
    read=read,
    write=write,
    prefixes=("model.", "language_model.model.", "model.language_model.", ""),
    ignored=(*standard.BUFFERS, *TOWERS),
)
