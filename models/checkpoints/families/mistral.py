"""Mistral 7B and its descendants (arXiv 2310.06825): Llama with a sliding window."""

from typing import Any

from models.checkpoints import fields, hf, standard


def read(f: fields.Fields) -> hf.Config:
    window = f.nullable("sliding_window", 4096)
    count = f.integer("num_hidden_layers")
    return standard.read(f, windows=(window,) * count if window else ())


def write(c: hf.Config) -> dict[str, Any]:
    return standard.write(c, sliding_window=c.windows[0] if c.windows else None)


FAMILY = hf.Family(
    model_type="mistral",
    architectures=("MistralForCausalLM",),
    entries=standard.ENTRIES,
    read=read,
    write=write,
    ignored=standard.BUFFERS,
)
