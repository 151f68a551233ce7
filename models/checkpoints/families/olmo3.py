"""OLMo 3 (arXiv 2512.13961): OLMo 2 with three sliding layers to a full one.

The full layers alone may have a scaled rope.
"""

from typing import Any

from models.checkpoints import fields, hf, rope, standard
from models.checkpoints.families import gemma3, olmo2

THETA = 500000.0


def read(f: fields.Fields) -> hf.Config:
    count = f.integer("num_hidden_layers")
    bias = f.flag("attention_bias", False)
    window = f.integer("sliding_window", 4096)
    default = [fields.SLIDING if (i + 1) % 4 else fields.FULL for i in range(count)]
    kinds = fields.layer_types(f, count, default)
    f.data = {"rms_norm_eps": 1e-5, **f.data}
    out = standard.shape(f)
    dim, positions = out["head_dim"], out["max_positions"]
    spun = [
        rope.build(raw, dim, positions, f.where)
        for raw in gemma3.ropes(f, THETA, f.number("rope_theta", THETA))
    ]
    return hf.Config(
        **out,
        **olmo2.VARIANTS,
        qkv_bias=bias,
        out_bias=bias,
        ropes=tuple(spun),
        rope_of=tuple(int(kind == fields.SLIDING) for kind in kinds),
        windows=fields.windows(kinds, window),
    )


def write(c: hf.Config) -> dict[str, Any]:
    full, sliding = (rope.written(spun) for spun in c.ropes)
    out = {
        **standard.dims(c),
        "attention_bias": c.qkv_bias,
        "sliding_window": max(c.every_window, default=None),
        "layer_types": fields.kinds(c.every_window, c.n_layers),
        "rope_theta": full["rope_theta"],
        "rope_parameters": {fields.FULL: full, fields.SLIDING: sliding},
    }
    if full["rope_type"] != "default":
        out["rope_scaling"] = {k: v for k, v in full.items() if k != "rope_theta"}
    return out


FAMILY = hf.Family(
    model_type="olmo3",
    architectures=("Olmo3ForCausalLM",),
    entries=olmo2.ENTRIES,
    read=read,
    write=write,
    ignored=standard.BUFFERS,
)
