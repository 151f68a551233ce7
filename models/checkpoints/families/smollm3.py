"""SmolLM3: Llama without rotary embeddings in every fourth layer (NoPE).

Layers without a rope are those of RNoPE (arXiv 2501.18795).
"""

from typing import Any

from models.checkpoints import fields, hf, standard


def read(f: fields.Fields) -> hf.Config:
    count = f.integer("num_hidden_layers")
    period = f.integer("no_rope_layer_interval", 4)
    turned = f.take(
        "no_rope_layers", [int((i + 1) % period != 0) for i in range(count)]
    )
    good = isinstance(turned, list) and all(x in (0, 1) for x in turned)
    if not good or len(turned) != count:
        raise f.wrong("no_rope_layers", f"{count} numbers, 1 where a layer has a rope")
    bias = f.flag("attention_bias", False)
    window = f.nullable("sliding_window", 0)
    if not f.flag("use_sliding_window", False):
        window = 0
    default = [fields.FULL if x or not window else fields.SLIDING for x in turned]
    kinds = fields.layer_types(f, count, default)
    f.data = {"tie_word_embeddings": True, **f.data}
    return standard.read(
        f,
        theta=2000000.0,
        qkv_bias=bias,
        out_bias=bias,
        mlp_bias=f.flag("mlp_bias", False),
        rope_of=tuple(0 if x else -1 for x in turned),
        windows=fields.windows(kinds, window),
    )


def write(c: hf.Config) -> dict[str, Any]:
    return standard.write(
        c,
        attention_bias=c.qkv_bias,
        mlp_bias=c.mlp_bias,
        no_rope_layers=[int(c.rope(i) >= 0) for i in range(c.n_layers)],
        use_sliding_window=bool(c.every_window),
        sliding_window=max(c.every_window, default=None),
        layer_types=fields.kinds(c.every_window, c.n_layers),
    )


FAMILY = hf.Family(
    model_type="smollm3",
    architectures=("SmolLM3ForCausalLM",),
    entries=standard.ENTRIES,
    read=read,
    write=write,
    ignored=standard.BUFFERS,
)
