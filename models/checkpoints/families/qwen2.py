"""Qwen 2 and 2.5 (arXiv 2407.10671, 2412.15115): Llama with biases on q, k and v."""

from typing import Any

from models.checkpoints import fields, hf, standard


def windows(f: fields.Fields) -> tuple[int, ...]:
    """Read window sizes: by `layer_types`, or of layers from `max_window_layers` on."""
    count = f.integer("num_hidden_layers")
    size = f.nullable("sliding_window", 4096)
    first = f.integer("max_window_layers", 28, least=0)
    if not f.flag("use_sliding_window", False):
        size, first = 0, count
    default = [fields.FULL if i < first else fields.SLIDING for i in range(count)]
    return fields.windows(fields.layer_types(f, count, default), size)


def written_windows(c: hf.Config) -> dict[str, Any]:
    """Return the fields of config.json that `windows` reads."""
    return {
        "use_sliding_window": bool(c.every_window),
        "sliding_window": max(c.every_window, default=None),
        "max_window_layers": c.n_layers,
        "layer_types": fields.kinds(c.every_window, c.n_layers),
    }


def read(f: fields.Fields) -> hf.Config:
    return standard.read(f, qkv_bias=True, windows=windows(f))


def write(c: hf.Config) -> dict[str, Any]:
    return standard.write(c, **written_windows(c))


FAMILY = hf.Family(
    model_type="qwen2",
    architectures=("Qwen2ForCausalLM",),
    entries=standard.ENTRIES,
    read=read,
    write=write,
    ignored=standard.BUFFERS,
)
