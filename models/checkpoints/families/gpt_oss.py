"""gpt-oss 20b and 120b: attention sinks, alternating windows, YaRN, clamped experts.

Its model card is arXiv 2508.10925. The experts of the release are MXFP4 and stay so
(`models/transformer/mxfp4.py`), unless they are loaded with `quantised=False`; files of
bfloat16 are read, too.
"""

from typing import Any

from models import transformer
from models.checkpoints import fields, hf, mxfp4, standard
from models.transformer import mxfp4 as codes

AT = "layers.{i}.mlp."
LIMIT = 7.0
YARN = {
    "rope_type": "yarn",
    "factor": 32.0,
    "beta_fast": 32.0,
    "beta_slow": 1.0,
    "truncate": False,
    "original_max_position_embeddings": 4096,
}


def read(f: fields.Fields) -> hf.Config:
    count = f.integer("num_hidden_layers")
    f.fixed("swiglu_alpha", 1.702)
    limit = f.number("swiglu_limit", LIMIT)
    bias = f.flag("attention_bias", True)
    window = f.integer("sliding_window", 128)
    alternating = [fields.FULL if i % 2 else fields.SLIDING for i in range(count)]
    kinds = fields.layer_types(f, count, alternating)
    stored = f.mapping("quantization_config")
    if stored and stored.get("quant_method") != codes.NAME:
        raise f.wrong("quantization_config", "quant_method 'mxfp4', or no such field")
    experts = transformer.Experts(
        f.integer("num_local_experts", f.integer("num_experts", 128)),
        f.integer("num_experts_per_tok", f.integer("experts_per_token", 4)),
        f.integer("intermediate_size", 2880),
        router_bias=True,
        bias=True,
        stored=codes.NAME if stored else "",
    )
    # The release repeats the yarn's context, and names no other architecture's fields.
    for name in (
        "router_aux_loss_coef",
        "output_router_logits",
        "initial_context_length",
    ):
        f.take(name, None)
    f.data = {"head_dim": 64, "rms_norm_eps": 1e-5, **f.data}
    f.data.setdefault("rope_parameters", None)
    if not f.data.get("rope_scaling") and not f.data["rope_parameters"]:
        f.data["rope_parameters"] = YARN
    c = standard.read(
        f,
        theta=150000.0,
        sinks=True,
        gate_limit=limit,
        qkv_bias=bias,
        out_bias=bias,
    )
    shapes = [
        standard.layer(
            c, 0, experts=experts, window=window if kind == fields.SLIDING else 0
        )
        for kind in kinds
    ]
    return standard.shaped(c, shapes)


def write(c: hf.Config) -> dict[str, Any]:
    e = c.layer(0).experts
    assert e is not None
    coded = {"quantization_config": {"quant_method": codes.NAME}} if e.stored else {}
    return standard.write(
        c,
        **coded,
        intermediate_size=e.width,
        num_local_experts=e.count,
        num_experts_per_tok=e.active,
        experts_per_token=e.active,
        swiglu_limit=c.gate_limit,
        attention_bias=c.qkv_bias,
        sliding_window=max(c.every_window, default=None),
        layer_types=fields.kinds(c.every_window, c.n_layers),
    )


EXPERTS = AT + "experts."

CODED = (
    ("coded_up", "gate_up_proj_blocks", hf.LACED_ROWS),
    ("coded_up_scales", "gate_up_proj_scales", hf.LACED_ROWS),
    ("coded_up_bias", "gate_up_proj_bias", hf.LACED_ROWS),
    ("coded_down", "down_proj_blocks", hf.SAME),
    ("coded_down_scales", "down_proj_scales", hf.SAME),
    ("coded_down_bias", "down_proj_bias", hf.SAME),
)

FAMILY = hf.Family(
    model_type="gpt_oss",
    architectures=("GptOssForCausalLM",),
    entries=(
        *standard.ENTRIES,
        hf.Entry(standard.OURS + "sinks", (standard.ATTENTION + "sinks",), hf.BY_GROUP),
        hf.Entry(standard.MLP + "router", (AT + "router.weight",), hf.KERNEL),
        hf.Entry(standard.MLP + "router_bias", (AT + "router.bias",), hf.SAME),
        hf.Entry(
            standard.MLP + "experts_up", (EXPERTS + "gate_up_proj",), hf.LACED_PAIRS
        ),
        hf.Entry(
            standard.MLP + "experts_up_bias",
            (EXPERTS + "gate_up_proj_bias",),
            hf.LACED_BIASES,
        ),
        hf.Entry(standard.MLP + "experts_down", (EXPERTS + "down_proj",), hf.SAME),
        hf.Entry(
            standard.MLP + "experts_down_bias", (EXPERTS + "down_proj_bias",), hf.SAME
        ),
        *(
            hf.Entry(standard.MLP + ours, (EXPERTS + theirs,), layout)
            for ours, theirs, layout in CODED
        ),
    ),
    read=read,
    write=write,
    ignored=standard.BUFFERS,
    alternatives=(
        (
            hf.Entry(
                standard.MLP + "experts_up",
                (EXPERTS + "gate_up_proj_blocks", EXPERTS + "gate_up_proj_scales"),
                mxfp4.LACED_PAIRS,
            ),
            hf.Entry(
                standard.MLP + "experts_down",
                (EXPERTS + "down_proj_blocks", EXPERTS + "down_proj_scales"),
                mxfp4.EXPERTS,
            ),
        ),
    ),
)
